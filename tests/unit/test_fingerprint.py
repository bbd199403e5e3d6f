"""What makes a program the same, what makes it another, and that the difference is named."""

import copy
import functools
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from aot.keys import changes_between
from aot.runtime.fingerprint import fingerprint
from aot.runtime.liveness import explain_difference
from aot.schema.codec import decode, encode
from aot.schema.digest import Digest
from aot.schema.factor import Factor, Fingerprint

SCALE = 2.0
LIMITS = (1, 2)


def shifted(x: Tensor) -> Tensor:
    return x * SCALE + len(LIMITS)


class Settings:
    def __init__(self, heads: int) -> None:
        self.heads = heads
        self.where = "/srv/models/one"
        self.owner: Any = self

    def doubled(self) -> int:
        return self.heads * 2


class Block(nn.Module):
    factor = 3

    def __init__(self, settings: Settings, index: int) -> None:
        super().__init__()
        self.settings = settings
        self.index = index
        self.linear = nn.Linear(8, 8)
        self.register_buffer("steps", torch.zeros(1), persistent=False)
        self.table = torch.arange(4.0)
        self.act: Callable[[Tensor], Tensor] = nn.functional.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(shifted(x))) * self.factor * self.settings.doubled() + self.helper(x)

    def helper(self, x: Tensor) -> Tensor:
        return x + self.table.sum()


class Net(nn.Module):
    def __init__(self, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        settings = Settings(heads)
        self.blocks = nn.ModuleList(Block(settings, index) for index in range(layers))
        self.head = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.drop(x))


def a_net(**options: int) -> Net:
    return Net(**options).eval()


def changed(before: Fingerprint, after: Fingerprint) -> list[str]:
    return [change.name for change in changes_between(before.factors, after.factors)]


def told(change: Callable[[Net], Any]) -> tuple[list[str], tuple[str, ...]]:
    """Return the factors and reasons by which a net differs after `change`."""
    net = a_net()
    before = fingerprint(net)
    result = change(net)
    after = fingerprint(result if isinstance(result, Net) else net)
    assert (before.digest != after.digest) == bool(changed(before, after))
    return changed(before, after), explain_difference(before, after)


@pytest.fixture
def unpatched() -> Iterator[None]:
    kept = dict(vars(Block))
    scale = SCALE
    yield
    Block.forward, Block.helper, Block.factor = kept["forward"], kept["helper"], kept["factor"]  # type: ignore[method-assign]
    globals()["SCALE"] = scale


@pytest.mark.parametrize(
    "neutral",
    [
        lambda net: None,
        lambda net: nn.init.ones_(net.head.weight),
        lambda net: net.blocks[0].steps.add_(7),
        lambda net: copy.deepcopy(net),
        lambda net: net.requires_grad_(False),
        lambda net: net.register_full_backward_hook(lambda *a: None),
        lambda net: setattr(net.blocks[0].settings, "where", "/data/elsewhere/two"),
        lambda net: net(torch.zeros(1, 8)),
        lambda net: net.load_state_dict(Net().state_dict()),
    ],
)
def test_weights_places_and_copies_are_no_part(neutral: Callable[[Net], Any]) -> None:
    with torch.no_grad():
        assert told(neutral) == ([], ())


def test_another_configuration_is_named_by_its_key() -> None:
    before, after = fingerprint(a_net(heads=4)), fingerprint(a_net(heads=8))
    assert changed(before, after) == ["object:Settings#0"]
    assert explain_difference(before, after) == ("object of Settings#0: heads was 4, is 8",)


def test_a_recorded_text_that_is_deeper_than_python_goes_is_told_as_it_is() -> None:
    before, after = (
        Fingerprint(digest=Digest.of(one), factors=(Factor.of("defaults", one.decode()),)) for one in (b"a", b"b")
    )
    deep = replace(before, factors=(replace(before.factors[0], text="[" * 4096),))
    assert explain_difference(deep, after)[0].startswith("default dtype was [[[[")


def test_another_number_of_layers() -> None:
    before, after = fingerprint(a_net()), fingerprint(a_net(layers=4))
    assert 'module blocks.* was {"Block": 3}, is {"Block": 4}' in explain_difference(before, after)


class Adapter(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def test_a_wrapped_layer_is_named() -> None:
    def wrap(net: Net) -> None:
        net.blocks[1].linear = Adapter(net.blocks[1].linear).eval()

    names, reasons = told(wrap)
    assert {"module:blocks.*.linear", "module:blocks.*.linear.down", "code:Adapter"} <= set(names)
    wanted = 'module blocks.*.linear was {"torch.nn.modules.linear.Linear": 3}, is '
    assert wanted + '{"Adapter": 1, "torch.nn.modules.linear.Linear": 2}' in reasons
    assert "module blocks.*.linear.up was not there: torch.nn.modules.linear.Linear" in reasons


def test_changed_code_is_named_by_method(unpatched: None) -> None:
    def forward(self: Block, x: Tensor) -> Tensor:
        return self.act(self.linear(shifted(x))) * self.factor - self.helper(x)

    def patch(net: Net) -> None:
        Block.forward = forward  # type: ignore[method-assign]

    assert told(patch) == (["code:Block"], ("code of Block changed: forward",))


def test_a_changed_helper_method_and_class_attribute_are_named(unpatched: None) -> None:
    def patch(net: Net) -> None:
        Block.helper = lambda self, x: x - 1  # type: ignore[method-assign]
        Block.factor = 4

    assert told(patch)[1] == ("code of Block changed: factor, helper",)


def test_globals_that_forward_reaches_are_a_part(unpatched: None) -> None:
    def change(net: Net) -> None:
        globals()["SCALE"] = 3.0

    assert told(change) == (["code:globals"], ("code of globals changed: SCALE",))


def test_functions_that_forward_reaches_are_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    names, reasons = told(lambda net: monkeypatch.setitem(globals(), "shifted", lambda x: x + SCALE))
    assert names == ["code:functions", "code:globals"]
    assert "code of functions changed" in reasons[0]


def test_comments_docstrings_and_lines_do_not_matter() -> None:
    def build(text: str) -> type[nn.Module]:
        scope: dict[str, Any] = {"nn": nn, "__name__": "anywhere"}
        exec(compile(textwrap.dedent(text), f"/somewhere/{len(text)}.py", "exec"), scope)
        return scope["M"]

    plain = """
    class M(nn.Module):
        def forward(self, x):
            def inner(y):
                return y + 1
            return inner(x) in {"a", "b", "c"}
    """
    commented = """
    # A comment above.


    class M(nn.Module):
        '''A docstring of the class.'''
        def forward(self, x):
            '''A docstring.'''
            def inner(y):
                '''Another.'''
                return y + 1  # why
            return inner(x) in {"c", "b", "a"}
    """
    other = plain.replace("y + 1", "y + 2")
    first, second, third = (fingerprint(build(text)()) for text in (plain, commented, other))
    assert first == second
    assert explain_difference(first, third) == ("code of M changed: forward",)


def test_tied_weights() -> None:
    names, reasons = told(lambda net: setattr(net.head, "weight", net.blocks[0].linear.weight))
    assert names == ["tied"]
    assert reasons == ("tied parameters differ: new: blocks.0.linear.weight = head.weight",)


def test_training_mode_of_the_whole_and_of_a_part() -> None:
    assert told(lambda net: net.train()) == (["training"], ("training mode was eval, is train",))
    reasons = told(lambda net: net.drop.train())[1]
    assert reasons == ("training mode was eval, is train, but only in drop",)


def test_a_forward_hook_is_named_with_its_module() -> None:
    def hook(*args: Any) -> None: ...

    names, reasons = told(lambda net: net.blocks[2].linear.register_forward_hook(hook))
    assert names == ["hooks"]
    assert reasons == (f"forward hooks differ: new: blocks.2.linear: {hook.__qualname__}",)
    assert told(lambda net: net.register_forward_pre_hook(hook))[0] == ["hooks"]


def test_a_global_hook_is_named() -> None:
    from torch.nn.modules.module import register_module_forward_hook

    def hook(*args: Any) -> None: ...

    net = a_net()
    before = fingerprint(net)
    handle = register_module_forward_hook(hook)
    try:
        after = fingerprint(net)
    finally:
        handle.remove()
    assert explain_difference(before, after) == (f"global forward hooks differ: new: {hook.__qualname__}",)
    assert fingerprint(net) == before


def test_a_parametrization_is_named() -> None:
    names, reasons = told(lambda net: weight_norm(net.head))
    assert "parametrizations" in names
    assert "parametrizations differ: new: head.weight" in reasons


def test_values_of_plain_tensors_are_a_part() -> None:
    names, reasons = told(lambda net: net.blocks[1].table.add_(1))
    assert names == ["constants:blocks.*"]
    assert reasons[0].startswith("constants of blocks.*: table was")


def test_form_of_tensors_is_a_part() -> None:
    assert told(lambda net: net.half())[0][0].startswith("tensors:")
    transposed = told(lambda net: setattr(net.head, "weight", nn.Parameter(torch.zeros(8, 8).t())))
    assert transposed[1][0].startswith("tensors of head: weight was")
    assert told(lambda net: net.head.register_parameter("bias", None))[0] == ["tensors:head"]


def test_attributes_and_what_is_put_in_their_place() -> None:
    names, reasons = told(lambda net: setattr(net.drop, "p", 0.2))
    assert (names, reasons) == (["attributes:drop"], ("attributes of drop: p was 0.1, is 0.2",))
    assert told(lambda net: setattr(net.blocks[0], "act", nn.functional.relu))[0] == ["attributes:blocks.*"]
    assert "attributes:head" in told(lambda net: setattr(net.head, "forward", functools.partial(shifted)))[0]


def test_of_modules_that_are_one_but_for_a_number_the_changed_ones_are_told() -> None:
    def widened(net: nn.Module, *places: int) -> None:
        for place in places:
            net.get_submodule(f"blocks.{place}.linear").in_features += place + 1

    _, (reason,) = told(lambda net: widened(net, 1))
    assert reason == "attributes of blocks.*.linear: in_features was 8, is 10 in number 2 of 3"
    _, (reason,) = told(lambda net: widened(net, 0, 1))
    assert reason == "attributes of blocks.*.linear: in_features was 8, is 9 in number 1 and 1 more of 3"


def test_default_dtype_is_a_part() -> None:
    net = a_net()
    before = fingerprint(net)
    torch.set_default_dtype(torch.float64)
    try:
        assert explain_difference(before, fingerprint(net)) == ("default dtype was float32, is float64",)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_module_used_twice_is_not_two_modules() -> None:
    one = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    same = nn.Linear(4, 4)
    twice = nn.Sequential(same, same)
    assert "shared modules" in changed(fingerprint(one), fingerprint(twice))
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    one, other = (nn.Sequential(first, second, again) for again in (first, second))
    assert changed(fingerprint(one), fingerprint(other)) == ["shared modules"]


def test_objects_that_a_class_holds_are_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "shared", Settings(2), raising=False)
    names, reasons = told(lambda net: monkeypatch.setattr(Block.shared, "heads", 3))
    assert (names, reasons) == (["code:objects"], ("code of objects changed: Settings#0",))


class Odd:
    """Answers to every name, as mocks and proxies do."""

    __slots__ = ("inner",)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def test_unusual_attributes_are_read_without_harm() -> None:
    def build() -> nn.Module:
        import threading
        from unittest.mock import MagicMock

        module = nn.Linear(2, 2)
        cyclic: list[Any] = []
        cyclic.append(cyclic)
        values = [threading.Lock(), MagicMock(), Odd(), cyclic, float("nan"), 2**80, b"x", {1: 2, (3,): {4, "5"}}]
        values += [range(3), torch.float16, torch.device("cuda:1"), "cuda:1", Path("/x"), object(), lambda x: x]
        for index, value in enumerate([*values, nn.ReLU(), sys]):
            setattr(module, f"odd{index}", value)
        return module

    assert fingerprint(build()).digest == fingerprint(build()).digest


def test_it_survives_the_manifest() -> None:
    found = fingerprint(a_net())
    assert decode(encode(found), Fingerprint) == found
    assert explain_difference(found, found) == ()


def test_another_python_is_one_reason() -> None:
    import msgspec

    found = fingerprint(a_net())
    factors = tuple(
        msgspec.structs.replace(one, text='"3.99"', digest=found.digest)
        if one.name == "bytecode"
        else msgspec.structs.replace(one, digest=found.digest)
        if one.name.startswith("code:")
        else one
        for one in found.factors
    )
    other = Fingerprint(digest=found.factors[0].digest, factors=factors)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert explain_difference(other, found) == (
        f"compiled from code of Python 3.99, this is Python {version}: code cannot be compared",
    )


MODEL = """
import torch
from torch import nn

TABLE = {"a": 1, "b": 2, "c": 3}

def scaled(x):
    return x * len({"one", "two", "three"} | set(TABLE))

class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.names = {"x", "y", "zz", "www"}
        self.options = {"kind": {"b", "a"}, "path": __file__}
        self.inner = nn.Linear(3, 3)

    def forward(self, x, mode={"p", "q", "r"}):
        return self.inner(scaled(x)) if "p" in {"p", "q", "r", "s"} else x
"""
PRINT = """
from aot.runtime.fingerprint import fingerprint
import sys
before = set(sys.modules)
toy = fingerprint(Toy())
assert not [name for name in set(sys.modules) - before if name.startswith(("torch._dynamo", "torch._inductor"))]
from transformers import BertConfig, BertModel
sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=30)
print(toy.digest, fingerprint(BertModel(BertConfig(**sizes))).digest)
"""


def test_it_is_the_same_in_another_process_directory_home_and_hash_seed(tmp_path: Path) -> None:
    outputs = []
    for number, head in enumerate(("", "# moved\n\n\n")):
        place = tmp_path / f"place{number}" / "deep"
        place.mkdir(parents=True)
        (place / "toy_model.py").write_text(head + MODEL)
        script = place / "script.py"
        # Imported in one process, run as a script in the other.
        script.write_text((f"{MODEL}\n" if number else "from toy_model import Toy\n") + PRINT)
        paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "PYTHONHASHSEED": str(number),
            "PYTHONPATH": paths,
        }
        done = subprocess.run(
            [sys.executable, str(script)], cwd=place, env=environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines()[-1])
    assert outputs[0] == outputs[1]


def a_bert(**sizes: Any) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=16, intermediate_size=32, vocab_size=30, **{"num_attention_heads": 2, **sizes})
    return BertModel(config).eval()


def test_heads_and_attention_kind_of_a_real_model() -> None:
    before = fingerprint(a_bert(num_hidden_layers=2))
    heads = explain_difference(before, fingerprint(a_bert(num_hidden_layers=2, num_attention_heads=4)))
    assert any("num_attention_heads was 2, is 4" in reason for reason in heads)
    other = a_bert(num_hidden_layers=2)
    other.config._attn_implementation = "eager"
    reasons = explain_difference(before, fingerprint(other))
    assert any("_attn_implementation_internal was sdpa, is eager" in reason for reason in reasons)


def test_calls_of_a_real_model_change_nothing_not_even_its_library_s_hooks() -> None:
    model = a_bert(num_hidden_layers=2)
    before = fingerprint(model)
    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.int64))
        model(torch.zeros(1, 4, dtype=torch.int64), output_hidden_states=True)
    assert any(part._forward_hooks for part in model.modules())
    assert explain_difference(before, fingerprint(model)) == ()


def test_a_model_from_a_checkpoint_is_the_model_from_its_configuration(tmp_path: Path) -> None:
    from transformers import BertModel

    model = a_bert(num_hidden_layers=2)
    model.save_pretrained(tmp_path / "saved")
    loaded = BertModel.from_pretrained(tmp_path / "saved").eval()
    again = BertModel(loaded.config).eval()
    assert explain_difference(fingerprint(loaded), fingerprint(again)) == ()


def test_a_model_of_the_size_of_bert_takes_milliseconds() -> None:
    model = a_bert(num_hidden_layers=12)
    fingerprint(model)
    times = []
    for _ in range(9):
        started = time.thread_time()
        fingerprint(model)
        times.append(time.thread_time() - started)
    assert min(times) < 0.020
