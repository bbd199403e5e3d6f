"""Inputs, perturbed and synthetic weights, and what a call leaves behind."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from aot.qualify.canary import put_all_synthetic
from aot.qualify.compare import compare_file
from aot.qualify.inputs import copied, draw, draw_all, lay_out, replace_tensors, spread, strides_at, tensors_in
from aot.qualify.job import Compared
from aot.qualify.outputs import Trace, name_leaves, run_traced, sampled, save_traces, state_of
from aot.qualify.reference import Reference
from aot.qualify.streamed import stream
from aot.qualify.subject import Call
from aot.qualify.weights import kept, perturb
from aot.runtime.synthetic import synthetic_tensor
from aot.schema.artifact import ConstantKind, ConstantMeta
from aot.schema.guard import InputGuard


def drawn_like(example: Tensor, shape: Sequence[int] = (64, 128), seed: int = 0) -> Tensor:
    return draw(example, shape, generator=torch.Generator().manual_seed(seed))


def test_token_ids_stay_within_the_range_of_the_example() -> None:
    found = drawn_like(torch.tensor([[101, 7, 1999, 102]]))
    assert found.dtype == torch.int64
    assert 7 <= int(found.min()) < 50
    assert 1900 < int(found.max()) <= 1999


def test_masks_stay_masks_and_no_row_is_empty() -> None:
    for example in (torch.ones(2, 8, dtype=torch.int64), torch.tensor([[1.0, 0.0]]), torch.ones(2, 8).bool()):
        found = drawn_like(example)
        assert found.dtype == example.dtype
        assert set(found.double().unique().tolist()) == {0.0, 1.0}
        assert bool((found[:, 0] == 1).all())


def test_constant_integers_stay_constant() -> None:
    assert drawn_like(torch.zeros(2, 8, dtype=torch.int32)).unique().tolist() == [0]


def test_positions_and_offsets_stay_sorted() -> None:
    found = drawn_like(torch.arange(16).expand(2, 16))
    assert bool((found.diff(dim=-1) >= 0).all())
    assert int(found.max()) <= 15


def test_positions_that_are_written_to_come_once_each_as_in_the_example() -> None:
    """An eager write of two values to one place keeps either on a card, so that a right program would be refused."""
    assert torch.equal(drawn_like(torch.arange(16), (16,)), torch.arange(16))
    found = drawn_like(torch.tensor([[0, 3, 9, 100]], dtype=torch.int32), (64, 8))
    assert found.dtype == torch.int32 and bool((found.diff(dim=-1) > 0).all())
    assert int(found.min()) >= 0 and int(found.max()) <= 100 and len(found.unique(dim=0)) == 64
    # More of them than the range has: in order is all that they can be.
    assert bool((drawn_like(torch.arange(16), (40,)).diff() >= 0).all())


def test_pixels_are_in_no_order() -> None:
    example = torch.tensor([[200, 10, 90, 30]], dtype=torch.uint8)
    assert not bool((drawn_like(example).int().diff(dim=-1) >= 0).all())


def test_floats_keep_mean_deviation_and_sign() -> None:
    plain = drawn_like(torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 5 + 2)
    assert float(plain.mean()) == pytest.approx(2, abs=0.5)
    assert float(plain.std()) == pytest.approx(5, rel=0.1)
    assert float(drawn_like(torch.rand(100)).min()) >= 0


def test_additive_masks_keep_their_lowest_value_and_one_open_place_a_row() -> None:
    for lowest in (float("-inf"), torch.finfo(torch.float32).min):
        example = torch.zeros(4, 4)
        example[0, 1:] = lowest
        found = drawn_like(example)
        assert bool((found == lowest).any())
        assert not bool((found[:, 0] == lowest).any())


def test_equal_seeds_give_equal_inputs_and_others_give_others() -> None:
    example = torch.randn(4, 4)
    (one,), (same,), (other,) = (draw_all([example], [(8, 8)], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_two_inputs_of_one_shape_get_different_values() -> None:
    one, other = draw_all([torch.randn(4, 4), torch.randn(4, 4)], [(8, 8), (8, 8)], seed=1)
    assert not torch.equal(one, other)


def test_inputs_keep_the_memory_format_of_the_example() -> None:
    example = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = lay_out(torch.randn(7, 3, 8, 9), example, None)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_inputs_have_the_strides_that_the_artifact_wants() -> None:
    guards = (InputGuard(kind="stride", input=0, strides=("s[0][1]*s[0][2]", 1, "s[0][1]")),)
    example = torch.randn(5, 4, 3).transpose(1, 2)
    (strides,) = strides_at(guards, ((2, 3, 4),), [example])
    assert strides == (12, 1, 3)
    values = torch.randn(2, 3, 4)
    found = lay_out(values, values, strides)
    assert found.stride() == strides
    assert torch.equal(found, values)


def test_strides_that_the_example_itself_does_not_have_are_not_made_up_for_it() -> None:
    channels_last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    guards = (InputGuard(kind="stride", input=0, strides=(60, 20, 5, 1)),)
    assert strides_at(guards, ((1, 3, 4, 5),), [channels_last]) == [None]
    (drawn,) = draw_all([channels_last], [(1, 3, 4, 5)], seed=1, strides=[None])
    assert drawn.stride()[1] == 1  # a call as the source makes it, and for this artifact a miss


def test_an_expanded_input_stays_expanded() -> None:
    values = torch.randn(4, 3)
    found = lay_out(values, values, (0, 1))
    assert found.stride() == (0, 1)
    assert torch.equal(found, values[:1].expand(4, 3))


def test_a_spread_input_has_equal_values_and_gaps_that_copies_keep() -> None:
    values = torch.randn(4, 6)
    wide = spread(values)
    assert torch.equal(wide, values)
    assert not wide.is_contiguous()
    assert copied(wide).stride() == wide.stride() == (12, 2)


def test_tensors_are_replaced_wherever_they_stand() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    tree = ((one, 3, None), {"deep": [two, {"again": one}], "flag": True})
    assert [id(tensor) for tensor in tensors_in(tree)] == [id(one), id(two)]
    new = [torch.ones(1), torch.ones(2)]
    (first, number, nothing), rest = replace_tensors(tree, [one, two], new)
    assert (first is new[0], number, nothing, rest["flag"]) == (True, 3, None, True)
    assert rest["deep"][0] is new[1]
    assert rest["deep"][1]["again"] is new[0]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.zero = nn.Parameter(torch.zeros(3))
        self.scalar = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("variance", torch.rand(5))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([0.0, float("-inf"), torch.finfo(torch.float32).min]))
        self.tied = self.linear.weight

    def forward(self, x: Tensor) -> dict[str, object]:
        self.count += 1
        x.add_(1)
        return {"y": self.linear(x), "n": x.shape[0], "none": None, "name": "a"}


def test_every_float_is_perturbed_in_place_the_smallest_included() -> None:
    module = Small()
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers())
    before = {name: tensor.detach().clone() for name, tensor in named}
    places = {name: tensor.data_ptr() for name, tensor in module.named_parameters()}
    assert perturb(module, seed=1) == 6
    after = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    for name in ("linear.weight", "linear.bias", "zero", "scalar", "variance"):
        assert bool((after[name] != before[name]).all()), name
    assert bool((after["variance"] >= 0).all())
    assert torch.equal(after["count"], before["count"])
    assert torch.equal(after["mask"][1:], before["mask"][1:])
    assert places == {name: tensor.data_ptr() for name, tensor in module.named_parameters()}
    assert module.tied is module.linear.weight


def test_perturbation_depends_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    one = Small()
    torch.manual_seed(0)
    other = Small()
    perturb(one, seed=1)
    perturb(other, seed=1)
    assert torch.equal(one.linear.weight, other.linear.weight)
    perturb(other, seed=2)
    assert not torch.equal(one.linear.weight, other.linear.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantities_whose_squares_are_too_small_for_their_type_are_not_taken_for_zeros(dtype: torch.dtype) -> None:
    module = torch.nn.Module()
    module.register_buffer("variance", torch.full((64,), 1e-25, dtype=dtype))
    perturb(module, seed=1)
    assert bool((module.variance >= 0).all()) and 0 < float(module.variance.max()) < 1e-24


def test_kept_tensors_come_back_even_after_an_error() -> None:
    tensor = torch.zeros(3)
    place = tensor.data_ptr()
    with pytest.raises(ValueError), kept((tensor,)):
        tensor.fill_(7)
        raise ValueError
    assert tensor.tolist() == [0, 0, 0]
    assert tensor.data_ptr() == place


def test_a_trace_holds_results_changed_inputs_and_changed_buffers() -> None:
    module = Small()
    x = torch.randn(2, 4)
    call = Call((x,), {}, (x,))
    trace = run_traced(module, call, state_of(module))
    assert set(trace.leaves) == {"output 0", "output 1", "input 0", "buffer count"}
    assert "NoneType None" in trace.form
    assert "str a" in trace.form
    assert int(trace.leaves["output 1"]) == 2
    assert not torch.equal(trace.leaves["input 0"], x)  # the caller's own tensor is a copy


def test_two_results_of_another_structure_have_another_form() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    assert name_leaves((one, two))[0] != name_leaves([one, two])[0]
    assert name_leaves((one, None))[0] != name_leaves((one, two))[0]


def test_a_large_output_is_sampled_in_every_column() -> None:
    tensor = torch.zeros(64, 64)
    tensor[:, ::16] = 1
    found = sampled(tensor, 1000)
    assert found.numel() <= 1000
    assert 0.04 < float(found.mean()) < 0.09  # one in sixteen, as in the whole


def test_the_reference_is_float64_where_the_module_can() -> None:
    module, x = Small(), torch.randn(2, 4)
    call = Call((x,), {}, (x,))
    eager = run_traced(module, call, state_of(module))
    kind, (trace,) = Reference(module, memory_bytes=1 << 40).run((call,), (eager,))
    assert kind == "float64"
    assert trace.leaves["output 0"].dtype == torch.float64
    assert module.linear.weight.dtype == torch.float32


class OnlyFloat32(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype == torch.float64:
            raise TypeError("no kernel")
        return x.to(self.weight.dtype) @ self.weight


def test_a_module_that_cannot_run_in_float64_is_measured_in_float32() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        module, x = OnlyFloat32(dtype), torch.randn(2, 4, dtype=dtype)
        call = Call((x,), {}, (x,))
        eager = run_traced(module, call, {})
        kind, (trace,) = Reference(module, memory_bytes=1 << 40).run((call,), (eager,))
        assert kind == "float32"
        assert trace.leaves["output 0"].dtype == torch.float32


class Deep(nn.Module):
    """Blocks with a table that the head shares, a cache that calls write into, and a part that reaches into another."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(3))
        self.scale = nn.Parameter(torch.rand(16))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("seen", torch.zeros(2, 4, 16))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids)
        for block in self.blocks:
            hidden = hidden + block(hidden, hidden, hidden, need_weights=False)[0]
        self.seen.add_(hidden)
        return self.head(self.seen * self.scale)


def test_a_copy_that_does_not_fit_is_wide_part_by_part_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    module, ids = Deep().bfloat16().eval(), torch.randint(0, 50, (2, 4))
    call = Call((ids,), {}, (ids,))
    state = state_of(module)
    with kept(tuple(state.values())):
        eager = tuple(run_traced(module, call, state) for _ in range(2))
    elements = sum(tensor.numel() for tensor in (*module.parameters(), *module.buffers()))
    monkeypatch.setattr("aot.qualify.reference.stream", None)
    whole = Reference(module, memory_bytes=64 * elements).run((call, call), eager)
    monkeypatch.undo()
    # Room for every part, and not for all at once.
    found = Reference(module, memory_bytes=30 * elements).run((call, call), eager)
    assert whole[0] == found[0] == "float64"
    for one, other in zip(whole[1], found[1], strict=True):
        assert one.leaves.keys() == other.leaves.keys() == {"output 0", "buffer seen"}
        assert all(torch.equal(one.leaves[name], other.leaves[name]) for name in one.leaves)
    assert {tensor.dtype for tensor in module.parameters()} == {torch.bfloat16}
    assert float(module.seen.abs().sum()) == 0


def test_half_precision_without_room_for_a_wider_copy_says_that_eager_was_the_measure() -> None:
    module = Deep().bfloat16().eval()
    ids = torch.randint(0, 50, (2, 4))
    call = Call((ids,), {}, (ids,))
    state = state_of(module)
    with kept(tuple(state.values())):
        eager = run_traced(module, call, state)
    assert Reference(module, memory_bytes=1000).run((call,), (eager,)) == ("eager", (eager,))


def test_a_part_that_calls_itself_is_narrow_again_only_at_the_end_and_after_errors() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, dtype=torch.bfloat16))

        def forward(self, x: Tensor, again: int = 2) -> Tensor:
            if again < 0:
                raise ValueError("no more")
            return (self(x, again - 1) if again else x) * self.weight

    module = Twice()
    copied = stream(module, torch.float64, room_bytes=10_000)
    x = torch.rand(4, dtype=torch.float64)
    torch.testing.assert_close(copied(x), x * module.weight.detach().double() ** 3, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="no more"):
        copied(x, -1)
    assert copied.weight is module.weight


class OfOthersWeights(nn.Module):
    """Computes with the weights of parts that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(64, 64, bias=False)
        self.other = nn.Linear(64, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.one.weight @ self.other.weight).sum()


def test_what_computes_with_a_parameter_that_stayed_narrow_is_no_reference() -> None:
    """It would give a result in the wide type, as exact as the narrow one."""
    module = OfOthersWeights().bfloat16()
    copied = stream(module, torch.float64, room_bytes=12 * 2 * 64 * 64)
    with pytest.raises(RuntimeError, match="a parameter that is not wide"):
        copied(torch.ones(1, dtype=torch.float64))
    assert module(torch.ones(1)).dtype == torch.float32  # elsewhere nothing is guarded


def test_parts_that_are_open_within_one_another_fit_into_the_room_together() -> None:
    inner: nn.Module = nn.Identity()
    for _ in range(6):
        outer = nn.Module()
        outer.register_parameter("weight", nn.Parameter(torch.ones(1000, dtype=torch.bfloat16)))
        outer.inner = inner
        inner = outer
    # Half of it has room for any one of them, and not for all six.
    assert stream(inner, torch.float64, room_bytes=16 * 1000 + 16) is None
    assert stream(inner, torch.float64, room_bytes=2 * 6 * 8 * 1000) is not None


def test_weights_that_a_hook_of_the_module_computes_are_wide_as_well() -> None:
    module = nn.Sequential(*(torch.nn.utils.weight_norm(nn.Linear(16, 16)) for _ in range(4))).bfloat16()
    x = torch.rand(2, 16, dtype=torch.bfloat16)
    call = Call((x,), {}, (x,))
    eager = run_traced(module, call, {})
    elements = sum(tensor.numel() for tensor in module.parameters())
    whole, streamed = (Reference(module, memory_bytes=factor * elements).run((call,), (eager,)) for factor in (64, 30))
    assert whole[0] == streamed[0] == "float64"
    assert torch.equal(whole[1][0].leaves["output 0"], streamed[1][0].leaves["output 0"])


@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_weights_are_perturbed_some_at_a_time_and_where_they_lie(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.qualify.weights._AT_ONCE_CPU", 4)
    module = nn.Module()
    module.plain = nn.Parameter(torch.ones(shape))
    module.turned = nn.Parameter(torch.ones(shape).t() if len(shape) > 1 else torch.ones(14)[::2])
    module.masked = nn.Parameter(torch.tensor([-1e30, 0.5, float("-inf")] + [-0.5] * 4))
    assert perturb(module, seed=1) == 3
    for tensor in (module.plain, module.turned):
        numbers = tensor.detach().flatten().tolist()
        assert len(set(numbers)) == len(numbers)  # no part has another's numbers
        assert min(numbers) >= 0.9 and max(numbers) <= 1.15
    marker, number, infinity, *_ = module.masked.tolist()
    assert (marker, infinity) == (pytest.approx(-1e30), float("-inf")) and number != 0.5


def test_a_reference_that_would_not_fit_into_memory_is_not_made() -> None:
    module, x = Small(), torch.randn(2, 4)
    call = Call((x,), {}, (x,))
    eager = run_traced(module, call, state_of(module))
    kind, (trace,) = Reference(module, memory_bytes=100).run((call,), (eager,))
    assert (kind, trace is eager) == ("float32", True)


def test_synthetic_weights_are_the_same_bits_everywhere() -> None:
    found = synthetic_tensor("layer.weight", (2, 3), "float32", seed=1)
    assert found.tolist() == synthetic_tensor("layer.weight", (2, 3), "float32", seed=1).tolist()
    assert found.tolist() != synthetic_tensor("layer.bias", (2, 3), "float32", seed=1).tolist()
    assert found.tolist() != synthetic_tensor("layer.weight", (2, 3), "float32", seed=2).tolist()
    # Frozen: a pod of another release must draw what the proof drew.
    assert (found * 65536 / 2).round().int().tolist() == [[12731, 1460, 30853], [-18473, -8288, 1411]]


def test_synthetic_weights_are_drawn_some_at_a_time_and_no_part_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = synthetic_tensor("layer.weight", (7, 5), "bfloat16", seed=1)
    monkeypatch.setattr("aot.runtime.synthetic._AT_ONCE", 4)
    assert torch.equal(synthetic_tensor("layer.weight", (7, 5), "bfloat16", seed=1), whole)
    assert synthetic_tensor("empty", (0, 3), "float32", seed=1).shape == (0, 3)
    assert synthetic_tensor("scale", (), "float32", seed=1).shape == ()


def test_drawing_weights_keeps_to_one_thread() -> None:
    """Proofs stand beside one another on a host: threads that wait for one another made minutes of these seconds."""
    code = """
import os, torch
from aot.qualify.weights import perturb
from aot.runtime.synthetic import synthetic_tensor
torch.set_num_threads(4)
module = torch.nn.Linear(512, 512, dtype=torch.bfloat16)
before = len(os.listdir("/proc/self/task"))
synthetic_tensor("weight", (512, 512), "float32", seed=1)
perturb(module, seed=1)
drawing = len(os.listdir("/proc/self/task"))
torch.ones(1 << 20).add_(1)
print(drawing - before, len(os.listdir("/proc/self/task")) - drawing)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["0", "3"]


def test_what_several_artifacts_ask_for_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def draw(name: str, shape: tuple[int, ...], dtype: str, *, seed: int) -> torch.Tensor:
        drawn.append(name)
        return torch.full(shape, float(len(drawn)))

    monkeypatch.setattr("aot.qualify.canary.synthetic_tensor", draw)
    constants = (ConstantMeta(name="weight", kind=ConstantKind.PARAMETER, dtype="float32", shape=(2,), stride=(1,)),)
    other = (replace(constants[0], shape=(2, 1)),)
    artifacts = [
        SimpleNamespace(instances=instances, constants=asked)
        for instances, asked in ((("0", "1"), constants), (("0",), constants), (("2",), other), (("1",), constants))
    ]
    module = nn.ModuleList(nn.Module() for _ in range(3))
    for part, shape in zip(module, ((2,), (2,), (2, 1)), strict=True):
        part.weight = nn.Parameter(torch.zeros(shape))
    put_all_synthetic(module, artifacts, seed=1)  # type: ignore[arg-type]
    assert [part.weight.flatten().tolist() for part in module] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_synthetic_vectors_can_be_scales_and_variances() -> None:
    found = synthetic_tensor("norm.weight", (1000,), "bfloat16", seed=1)
    assert found.dtype == torch.bfloat16
    assert float(found.min()) >= 0.5
    assert float(found.max()) <= 1.5


def test_a_reference_that_is_eagers_own_result_is_saved_as_well(tmp_path: Path) -> None:
    trace = Trace("*", {"output 0": torch.ones(3)})
    save_traces(
        tmp_path / "0000.safetensors", eager=trace, compiled=Trace("*", {"output 0": torch.ones(3)}), reference=trace
    )
    assert compare_file(tmp_path / "0000.safetensors") == Compared(file="0000.safetensors", agrees=True)


def test_outputs_that_are_missing_or_unreadable_do_not_agree(tmp_path: Path) -> None:
    place = tmp_path / "0000.safetensors"
    trace = Trace("*", {"output 0": torch.ones(3)})
    save_traces(place, eager=trace, compiled=Trace("*", {}), reference=trace)
    assert compare_file(place).reason == "output 0: no compiled output"
    save_traces(place, eager=Trace("*", {}), compiled=Trace("*", {}), reference=Trace("*", {}))
    assert not compare_file(place).agrees
    place.write_bytes(b"\x10\0\0\0\0\0\0\0garbage")
    assert not compare_file(place).agrees
    assert not compare_file(tmp_path / "0001.safetensors").agrees
