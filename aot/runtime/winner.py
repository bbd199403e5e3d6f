"""Whether compiled code, a CUDA graph of it, or eager was fastest in the proof, for the sizes of one call.

A proof measures a coverage at a few points, and either side may win at each: compiled code that is twice as fast at
batch 1 can be slower at batch 64. So a call follows the measured point that its sizes are nearest to. Distances are
ratios (batch 16 lies in the middle between 4 and 64), added up over the dimensions; between two points equally near,
eager is taken, which is never slower than what the user had.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from aot.schema.artifact import Artifact, Speed, TensorMeta, Winner

if TYPE_CHECKING:
    from torch import Tensor

Choose = Callable[[Sequence["Tensor"]], Winner]

# A fact of an artifact: what `captures_graphs` of its builder said.
GRAPHS_FACT = "cuda_graphs"

# Decisions that one artifact remembers. A server may be sent every length.
MOST_REMEMBERED = 1024


def asks_for_graphs(artifact: Artifact) -> bool:
    """Whether calls may be replayed as CUDA graphs: the recipe's mode says so, and its proof does not deny it."""
    if artifact.facts.get(GRAPHS_FACT) != "capture":
        return False
    return not artifact.speeds or any(speed.winner is Winner.GRAPHS for speed in artifact.speeds)


def choose_of(artifact: Artifact) -> Choose | None:
    """Return what was fastest, for flat inputs within the artifact's coverage; None where compiled code always was.

    An artifact that asks for graphs and has no proof yet runs by them: that is what is to be proven.
    """
    winners = {speed.winner for speed in artifact.speeds} or {_without_proof(artifact)}
    if winners == {Winner.COMPILED}:
        return None
    if len(winners) == 1:
        (winner,) = winners
        return lambda tensors: winner
    places = _places_of(artifact.inputs, artifact.speeds[0].point)
    names = tuple(places)
    read = tuple(places.values())
    remembered: dict[tuple[int, ...], Winner] = {}

    def choose(tensors: Sequence["Tensor"]) -> Winner:
        sizes = tuple([tensors[index].shape[dim] for index, dim in read])
        known = remembered.get(sizes)
        if known is not None:
            return known
        wins = nearest(dict(zip(names, sizes, strict=True)), artifact.speeds).winner
        if len(remembered) < MOST_REMEMBERED:
            remembered[sizes] = wins
        return wins

    return choose


def nearest(sizes: Mapping[str, int], speeds: Sequence[Speed]) -> Speed:
    """Return the speed at the point nearest to `sizes`, of which there is at least one; eager's wins come first."""
    return min(speeds, key=lambda speed: (_distance(sizes, speed.point), speed.winner is not Winner.EAGER))


def _distance(sizes: Mapping[str, int], point: Mapping[str, int]) -> float:
    ratios = (abs(math.log(max(size, 1)) - math.log(max(point.get(name, size), 1))) for name, size in sizes.items())
    # Rounded, so that what is equally far by arithmetic is not decided by its last bit.
    return round(sum(ratios), 9)


def _places_of(inputs: Sequence[TensorMeta], point: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return where each dimension of `point` can be read: an input and its dimension."""
    places: dict[str, tuple[int, int]] = {}
    for index, meta in enumerate(inputs):
        for dim, size in enumerate(meta.shape):
            if isinstance(size, str) and size in point:
                places.setdefault(size, (index, dim))
    return places


def _without_proof(artifact: Artifact) -> Winner:
    if artifact.winner is Winner.COMPILED and asks_for_graphs(artifact):
        return Winner.GRAPHS
    return artifact.winner
