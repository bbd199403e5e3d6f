"""Whether a compiled output is as good as eager's: a pure function over three tensors.

The default tolerances of torch.testing reject results that are *closer* to the truth than eager (fusion keeps
intermediates in float32), so a float64 reference decides where the plain comparison fails. The rule follows
`torch._dynamo.utils.same`: allclose first, else RMSE(compiled) <= k * RMSE(eager) + a small tolerance, k = 2, and 3 for
half types and for tensors of fewer than 1,000 elements. Three departures, each because `same` can hide an error:

* tolerances are relative to the output's magnitude (its root mean square), so that tiny outputs are checked as well;
* NaN and infinities must stand at the same places;
* the largest single error is bounded too: in a million elements one wrong value does not move the RMSE.

Integers and booleans must be equal.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Relative and absolute tolerance of torch.testing.assert_close, the absolute one taken relative to the magnitude.
TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
OTHER_TOLERANCE = (1.25e-1, 1e-3)  # eight-bit floats
# What the RMSE may be off whatever eager's is: `tol / 10` of `same`, relative to the magnitude.
RMSE_FLOORS = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-5, "complex64": 1e-5}
HALF_FLOOR = 1e-3
SMALL_ELEMENTS = 1000
LARGEST_FACTOR = 10.0  # of eager's largest error
LARGEST_FLOOR = 100.0  # times the RMSE floor


@dataclass(frozen=True)
class Comparison:
    """`max_error` and `eager_error`: largest absolute difference from the reference, of compiled and of eager."""

    agrees: bool
    max_error: float = 0.0
    eager_error: float = 0.0
    reason: str = ""


def compare(eager: "Tensor", compiled: "Tensor", reference: "Tensor") -> Comparison:
    """Say whether `compiled` is as good as `eager`. `reference` is the same output in a wider type, or eager's own."""
    import torch

    if eager.dtype != compiled.dtype:
        return Comparison(False, reason=f"wanted dtype {eager.dtype}, found {compiled.dtype}")
    if eager.shape != compiled.shape:
        return Comparison(False, reason=f"wanted shape {tuple(eager.shape)}, found {tuple(compiled.shape)}")
    if eager.numel() == 0:
        return Comparison(True)
    if not (eager.is_floating_point() or eager.is_complex()):
        return _compare_exactly(eager, compiled)
    name = str(eager.dtype).removeprefix("torch.")
    if eager.is_complex():
        eager, compiled, reference = (
            torch.view_as_real(one.to(torch.complex128)) for one in (eager, compiled, reference)
        )
    if reference.shape != eager.shape or not reference.is_floating_point():
        return Comparison(False, reason=f"the reference has shape {tuple(reference.shape)}, {reference.dtype}")
    return _compare_floats(name, eager.double(), compiled.double(), reference.double())


def _compare_exactly(eager: "Tensor", compiled: "Tensor") -> Comparison:
    wrong = int((eager != compiled).sum())
    if not wrong:
        return Comparison(True)
    error = float((eager.double() - compiled.double()).abs().max())
    return Comparison(False, max_error=error, reason=f"{wrong} of {eager.numel()} {eager.dtype} values differ")


def _compare_floats(name: str, eager: "Tensor", compiled: "Tensor", reference: "Tensor") -> Comparison:
    import torch

    if reason := _compare_non_finite(eager, compiled):
        return Comparison(False, reason=reason)
    # Where the reference gives nothing (a constant that float64 turns into NaN), eager's own value is the measure.
    reference = torch.where(reference.isfinite(), reference, eager)
    # Where the narrow type overflowed and the reference did not, there is no error to measure.
    finite = eager.isfinite()
    if not bool(finite.all()):
        eager, compiled, reference = eager[finite], compiled[finite], reference[finite]
        if eager.numel() == 0:
            return Comparison(True)
    rtol, atol = TOLERANCES.get(name, OTHER_TOLERANCE)
    scale = float(reference.square().mean().sqrt())
    found, base = (compiled - reference).abs(), (eager - reference).abs()
    max_error, eager_error = float(found.max()), float(base.max())
    close = (eager - compiled).abs() <= atol * scale + rtol * eager.abs()
    if bool(close.all()):
        return Comparison(True, max_error, eager_error)
    reason = _compare_errors(name, found, base, scale)
    return Comparison(not reason, max_error, eager_error, reason)


def _compare_non_finite(eager: "Tensor", compiled: "Tensor") -> str:
    for what, one, other in (
        ("NaN", eager.isnan(), compiled.isnan()),
        ("infinity", eager.isposinf(), compiled.isposinf()),
        ("negative infinity", eager.isneginf(), compiled.isneginf()),
    ):
        if not bool((one == other).all()):
            return f"{what} at {int(other.sum())} places, in eager at {int(one.sum())}"
    return ""


def _compare_errors(name: str, found: "Tensor", base: "Tensor", scale: float) -> str:
    """Compare the errors of compiled (`found`) and eager (`base`) against the reference; return what is too large."""
    small, half = found.numel() < SMALL_ELEMENTS, name not in RMSE_FLOORS
    floor = RMSE_FLOORS.get(name, HALF_FLOOR)
    if small and half:
        floor = max(floor, 2 * _epsilon(name))  # one unit in the last place of one value is no error
    factor = 3.0 if small or half else 2.0
    rmse, eager_rmse = float(found.square().mean().sqrt()), float(base.square().mean().sqrt())
    if rmse > factor * eager_rmse + floor * scale:
        return f"RMSE {rmse:.3g}, eager's is {eager_rmse:.3g}, the output's magnitude {scale:.3g}"
    largest, eager_largest = float(found.max()), float(base.max())
    if largest > LARGEST_FACTOR * eager_largest + LARGEST_FLOOR * floor * scale:
        return f"largest error {largest:.3g}, eager's is {eager_largest:.3g}, the output's magnitude {scale:.3g}"
    return ""


def _epsilon(name: str) -> float:
    import torch

    return float(torch.finfo(getattr(torch, name)).eps)
