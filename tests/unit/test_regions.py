"""Which repeated blocks become regions, what they are called with, and which of them are one program."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from aot.compile.program import Example
from aot.compile.region_inputs import AUTO, name_sizes
from aot.compile.regions import (
    Captured,
    LeftOut,
    Region,
    capture_region_inputs,
    confirm_regions,
    find_regions,
    survey_regions,
)


class Block(nn.Module):
    def __init__(self, width: int = 8, index: int = 0, eps: float = 1e-5) -> None:
        super().__init__()
        self.index = index
        self.eps = eps
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        self.calls.add_(1)
        y = self.second(torch.relu(self.first(x))) * scale
        return x + (y if mask is None else y * mask[..., None])


class Stack(nn.Module):
    """Blocks in a list, called one after another; `call` says how block number i is called."""

    def __init__(self, *blocks: nn.Module, call: Callable[[int, nn.Module, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(8, 8)
        self.call = call or (lambda index, block, x: block(x))

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            x = self.call(index, block, x)
        return x


def names(*indices: int) -> tuple[str, ...]:
    return tuple(f"blocks.{index}" for index in indices)


def captured(stack: Stack, *sizes: tuple[int, int]) -> Captured:
    examples = [Example((torch.rand(batch, length, 8),)) for batch, length in sizes or ((2, 5),)]
    return capture_region_inputs(stack.eval(), examples, find_regions(stack))


def instances(found: Captured) -> dict[str, tuple[str, ...]]:
    return {region.name: region.instances for region in found.examples}


def test_the_outermost_repeated_blocks_are_found() -> None:
    assert find_regions(Stack(Block(), Block(), Block())) == (Region("Block", names(0, 1, 2), "Block"),)


def test_other_shapes_dtypes_and_classes_are_other_regions() -> None:
    stack = Stack(Block(), Block(16), Block(), Block(16), nn.Identity(), Block().half())
    assert find_regions(stack) == (
        Region("Block", names(0, 2), "Block"),
        Region("Block-2", names(1, 3), "Block"),
    )


def test_another_mode_or_tie_is_another_block() -> None:
    tied = Block()
    tied.second.weight = tied.first.weight
    trained = Block().train()
    stack = Stack(Block().eval(), Block().eval(), tied.eval(), trained)
    assert find_regions(stack) == (Region("Block", names(0, 1), "Block"),)


def test_weights_shared_between_instances_do_not_matter() -> None:
    first, second = Block(), Block()
    second.first.weight = first.first.weight
    assert find_regions(Stack(first, second)) == (Region("Block", names(0, 1), "Block"),)


def test_layers_of_torch_are_no_blocks_and_its_composites_are() -> None:
    assert find_regions(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU())) == ()
    layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)]
    assert [region.instances for region in find_regions(Stack(*layers))] == [names(0, 1)]
    pairs = [nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()) for _ in range(3)]
    assert [region.name for region in find_regions(Stack(*pairs))] == ["Sequential"]


def test_a_block_that_is_used_under_two_names_is_a_region_of_one_instance() -> None:
    block = Block()
    assert find_regions(Stack(block, block, block)) == (Region("Block", names(0), "Block"),)


def test_a_block_whose_likes_lie_in_other_regions_is_left_out() -> None:
    def pair() -> nn.Module:
        return nn.Sequential(Block(), Block(16))

    survey = survey_regions(Stack(pair(), pair(), Block()))
    assert [region.instances for region in survey.regions] == [names(0, 1)]
    assert survey.left_out == (LeftOut(names(2), "its like are parts of other regions"),)


def test_blocks_with_hooks_are_left_out_with_the_reason() -> None:
    def hooked(part: Callable[[Block], nn.Module]) -> Block:
        block = Block()
        part(block).register_forward_hook(lambda *args: None)
        return block

    for part, where in ((lambda block: block.second, "second"), (lambda block: block, "the block itself")):
        survey = survey_regions(Stack(*(hooked(part) for _ in range(2))))
        assert survey.regions == ()
        assert survey.left_out[0].instances == names(0, 1)
        assert f"a forward hook on {where}" in survey.left_out[0].reason


def test_a_replaced_forward_and_a_global_hook_leave_blocks_out() -> None:
    stack = Stack(Block(), Block())
    for block in stack.blocks:
        block.forward = block.forward  # type: ignore[method-assign]
    assert "was replaced on the instance" in survey_regions(stack).left_out[0].reason
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        assert "a global forward hook" in survey_regions(Stack(Block(), Block())).left_out[0].reason
    finally:
        handle.remove()


def test_parametrized_blocks_are_regions_and_export() -> None:
    blocks = [Block(), Block(), Block()]
    for block in blocks[:2]:
        weight_norm(block.first)
    stack = Stack(*blocks).eval()
    (region,) = find_regions(stack)
    assert region.instances == names(0, 1)
    (example,) = captured(stack).examples[region]
    program = torch.export.export(stack.blocks[0], example.args, dict(example.kwargs))
    assert "first.parametrizations.weight.original0" in program.state_dict


def test_capture_gives_the_call_of_the_first_instance_and_leaves_no_trace() -> None:
    stack = Stack(Block(), Block())
    found = captured(stack)
    ((region, (example,)),) = found.examples.items()
    assert region == Region("Block", names(0, 1), "Block")
    assert [tuple(arg.shape) for arg in example.args] == [(2, 5, 8)] and example.kwargs == {}
    assert not any(block._forward_pre_hooks for block in stack.blocks)
    assert all(block.calls.item() == 0 for block in stack.blocks)
    assert not any(tensor.requires_grad for tensor in example.args)


@pytest.mark.parametrize(
    "call",
    [
        lambda index, block, x: block(x, torch.ones(2, 5)) if index == 1 else block(x),
        lambda index, block, x: block(x, scale=2.0) if index == 1 else block(x, scale=1.0),
        lambda index, block, x: block(x=x) if index == 1 else block(x),
        lambda index, block, x: block(x[:1]).repeat(2, 1, 1) if index == 1 else block(x),
        lambda index, block, x: block(x.transpose(0, 1)) if index == 1 else block(x.reshape(2, 5, 8).contiguous()),
        lambda index, block, x: block(x.double().float().requires_grad_(), scale=1) if index == 1 else block(x),
    ],
)
def test_instances_that_are_called_differently_are_regions_of_their_own(call: Any) -> None:
    found = captured(Stack(Block(), Block(), Block(), call=call))
    assert sorted(instances(found)) == ["Block", "Block-2"]
    assert found.left_out == ()


class Cache:
    pass


def test_what_cannot_be_captured_is_left_out_with_the_reason() -> None:
    def call(index: int, block: nn.Module, x: Tensor) -> Tensor:
        match index:
            case 0:
                return x  # not called
            case 1:
                return block(block(x), torch.ones(2, 5))
            case 2:
                return block(block(x))
        return block(x)

    found = captured(Stack(*(Block() for _ in range(5)), call=call))
    assert instances(found) == {"Block": names(2, 3, 4)}
    assert found.left_out == (
        LeftOut(names(0), "not called by the example inputs"),
        LeftOut(names(1), "called in more than one way within one run"),
    )


class Caching(Block):
    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x)


def test_a_call_with_an_object_is_left_out_by_its_class() -> None:
    stack = Stack(Caching(), Caching(), call=lambda index, block, x: block(x, cache=Cache()))
    assert captured(stack).left_out == (LeftOut(names(0, 1), "called with a Cache, which compiled code cannot take"),)


def test_blocks_of_other_code_that_look_alike_are_not_one_region() -> None:
    assert find_regions(Stack(Block(), Caching(), Block(), Caching())) == (
        Region("Block", names(0, 2), "Block"),
        Region("Caching", names(1, 3), "Caching"),
    )


class Numbered(Block):
    """Uses its number only with a cache, as attention layers do."""

    def forward(self, x: Tensor, cache: dict[int, Tensor] | None = None) -> Tensor:  # type: ignore[override]
        if cache is not None:
            cache[self.index] = x
        return super().forward(x)


class Scaled(Block):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) / (self.index + 1 + self.eps)


class Secretive(Block):
    """Uses its number only while it is compiled."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) + (self.index if torch.compiler.is_compiling() else 0)


def test_a_number_that_computes_nothing_keeps_instances_together() -> None:
    stack = Stack(*(Numbered(index=index) for index in range(3)))
    (region,) = find_regions(stack)
    assert region == Region("Numbered", names(0, 1, 2), "Numbered", varying=("index",))
    found = captured(stack)
    assert confirm_regions(stack, found) == found
    assert all(block.calls.item() == 0 for block in stack.blocks)


@pytest.mark.parametrize("kind", [Scaled, Secretive])
def test_a_number_that_computes_something_takes_instances_apart(kind: type[Block]) -> None:
    stack = Stack(*(kind(index=index) for index in (0, 1, 1)))
    confirmed = confirm_regions(stack, captured(stack))
    assert [(region.instances, region.varying) for region in confirmed.examples] == [(names(0), ()), (names(1, 2), ())]
    assert [region.name for region in confirmed.examples] == [kind.__name__, f"{kind.__name__}-2"]
    assert not torch.compiler.is_compiling()


class Tabled(Block):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) + torch.tensor([float(self.index)])


def test_constants_made_on_the_way_are_compared_by_value() -> None:
    stack = Stack(*(Tabled(index=index) for index in (0, 1, 0)))
    confirmed = confirm_regions(stack, captured(stack))
    assert [region.instances for region in confirmed.examples] == [names(0, 2), names(1)]


def test_sizes_are_named_after_the_dimension_they_equal() -> None:
    def call(index: int, block: nn.Module, x: Tensor) -> Tensor:
        return block(x, mask=x[..., 0])

    found = captured(Stack(Block(), Block(), call=call), (2, 5), (3, 7))
    ((_, examples),) = found.examples.items()
    at = [{"batch": 2, "seq": 5}, {"batch": 3, "seq": 7}]
    assert name_sizes(examples, at) == ({0: "batch", 1: "seq"}, {0: "batch", 1: "seq"})
    flat = [Example((torch.rand(batch * length, 8), 3)) for batch, length in ((2, 5), (3, 7))]
    assert name_sizes(flat, at) == ({0: AUTO}, {})
    # Where two dimensions have one size, nobody can tell which it is.
    square = [Example((torch.rand(size, 8),)) for size in (4, 6)]
    assert name_sizes(square, [{"batch": 4, "seq": 4}, {"batch": 6, "seq": 6}]) == ({0: AUTO},)


def a_transformer(kind: str, **options: Any) -> nn.Module:
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 30}
    match kind:
        case "bert":
            return transformers.BertModel(transformers.BertConfig(intermediate_size=32, **sizes)).eval()
        case "llama":
            config = transformers.LlamaConfig(intermediate_size=32, num_key_value_heads=2, **sizes)
            return transformers.LlamaForCausalLM(config).eval()
    config = transformers.GPT2Config(n_embd=16, n_layer=3, n_head=2, vocab_size=30, **options)
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize(
    ("kind", "name", "where", "options"),
    [
        ("bert", "BertLayer", "encoder.layer", {}),
        ("gpt2", "GPT2Block", "transformer.h", {"use_cache": False}),
        ("llama", "LlamaDecoderLayer", "model.layers", {"use_cache": False}),
    ],
)
def test_layers_of_real_models_are_one_region(kind: str, name: str, where: str, options: dict[str, Any]) -> None:
    model = a_transformer(kind)
    (region,) = find_regions(model)
    assert (region.name, region.instances) == (name, tuple(f"{where}.{index}" for index in range(3)))
    examples = [
        Example((), {"input_ids": torch.randint(0, 30, (batch, length)), **options})
        for batch, length in ((2, 7), (3, 9))
    ]
    confirmed = confirm_regions(model, capture_region_inputs(model, examples, (region,)))
    assert confirmed.left_out == ()
    ((found, calls),) = confirmed.examples.items()
    assert found.instances == region.instances
    assert name_sizes(calls, [{"batch": 2, "seq": 7}, {"batch": 3, "seq": 9}])[0] == {0: "batch", 1: "seq"}
    with torch.no_grad():
        model(**examples[0].kwargs, output_hidden_states=True)
    # That installed the library's idle hooks; they must not leave the layers out.
    assert any(part._forward_hooks for part in model.modules())
    assert [one.instances for one in find_regions(model)] == [region.instances]


def test_layers_that_scale_by_their_number_are_not_one_region() -> None:
    model = a_transformer("gpt2", scale_attn_by_inverse_layer_idx=True)
    example = Example((), {"input_ids": torch.randint(0, 30, (2, 7)), "use_cache": False})
    confirmed = confirm_regions(model, capture_region_inputs(model, [example], find_regions(model)))
    assert [len(region.instances) for region in confirmed.examples] == [1, 1, 1]
