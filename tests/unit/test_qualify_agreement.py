"""When a compiled output is as good as eager's."""

import pytest
import torch
from torch import Tensor

from aot.qualify.agreement import Comparison, compare

SHAPE = (64, 256)


def a_reference(scale: float = 1.0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * scale


def noise(seed: int, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equal_outputs_agree() -> None:
    one = a_reference().float()
    found = compare(one, one.clone(), one.double())
    assert found == Comparison(True, 0.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_a_shift_of_every_sixteenth_column_is_found_at_any_magnitude(dtype: torch.dtype, scale: float) -> None:
    reference = a_reference(1.0)
    wrong = reference.clone()
    wrong[:, ::16] += 0.5
    found = compare((reference * scale).to(dtype), (wrong * scale).to(dtype), reference * scale)
    assert not found.agrees
    assert "RMSE" in found.reason


def test_the_rule_finds_what_the_borrowed_one_would_hide_in_tiny_outputs() -> None:
    from torch._dynamo.utils import same

    reference = a_reference() * 1e-6
    wrong = reference.clone()
    wrong[:, ::16] += 0.5e-6
    assert same(reference.float(), wrong.float(), fp64_ref=reference, tol=1e-3)
    assert not compare(reference.float(), wrong.float(), reference).agrees


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_fused_half_result_that_is_closer_to_the_truth_agrees(dtype: torch.dtype) -> None:
    reference = a_reference()
    eager = (reference + noise(2) * 0.02).to(dtype)  # rounded at every step
    fused = (reference + noise(3) * 0.004).to(dtype)  # rounded once
    with pytest.raises(AssertionError):
        torch.testing.assert_close(fused, eager)
    found = compare(eager, fused, reference)
    assert found.agrees
    assert found.max_error < found.eager_error


def test_float32_rounding_in_another_order_agrees() -> None:
    left, right = noise(4, (256, 512)), noise(5, (512, 256))
    reference = left @ right
    eager = left.float() @ right.float()
    other = sum(left[:, k : k + 32].float() @ right[k : k + 32].float() for k in range(0, 512, 32))
    assert isinstance(other, Tensor)
    assert compare(eager, other, reference).agrees


def test_an_error_far_above_eagers_does_not_agree() -> None:
    reference = a_reference()
    eager = (reference + noise(6) * 1e-6).float()
    assert not compare(eager, (reference + noise(7) * 1e-3).float(), reference).agrees


def test_one_wrong_value_among_a_million_is_found() -> None:
    reference = a_reference(shape=(1000, 1000))
    eager = (reference + noise(8, (1000, 1000)) * 5e-3).bfloat16()
    wrong = eager.clone()
    wrong[17, 23] += 2.0
    found = compare(eager, wrong, reference)
    assert not found.agrees
    assert "largest error" in found.reason


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_must_stand_at_the_same_places(value: float) -> None:
    eager = a_reference().float()
    eager[3, 5] = value
    assert compare(eager, eager.clone(), eager.double()).agrees
    moved = a_reference().float()
    moved[3, 6] = value
    assert not compare(eager, moved, eager.double()).agrees
    assert not compare(a_reference().float(), eager, a_reference()).agrees


def test_outputs_that_are_nan_throughout_agree_with_themselves() -> None:
    nothing = torch.full((4, 4), float("nan"))
    assert compare(nothing, nothing.clone(), nothing.double()).agrees


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_integers_and_booleans_are_compared_exactly(dtype: torch.dtype) -> None:
    eager = (a_reference() > 0).to(dtype)
    assert compare(eager, eager.clone(), eager).agrees
    wrong = eager.clone()
    wrong[0, 0] = 1 - int(wrong[0, 0])
    found = compare(eager, wrong, eager)
    assert not found.agrees
    assert found.reason.startswith("1 of ")


def test_another_dtype_or_shape_does_not_agree() -> None:
    eager = a_reference().float()
    assert "dtype" in compare(eager, eager.double(), eager.double()).reason
    assert "shape" in compare(eager, eager[:1], eager.double()).reason


def test_empty_outputs_agree() -> None:
    empty = torch.empty(0, 4)
    assert compare(empty, empty.clone(), empty).agrees


def test_zeros_must_stay_zeros() -> None:
    zeros = torch.zeros(8, 8)
    assert compare(zeros, zeros.clone(), zeros.double()).agrees
    assert not compare(zeros, zeros + 1e-4, zeros.double()).agrees


def test_one_half_precision_value_may_be_off_by_a_unit_in_the_last_place() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        eager = torch.tensor([1.0], dtype=dtype)
        one_off = torch.nextafter(eager, torch.tensor([2.0], dtype=dtype))
        assert compare(eager, one_off, torch.tensor([1.0], dtype=torch.float64)).agrees
        assert not compare(eager, eager + 0.25, torch.tensor([1.0], dtype=torch.float64)).agrees


def test_complex_outputs_are_compared_by_their_parts() -> None:
    reference = torch.complex(a_reference(), noise(9))
    eager = reference.to(torch.complex64)
    assert compare(eager, eager.clone(), reference).agrees
    wrong = eager.clone()
    wrong[:, ::16] += 0.5j
    assert not compare(eager, wrong, reference).agrees


def test_without_a_wider_reference_eager_itself_is_the_measure() -> None:
    eager = a_reference().float()
    assert compare(eager, (eager.double() + noise(3) * 1e-6).float(), eager).agrees
    assert not compare(eager, (eager.double() + noise(3) * 1e-3).float(), eager).agrees


def test_where_the_reference_is_not_finite_eager_is_the_measure() -> None:
    eager, wrong = a_reference().float(), a_reference().float()
    wrong[0, 0] += 99.0
    nothing = torch.full(SHAPE, float("nan"), dtype=torch.float64)
    assert compare(eager, eager.clone(), nothing).agrees
    assert not compare(eager, wrong, nothing).agrees
    partly = a_reference()
    partly[0, 0] = float("inf")
    assert not compare(eager, wrong, partly).agrees
