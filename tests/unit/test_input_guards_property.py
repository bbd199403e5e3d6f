"""The generated check holds exactly when a plain interpreter of the guards says so, over random guards and tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.runtime.guards import compile_check, find_faults
from aot.schema.artifact import TensorMeta
from aot.schema.guard import InputGuard

DTYPES = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}


def holds(guard: InputGuard, tensors: Sequence[torch.Tensor], *, weights_require_grad: bool) -> bool:
    """The interpreter: one guard by the table in aot/schema/guard.py, with none of the generator's code."""
    sizes = [tensor.shape for tensor in tensors]
    tensor = tensors[guard.input] if guard.input is not None else tensors[0]
    size = tensor.shape[guard.dim] if guard.dim is not None else 0
    match guard.kind:
        case "dtype":
            return str(tensor.dtype) == f"torch.{guard.value}"
        case "device":
            return tensor.device.type == guard.value
        case "rank":
            return tensor.dim() == guard.low
        case "size":
            return size == guard.low
        case "range":
            return size >= (guard.low or 0) and (guard.high is None or size <= guard.high)
        case "equal":
            assert guard.other is not None
            return size == tensors[guard.other[0]].shape[guard.other[1]]
        case "divisible":
            return size % (guard.low or 1) == 0
        case "expression":
            return bool(eval(guard.value or "", {"s": sizes, "max": max, "min": min}))
        case "stride":
            wanted = [eval(str(stride), {"s": sizes}) for stride in guard.strides or ()]
            return all(
                length <= 1 or stride == expected
                for length, stride, expected in zip(tensor.shape, tensor.stride(), wanted, strict=True)
            )
        case "no-grad":
            wanting = weights_require_grad or any(one.requires_grad for one in tensors)
            return not (torch.is_grad_enabled() and wanting)
    raise AssertionError(guard.kind)


def all_hold(guards: Sequence[InputGuard], tensors: Sequence[torch.Tensor], *, weights_require_grad: bool) -> bool:
    # In the order of the manifest the rank comes before what reads a size of it.
    ranks = [guard for guard in guards if guard.kind == "rank"]
    if not all(holds(guard, tensors, weights_require_grad=weights_require_grad) for guard in ranks):
        return False
    try:
        return all(holds(guard, tensors, weights_require_grad=weights_require_grad) for guard in guards)
    except ZeroDivisionError:
        return False


@dataclass
class Case:
    guards: list[InputGuard]
    tensors: list[torch.Tensor]
    weights_require_grad: bool
    grad_enabled: bool


@st.composite
def tensors(draw: st.DrawFn, rank: int, dtype: str, sizes: Sequence[int]) -> torch.Tensor:
    """A tensor near what the guards want: usually it, now and then off in one respect."""
    shape = [draw(st.sampled_from([size, size, size, size + 1, 1, 0])) for size in sizes]
    if draw(st.integers(0, 15)) == 0:
        shape = shape[:-1] if shape and draw(st.booleans()) else [*shape, 2]
    kind = DTYPES[draw(st.sampled_from([dtype] * 9 + ["float32"]))]
    layout = draw(st.sampled_from(["contiguous", "contiguous", "contiguous", "permuted", "sliced", "expanded"]))
    if layout == "sliced" and shape:
        return torch.zeros([*shape[:-1], shape[-1] + 3], dtype=kind)[..., : shape[-1]]
    if layout == "permuted" and len(shape) > 1:
        order = draw(st.permutations(range(len(shape))))
        inverse = sorted(range(len(shape)), key=lambda dim: order[dim])
        return torch.zeros([shape[dim] for dim in order], dtype=kind).permute(inverse)
    if layout == "expanded" and shape and shape[0]:
        return torch.zeros([1, *shape[1:]], dtype=kind).expand(shape)
    made = torch.zeros(shape, dtype=kind)
    return made.requires_grad_(kind.is_floating_point and draw(st.integers(0, 4)) == 0)


def expressions(terms: list[str]) -> st.SearchStrategy[str]:
    number = st.recursive(
        st.sampled_from(terms) | st.integers(0, 9).map(str),
        lambda inner: (
            st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
                lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
            )
            | st.tuples(inner, inner).map(lambda parts: f"max({parts[0]}, {parts[1]})")
        ),
        max_leaves=4,
    )
    compare = st.tuples(number, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), number).map(" ".join)
    return compare | st.tuples(compare, st.sampled_from([" and ", " or "]), compare).map("".join)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    guards: list[InputGuard] = []
    made: list[torch.Tensor] = []
    shapes = draw(st.lists(st.lists(st.integers(1, 6), max_size=3), min_size=1, max_size=3))
    for position, sizes in enumerate(shapes):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        guards += [
            InputGuard(kind="dtype", input=position, value=dtype),
            InputGuard(kind="device", input=position, value="cpu"),
            InputGuard(kind="rank", input=position, low=len(sizes)),
        ]
        strides: list[int | str] = [1]
        for dim, size in enumerate(sizes):
            guards.append(draw(size_guards(position, dim, size, shapes)))
        for dim in range(len(sizes) - 1, 0, -1):
            fixed = draw(st.booleans())
            below = strides[0]
            strides.insert(
                0, below * sizes[dim] if fixed and isinstance(below, int) else f"s[{position}][{dim}] * {below}"
            )
        guards.append(InputGuard(kind="stride", input=position, strides=tuple(strides[: len(sizes)])))
        made.append(draw(tensors(len(sizes), dtype, sizes)))
    terms = [f"s[{position}][{dim}]" for position, sizes in enumerate(shapes) for dim in range(len(sizes))]
    if terms:
        texts = draw(st.lists(expressions(terms), max_size=2))
        guards += [InputGuard(kind="expression", value=text) for text in texts]
    if draw(st.booleans()):
        guards.append(InputGuard(kind="no-grad"))
    return Case(draw(st.permutations(guards)), made, draw(st.booleans()), draw(st.booleans()))


@st.composite
def size_guards(draw: st.DrawFn, position: int, dim: int, size: int, shapes: Sequence[Sequence[int]]) -> InputGuard:
    others = [
        (i, d)
        for i, sizes in enumerate(shapes)
        for d, other in enumerate(sizes)
        if other == size and (i, d) != (position, dim)
    ]
    match draw(st.integers(0, 3)):
        case 0:
            return InputGuard(kind="size", input=position, dim=dim, low=size)
        case 1 if others:
            return InputGuard(kind="equal", input=position, dim=dim, other=draw(st.sampled_from(others)))
        case 2:
            return InputGuard(kind="range", input=position, dim=dim, low=draw(st.integers(0, size)))
    high = draw(st.integers(size, size + 2))
    return InputGuard(kind="range", input=position, dim=dim, low=draw(st.integers(0, size)), high=high)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_the_check_agrees_with_a_plain_interpreter(case: Case) -> None:
    metas = [TensorMeta(path=f"args[{i}]", dtype="", shape=()) for i in range(len(case.tensors))]
    assert find_faults(case.guards, metas) == ()
    check = compile_check(case.guards, metas, weights_require_grad=case.weights_require_grad)
    with torch.set_grad_enabled(case.grad_enabled):
        expected = all_hold(case.guards, case.tensors, weights_require_grad=case.weights_require_grad)
        said = check(case.tensors)
    assert (said is None) == expected, said


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_another_dtype_of_any_one_input_is_always_a_miss(case: Case) -> None:
    metas = [TensorMeta(path=f"args[{i}]", dtype="", shape=()) for i in range(len(case.tensors))]
    check = compile_check(case.guards, metas)
    with torch.no_grad():
        for position, tensor in enumerate(case.tensors):
            said = check([*case.tensors[:position], tensor.to(torch.float64), *case.tensors[position + 1 :]])
            assert said is not None
