"""Inputs for a proof: other values than the build's, of the same kind, at the sizes of a point.

Runs in the numerics child. What "of the same kind" means is read off the example: token ids stay within the range that
was seen, masks stay masks, what was never negative stays so; see `draw`. Every draw is seeded.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aot.compile.shapes import lay_out_like
from aot.qualify.points import Sizes, evaluate
from aot.schema.guard import InputGuard

if TYPE_CHECKING:
    from torch import Generator, Tensor

Strides = tuple[int, ...] | None
# Beyond this a float is a marker (an additive mask's lowest value), not a quantity.
EXTREME = 1e4


def draw_all(
    flat: Sequence["Tensor"], shapes: Sequence[Sequence[int]], *, seed: int, strides: Sequence[Strides] | None = None
) -> list["Tensor"]:
    """Return a fresh tensor for each example tensor in `flat`, of the given shapes (and strides, where given)."""
    import torch

    found = []
    for index, (tensor, shape) in enumerate(zip(flat, shapes, strict=True)):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)
        values = draw(tensor, shape, generator=generator)
        found.append(lay_out(values, tensor, None if strides is None else strides[index]))
    return found


def draw(example: "Tensor", shape: Sequence[int], *, generator: "Generator") -> "Tensor":
    """Return values like `example`'s, contiguous on the CPU.

    | example                      | drawn                                                                  |
    |------------------------------|------------------------------------------------------------------------|
    | bool, or only 0 and 1        | 0 and 1, at least half of them 1, each row beginning with 1            |
    | integers                     | uniform within the example's range; sorted where the example was, and  |
    |                              | each once where it rose at every step and the range has enough of them |
    | floats                       | normal with the example's mean and deviation; absolute if none was < 0 |
    | floats with -inf or the like | the same, with that value at as many places, no row of it alone        |
    """
    import torch

    values = example.detach().cpu().flatten()
    if values.numel() == 0:
        return torch.zeros(tuple(shape), dtype=example.dtype)
    if example.dtype == torch.bool:
        return _draw_mask(values, shape, generator).bool()
    if example.is_complex():
        size = float(torch.view_as_real(values.to(torch.complex128)).square().mean().sqrt())
        drawn = torch.randn((*shape, 2), generator=generator, dtype=torch.float64) * size
        return torch.view_as_complex(drawn).to(example.dtype)
    if example.is_floating_point():
        return _draw_floats(values.double(), shape, generator).to(example.dtype)
    return _draw_integers(example.detach().cpu(), shape, generator)


def lay_out(values: "Tensor", example: "Tensor", strides: Strides) -> "Tensor":
    """Return `values` on the example's device with `strides`, or else with dimensions in the example's order."""
    import torch

    shape = tuple(values.shape)
    if strides is None:
        return lay_out_like(values, example).to(example.device)
    repeated = [size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True)]
    inner = tuple(1 if again else size for size, again in zip(shape, repeated, strict=True))
    held = torch.empty_strided(inner, strides, dtype=values.dtype, device=example.device)
    held.copy_(values[tuple(slice(0, 1) if again else slice(None) for again in repeated)])
    return held.expand(shape) if any(repeated) else held


def strides_at(guards: Sequence[InputGuard], sizes: Sizes, flat: Sequence["Tensor"]) -> list[Strides]:
    """Return the strides that the artifact's guards want of each flat input at `sizes`.

    None where they want none, and where they do not describe the example in `flat` itself: calls will come as the
    example does, and if that is a miss, the proof must see it.
    """
    found: list[Strides] = [None] * len(sizes)
    own = tuple(tuple(tensor.shape) for tensor in flat)
    for guard in guards:
        if guard.kind != "stride" or guard.input is None or guard.strides is None:
            continue
        example = flat[guard.input]
        wanted = _evaluate_all(guard.strides, own)
        held = zip(wanted, example.stride(), example.shape, strict=True)
        if all(stride == actual for stride, actual, size in held if size > 1):
            found[guard.input] = _evaluate_all(guard.strides, sizes)
    return found


def _evaluate_all(strides: Sequence[int | str], sizes: Sizes) -> tuple[int, ...]:
    return tuple(stride if isinstance(stride, int) else evaluate(stride, sizes) for stride in strides)


def replace_tensors(tree: Any, before: Sequence["Tensor"], after: Sequence["Tensor"]) -> Any:
    """Return a copy of the pytree `tree` with every tensor of `before` replaced by its successor in `after`."""
    from torch.utils._pytree import tree_map

    successors = {id(old): new for old, new in zip(before, after, strict=True)}
    return tree_map(lambda leaf: successors.get(id(leaf), leaf), tree)


def tensors_in(tree: Any) -> list["Tensor"]:
    """Return the tensors of a pytree in its own order, each once."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return list({id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}.values())


def copied(tensor: "Tensor") -> "Tensor":
    """Return equal values at equal strides in memory of their own: `clone` would close gaps."""
    return lay_out(tensor.detach(), tensor, tuple(tensor.stride()))


def spread(tensor: "Tensor") -> "Tensor":
    """Return equal values in every second element of a wider storage: the plainest non-contiguous tensor."""
    if tensor.dim() == 0 or tensor.numel() < 2:
        return tensor
    held = tensor.new_empty((*tensor.shape[:-1], tensor.shape[-1] * 2))[..., ::2]
    held.copy_(tensor)
    return held


def _draw_mask(values: "Tensor", shape: Sequence[int], generator: "Generator") -> "Tensor":
    import torch

    share = min(0.8, max(0.5, float(values.double().mean())))
    drawn = (torch.rand(tuple(shape), generator=generator) < share).double()
    if drawn.dim() and drawn.shape[-1]:
        drawn[..., 0] = 1  # a row of zeros alone makes attention divide zero by zero
    return drawn


def _draw_integers(example: "Tensor", shape: Sequence[int], generator: "Generator") -> "Tensor":
    import torch

    low, high = int(example.min()), int(example.max())
    if (low, high) in ((0, 1), (1, 1)) and example.numel() > 1:
        return _draw_mask(example.flatten(), shape, generator).to(example.dtype)
    never_falls, rises = _order_of(example) if low != high else (False, False)
    # Positions to write to: of two values for one place, a card keeps now this one, now that.
    count = shape[-1] if rises and shape[-1] <= high - low + 1 else 0
    top = high - max(0, count - 1)
    # Uniform by way of a float: `high + 1` need not fit into the type. Indices beyond 2**53 do not occur.
    unit = torch.rand(tuple(shape), generator=generator, dtype=torch.float64)
    drawn = (low + (unit * (top - low + 1)).floor()).clamp(low, top).to(example.dtype)
    drawn = drawn.sort(dim=-1).values if never_falls else drawn
    return drawn + torch.arange(count, dtype=drawn.dtype) if count else drawn


def _order_of(example: "Tensor") -> tuple[bool, bool]:
    """Whether three or more integers never fall along the last dimension, as offsets, and whether they always rise."""
    if not example.dim() or example.shape[-1] < 3:
        return False, False
    before, after = example[..., :-1], example[..., 1:]  # compared, since differences of unsigned ones do not fall
    return bool((after >= before).all()), bool((after > before).all())


def _draw_floats(values: "Tensor", shape: Sequence[int], generator: "Generator") -> "Tensor":
    import torch

    usual = values.isfinite() & (values.abs() < EXTREME)
    plain = values[usual]
    noise = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    if plain.numel() == 0:
        return noise
    low, high = float(plain.min()), float(plain.max())
    if (low, high) == (0.0, 1.0) and bool(((plain == 0) | (plain == 1)).all()):
        return _draw_mask(plain, shape, generator)
    deviation = float(plain.std(correction=0)) if low != high else 0.1 * abs(low) or 1.0
    drawn = float(plain.mean()) + deviation * noise
    if low >= 0 and high > 0:
        drawn = drawn.abs()
    extreme = values[~usual]
    if extreme.numel() and drawn.dim():
        places = torch.rand(tuple(shape), generator=generator) < extreme.numel() / values.numel()
        places[..., 0] = False
        drawn = torch.where(places, extreme[0], drawn)
    return drawn
