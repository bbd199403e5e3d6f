"""The generated check: what it lets pass, what it says of the rest, what it refuses to be made from, and its cost."""

import timeit
from collections.abc import Sequence
from inspect import signature
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from aot.errors import BindingFailed
from aot.runtime.argument_names import speaker
from aot.runtime.guards import Check, compile_check, find_faults
from aot.schema.artifact import TensorMeta
from aot.schema.guard import InputGuard

BATCH = InputGuard(kind="range", input=0, dim=0, low=2, high=32)


def a_form(
    position: int, sizes: Sequence[InputGuard], strides: tuple[int | str, ...], *, dtype: str = "float32"
) -> list[InputGuard]:
    """The guards of one CPU input."""
    return [
        InputGuard(kind="dtype", input=position, value=dtype),
        InputGuard(kind="device", input=position, value="cpu"),
        InputGuard(kind="rank", input=position, low=len(strides)),
        *sizes,
        InputGuard(kind="stride", input=position, strides=strides),
    ]


def a_matrix(*more: InputGuard, batch: InputGuard = BATCH, dtype: str = "float32") -> list[InputGuard]:
    """The guards of `args[0]`: a contiguous matrix of a batch in 2..32 and width 16."""
    width = InputGuard(kind="size", input=0, dim=1, low=16)
    return [*a_form(0, (batch, width), ("s[0][1]", 1), dtype=dtype), *more]


def a_meta(*paths: str) -> list[TensorMeta]:
    return [TensorMeta(path=path, dtype="float32", shape=()) for path in paths]


def a_check(guards: Sequence[InputGuard], *paths: str, **options: bool) -> Check:
    return compile_check(guards, a_meta(*(paths or ("args[0]",))), **options)


def test_a_call_within_every_guard_is_accepted() -> None:
    assert a_check(a_matrix())([torch.zeros(4, 16)]) is None


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(4, 16, dtype=torch.float64), "args[0]: dtype float64, wanted float32"),
        (torch.zeros(4, 16, 1), "args[0]: 3 dimension(s), wanted 2"),
        (torch.zeros(4, 17), "args[0]: size 17 in dimension 1, wanted 16"),
        (torch.zeros(1, 16), "args[0]: size 1 in dimension 0, wanted 2 to 32"),
        (torch.zeros(33, 16), "args[0]: size 33 in dimension 0, wanted 2 to 32"),
        (torch.zeros(16, 4).t(), "args[0]: strides (1, 4) at sizes (4, 16), wanted (args[0].size(1), 1)"),
        (torch.zeros(4, 20)[:, :16], "args[0]: strides (20, 1) at sizes (4, 16), wanted (args[0].size(1), 1)"),
        (torch.zeros(4, 16, device="meta"), "args[0]: on meta, wanted cpu"),
        (torch.zeros(4, 16).to_sparse(), "args[0]: layout sparse_coo, wanted strided"),
        (torch.zeros(4, 16).to_mkldnn(), "args[0]: layout _mkldnn, wanted strided"),
    ],
)
def test_a_miss_names_input_condition_and_what_was_found(tensor: torch.Tensor, said: str) -> None:
    assert a_check(a_matrix())([tensor]) == said


def test_a_wrong_number_of_inputs_is_a_miss() -> None:
    check = a_check(a_matrix())
    assert check([]) == "0 tensor input(s), wanted 1"
    assert check([torch.zeros(4, 16)] * 2) == "2 tensor input(s), wanted 1"


def test_a_program_without_tensor_inputs_is_checked_too() -> None:
    check = compile_check([InputGuard(kind="no-grad")], [])
    assert check(()) is None
    assert check((torch.zeros(1),)) == "1 tensor input(s), wanted 0"


def test_an_equal_guard_names_both_inputs() -> None:
    other = a_form(1, [InputGuard(kind="equal", input=1, dim=0, other=(0, 0))], (1,))
    check = a_check([*a_matrix(), *other], "args[0]", "kwargs['mask']")
    assert check([torch.zeros(4, 16), torch.zeros(4)]) is None
    said = "kwargs['mask']: size 1 in dimension 0, wanted 4 as in dimension 0 of args[0]"
    assert check([torch.zeros(4, 16), torch.zeros(1)]) == said


def test_what_is_said_has_the_names_of_the_callers_parameters() -> None:
    def forward(tokens, *, mask=None): ...

    equal = InputGuard(kind="equal", input=1, dim=0, other=(0, 0))
    bounded = InputGuard(kind="expression", value="s[0][0] * 2 <= s[1][1]")
    guards = [
        *a_matrix(),
        *a_form(1, [equal, InputGuard(kind="range", input=1, dim=1, low=2)], ("s[1][1]", 1)),
        bounded,
    ]
    check = compile_check(guards, a_meta("args[0]", "kwargs['mask']"), speak=speaker(signature(forward)))
    assert check([torch.zeros(33, 16), torch.zeros(33, 99)]) == "tokens: size 33 in dimension 0, wanted 2 to 32"
    said = "mask: size 5 in dimension 0, wanted 4 as in dimension 0 of tokens"
    assert check([torch.zeros(4, 16), torch.zeros(5, 8)]) == said
    said = "wanted tokens.size(0) * 2 <= mask.size(1), found 4, 7"
    assert check([torch.zeros(4, 16), torch.zeros(4, 7)]) == said


def test_divisible_and_open_ended_ranges() -> None:
    open_ended = InputGuard(kind="range", input=0, dim=0, low=8)
    check = a_check(a_matrix(InputGuard(kind="divisible", input=0, dim=0, low=8), batch=open_ended))
    assert check([torch.zeros(4096, 16)]) is None
    assert check([torch.zeros(7, 16)]) == "args[0]: size 7 in dimension 0, wanted at least 8"
    assert check([torch.zeros(12, 16)]) == "args[0]: size 12 in dimension 0, wanted a multiple of 8"


def test_an_expression_is_told_with_the_inputs_own_names() -> None:
    check = a_check(a_matrix(InputGuard(kind="expression", value="s[0][0] * 2 <= s[0][1] or s[0][0] == 10")))
    assert check([torch.zeros(8, 16)]) is None
    assert check([torch.zeros(10, 16)]) is None
    assert check([torch.zeros(9, 16)]) == (
        "wanted args[0].size(0) * 2 <= args[0].size(1) or args[0].size(0) == 10, found 9, 16"
    )


def test_an_expression_that_divides_by_zero_is_a_miss() -> None:
    empty = InputGuard(kind="range", input=0, dim=0, low=0)
    check = a_check(a_matrix(InputGuard(kind="expression", value="s[0][1] % s[0][0] == 0"), batch=empty))
    assert check([torch.zeros(4, 16)]) is None
    assert "ZeroDivisionError" in (check([torch.zeros(0, 16)]) or "")


def test_a_dimension_of_one_element_has_no_stride_to_compare() -> None:
    single = a_check(a_form(0, [InputGuard(kind="size", input=0, dim=0, low=1), BATCH_1], ("s[0][1]", 1)))
    odd = torch.zeros(8, 1).t()
    assert odd.stride() == (1, 1) and odd.is_contiguous()
    assert single([odd]) is None
    ranged = a_check(a_matrix(batch=InputGuard(kind="range", input=0, dim=0, low=1, high=32)))
    assert ranged([torch.zeros(16, 1).t()]) is None
    assert ranged([torch.zeros(16, 2).t()]) is not None


BATCH_1 = InputGuard(kind="range", input=0, dim=1, low=1)


class Tagged(torch.Tensor):
    pass


def test_tensor_subclasses_are_a_miss_and_parameters_are_not() -> None:
    check = a_check(a_matrix())
    assert check([torch.zeros(4, 16).as_subclass(Tagged)]) == "args[0]: a Tagged, wanted a plain tensor"
    with torch.no_grad():
        assert check([torch.nn.Parameter(torch.zeros(4, 16))]) is None
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert check([torch.zeros(4, 16)]) == "args[0]: a FakeTensor, wanted a plain tensor"


def test_memory_that_is_not_the_value_is_a_miss() -> None:
    check = a_check(a_matrix())
    assert check([torch._neg_view(torch.zeros(4, 16))]) is not None
    assert check([torch._efficientzerotensor(4, 16)]) is not None
    assert check([torch.nested.nested_tensor([torch.zeros(16), torch.zeros(16)])]) is not None
    seen: list[str | None] = []
    torch.vmap(lambda row: (seen.append(check([row])), row)[1])(torch.zeros(3, 4, 16))
    assert seen[0] is not None and "FuncTorchBatched" in seen[0]


def test_tensors_made_in_inference_mode_are_plain() -> None:
    check = a_check(a_matrix(InputGuard(kind="no-grad")))
    with torch.inference_mode():
        made = torch.zeros(4, 16)
        assert check([made]) is None
        assert check([made[:2]]) is None
    assert check([made]) is None


def test_a_check_can_be_made_in_inference_mode() -> None:
    with torch.inference_mode():
        check = a_check(a_matrix())
    assert check([torch.zeros(4, 16)]) is None


def test_instances_of_a_region_share_a_check_and_other_devices_or_names_do_not() -> None:
    check = a_check(a_matrix())
    assert a_check(a_matrix()) is check
    assert a_check(a_matrix(), "other") is not check
    assert a_check(a_matrix(), weights_require_grad=True) is not check
    assert compile_check(a_matrix(), a_meta("args[0]"), device="meta") is not check


def test_a_check_that_was_made_under_a_transform_is_not_that_of_a_later_load() -> None:
    guards = a_matrix(InputGuard(kind="size", input=0, dim=0, low=3))
    made: list[Any] = []

    def transformed(tensor: torch.Tensor) -> torch.Tensor:
        made.append(a_check(guards))
        return tensor

    torch.func.functionalize(transformed)(torch.zeros(2))
    assert made and a_check(guards)([torch.zeros(3, 16)]) is None


def test_guards_that_contradict_each_other_refuse_every_call() -> None:
    check = a_check(a_matrix(InputGuard(kind="size", input=0, dim=1, low=17)))
    assert check([torch.zeros(4, 16)]) == "args[0]: size 16 in dimension 1, wanted 17"
    assert check([torch.zeros(4, 17)]) == "args[0]: size 17 in dimension 1, wanted 16"


@pytest.mark.parametrize("inference", [False, True])
def test_what_has_no_strides_is_a_miss_and_not_the_end_of_the_process(inference: bool) -> None:
    check = a_check(a_matrix())
    with torch.inference_mode(inference):
        nested = torch.nested.nested_tensor([torch.zeros(16), torch.zeros(16)])
        for tensor in (nested, torch.zeros(4, 16).to_sparse(), torch.zeros(4, 16).to_mkldnn()):
            assert check([tensor]) is not None


def test_the_same_tensor_may_be_given_twice() -> None:
    other = a_form(1, [InputGuard(kind="equal", input=1, dim=0, other=(0, 0)), WIDTH_1], ("s[1][1]", 1))
    check = a_check([*a_matrix(), *other], "x", "y")
    both = torch.zeros(4, 16)
    assert check([both, both]) is None


WIDTH_1 = InputGuard(kind="size", input=1, dim=1, low=16)


def test_recording_gradients_of_inputs_is_a_miss() -> None:
    check = a_check(a_matrix(InputGuard(kind="no-grad")))
    wanting = torch.zeros(4, 16, requires_grad=True)
    assert check([torch.zeros(4, 16)]) is None
    said = "gradients are being recorded for args[0]; compiled code computes none (use torch.no_grad())"
    assert check([wanting]) == said
    with torch.no_grad():
        assert check([wanting]) is None


def test_recording_gradients_of_weights_is_a_miss() -> None:
    check = a_check(a_matrix(InputGuard(kind="no-grad")), weights_require_grad=True)
    said = "gradients are being recorded for the weights; compiled code computes none (use torch.no_grad())"
    assert check([torch.zeros(4, 16)]) == said
    with torch.inference_mode():
        assert check([torch.zeros(4, 16)]) is None


def test_forward_mode_derivatives_are_a_miss() -> None:
    check = a_check(a_matrix(InputGuard(kind="no-grad")))
    with torch.no_grad(), forward_ad.dual_level():
        assert check([forward_ad.make_dual(torch.zeros(4, 16), torch.ones(4, 16))]) is not None


def test_autocast_is_a_miss() -> None:
    check = a_check(a_matrix(InputGuard(kind="no-autocast")))
    assert check([torch.zeros(4, 16)]) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check([torch.zeros(4, 16)]) == "autocast is on; the program was compiled without it"


def test_an_input_that_is_written_must_not_share_memory() -> None:
    batch, width = BATCH, InputGuard(kind="size", input=0, dim=1, low=16)
    second = a_form(1, [InputGuard(kind="size", input=1, dim=0, low=16)], (1,))
    guards = [*a_form(0, (batch, width), (16, 1)), *second, InputGuard(kind="apart", input=0)]
    check = a_check(guards, "args[0]", "args[1]")
    slab = torch.zeros(6, 16)
    assert check([slab[:4], slab[4]]) is None
    assert check([slab[:4], slab[3]]) == "args[0]: shares memory with another input, and the program writes into it"
    assert check([torch.zeros(4, 16), torch.zeros(16)]) is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ([InputGuard(kind="moon-phase")], "input guard 'moon-phase' is not known to this version of aot"),
        ([InputGuard(kind="size", input=0, dim=0)], "a size guard lacks low"),
        ([InputGuard(kind="size", input=0, dim=0, low=3, high=4)], "a size guard has high, which no such guard has"),
        ([InputGuard(kind="size", input=1, dim=0, low=3)], "a size guard is about input 1 of 1"),
        ([InputGuard(kind="size", input=0, dim=2, low=3)], "a size guard is about dimension 2 of args[0]"),
        ([InputGuard(kind="equal", input=0, dim=0, other=(0, 5))], "an equal guard compares with s[0][5]"),
        ([InputGuard(kind="divisible", input=0, dim=0, low=0)], "a divisible guard asks for a multiple of 0"),
        ([InputGuard(kind="dtype", input=0, value="float32")], "args[0] has two dtype guards"),
        ([InputGuard(kind="expression", value="s[0][0] + 1")], "the expression 's[0][0] + 1' is not a condition"),
        ([InputGuard(kind="device", input=0, value="cpu: boom")], "a device guard does not name a device type"),
    ],
)
def test_guards_that_cannot_be_checked_are_faults(change: list[InputGuard], fault: str) -> None:
    guards = [*a_matrix(), *change]
    assert fault in find_faults(guards, a_meta("args[0]"))
    with pytest.raises(BindingFailed) as caught:
        a_check(guards)
    assert fault in caught.value.details["reasons"]


@pytest.mark.parametrize("kind", ["dtype", "device", "rank", "stride"])
def test_what_is_not_constrained_is_not_accepted(kind: str) -> None:
    guards = [guard for guard in a_matrix() if guard.kind != kind]
    assert f"args[0] has no {kind} guard" in find_faults(guards, a_meta("args[0]"))


def test_a_dimension_that_no_guard_is_about_is_a_fault() -> None:
    guards = [guard for guard in a_matrix() if guard.kind != "range"]
    assert find_faults(guards, a_meta("args[0]")) == ("no guard is about dimension 0 of args[0]",)


def test_names_that_torch_does_not_have_are_faults() -> None:
    for guards in (a_matrix(dtype="float12"), a_matrix(dtype="nn"), a_matrix(dtype="load")):
        with pytest.raises(BindingFailed, match="no dtype"):
            a_check(guards)
    cuda = [InputGuard(kind=g.kind, input=0, value="cuda") if g.kind == "device" else g for g in a_matrix()]
    with pytest.raises(BindingFailed, match="inputs on cuda, the weights are on cpu"):
        a_check(cuda)


@pytest.mark.parametrize(("inputs", "budget_us"), [(2, 3.0), (8, 8.0)])
def test_all_checks_together_keep_their_budget(inputs: int, budget_us: float) -> None:
    guards: list[InputGuard] = []
    for position in range(inputs):
        batch = InputGuard(kind="range", input=position, dim=0, low=1, high=32)
        if position:
            batch = InputGuard(kind="equal", input=position, dim=0, other=(0, 0))
        length = InputGuard(kind="range", input=position, dim=1, low=1, high=512)
        width = InputGuard(kind="size", input=position, dim=2, low=16)
        guards += a_form(position, (batch, length, width), (f"16 * s[{position}][1]", 16, 1))
    guards += [InputGuard(kind="no-autocast"), InputGuard(kind="no-grad")]
    check = a_check(guards, *(f"args[{position}]" for position in range(inputs)))
    tensors = [torch.zeros(4, 6, 16) for _ in range(inputs)]
    assert check(tensors) is None
    # The best of many short rounds: what it costs when nothing else has the core. The budget is for a machine on
    # which reading strides takes 0.07 us; a slower one gets as much more.
    best = min(timeit.repeat(lambda: check(tensors), number=500, repeat=60)) / 500
    strides = min(timeit.repeat(tensors[0].stride, number=500, repeat=60)) / 500
    assert best * 1e6 <= budget_us * max(1.0, strides / 0.07e-6)
