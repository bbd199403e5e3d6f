"""The program under proof, and calls of it at any point of a coverage. Runs in the numerics child."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from aot.compile.program import Program
from aot.compile.shapes import locate, measure, resize
from aot.errors import QualificationFailed
from aot.qualify.inputs import draw_all, replace_tensors, spread, strides_at, tensors_in
from aot.qualify.points import Point, Sizes, dimensions_of, points_of
from aot.runtime.calling import bind_call
from aot.schema.artifact import Artifact
from aot.schema.guard import InputGuard

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


@dataclass(frozen=True)
class Call:
    """What the module is called with once; `tensors` are those among its arguments that a proof draws."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple["Tensor", ...]


@dataclass(frozen=True)
class Group:
    """Artifacts that are loaded together: one whole program, or the regions of one coverage."""

    indices: tuple[int, ...]
    artifacts: tuple[Artifact, ...]

    @property
    def first(self) -> Artifact:
        return self.artifacts[0]

    @property
    def whole(self) -> bool:
        return self.first.instances == ("",)


def groups_of(artifacts: Sequence[Artifact]) -> tuple[Group, ...]:
    """Return every coverage as its own group, so that one artifact cannot answer in place of another."""
    found: dict[object, list[int]] = {}
    for index, artifact in enumerate(artifacts):
        whole = artifact.instances == ("",)
        found.setdefault(index if whole else repr(artifact.coverage), []).append(index)
    return tuple(Group(tuple(indices), tuple(artifacts[index] for index in indices)) for indices in found.values())


class Subject:
    """A program's example for one group, and how inputs of other sizes are made from it."""

    def __init__(self, program: Program, group: Group) -> None:
        self.module = program.module
        self.group = group
        self._example = program.examples[group.first.coverage.example]
        self._axes = locate(program, group.first.coverage.example)
        self._flatten = _flattener(program.module, group.first) if group.whole else tensors_in
        self._guards: tuple[InputGuard, ...] = group.first.input_guards if group.whole else ()
        self._flat = tuple(self._flatten((self._example.args, dict(self._example.kwargs))))
        self._unnamed = self._find_unnamed()

    def points(self) -> tuple[Point, ...]:
        """Return the boundary points of the group's coverage and its example's own, the smallest first."""
        unnamed = {name: size for name, size, _ in self._unnamed}
        example = {**unnamed, **measure(self._example, self._axes)}
        found = dimensions_of(self.group.first, unnamed)
        return points_of(found, sizes_at=self.sizes_at, guards=self._guards, example=example)

    def sizes_at(self, point: Point) -> Sizes:
        """Return the shapes of the flat inputs at `point`."""
        resized = resize(self._example, self._axes, point)
        shapes = [list(tensor.shape) for tensor in self._flatten((resized.args, dict(resized.kwargs)))]
        for name, _, (position, dim) in self._unnamed:
            shapes[position][dim] = point.get(name, shapes[position][dim])
        return tuple(map(tuple, shapes))

    def call_at(self, point: Point, *, seed: int, non_contiguous: bool = False) -> Call:
        """Return a call with fresh values at `point`; equal seeds give equal values, whatever their layout."""
        sizes = self.sizes_at(point)
        drawn = draw_all(self._flat, sizes, seed=seed, strides=strides_at(self._guards, sizes, self._flat))
        drawn = [spread(tensor) for tensor in drawn] if non_contiguous else drawn
        args, kwargs = replace_tensors((self._example.args, dict(self._example.kwargs)), self._flat, drawn)
        return Call(args, kwargs, tuple(drawn))

    def elements_at(self, point: Point) -> int:
        """Return how many elements all inputs have together: what the cost of a call is scaled by."""
        return max(1, sum(prod(shape) for shape in self.sizes_at(point)))

    def _find_unnamed(self) -> tuple[tuple[str, int, tuple[int, int]], ...]:
        """Return symbols that no dimension names, with their size in the example and where they stand."""
        named = {one.name for one in self.group.first.coverage.dimensions}
        return tuple(
            (size, self._flat[position].shape[dim], (position, dim))
            for position, meta in enumerate(self.group.first.inputs if self.group.whole else ())
            for dim, size in enumerate(meta.shape)
            if isinstance(size, str) and size.isidentifier() and size not in named
        )


@contextmanager
def uncompiled(module: "Module", group: Group) -> Iterator[None]:
    """Let the module run as it was written while regions are loaded: their instances then have a `forward` of ours."""
    parts = [module.get_submodule(name) for one in group.artifacts for name in one.instances if name]
    held = [(part.__dict__, part.__dict__.pop("forward")) for part in parts if "forward" in part.__dict__]
    try:
        yield
    finally:
        for table, forward in held:
            table["forward"] = forward


def signature_of(module: "Module") -> inspect.Signature:
    """Return the signature of the module's own forward, without `self`."""
    signature = inspect.signature(type(module).forward)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _flattener(module: "Module", artifact: Artifact) -> Any:
    if artifact.call is None:
        raise QualificationFailed("the artifact records no call", hint="build it again")
    bound = bind_call(artifact.call, signature_of(module))

    def flatten(call: tuple[Any, Any]) -> Sequence["Tensor"]:
        found = bound.flatten(*call)
        if isinstance(found, str):
            raise QualificationFailed(
                f"the artifact does not take the source's own example: {found}",
                hint="build the bundle again from this source",
            )
        return found

    return flatten
