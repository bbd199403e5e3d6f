"""What one compile works on: the whole program, or each kind of its repeated blocks, at one point of the coverage.

Between planning the points and exporting. Regions are found once; what their blocks are called with is learned at
each point anew, by running the whole program there.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.dimensions import Size
from aot.compile.program import Program
from aot.compile.region_inputs import name_sizes
from aot.compile.regions import LeftOut, capture_region_inputs, confirm_regions, survey_regions
from aot.compile.shapes import Point, measure, other_sizes, resize
from aot.schema.recipe import Regions

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One region, called as `point` says; `whole` is the point of the whole program that it belongs to.

    The whole program is the region named "" with the one instance "". `pieces` counts how often a range that was left
    over has been compiled again.
    """

    region: str
    instances: tuple[str, ...]
    module: "Module"
    point: Point
    whole: Point
    pieces: int = 0

    @property
    def label(self) -> str:
        return self.region or "whole program"


class UnitPlanner:
    """Finds the units of one program, and says in `notes` what of it stays as it is."""

    def __init__(self, program: Program, regions: Regions, *, tree: Path | None) -> None:
        self._program = program
        self._tree = tree
        survey = survey_regions(program.module) if regions is Regions.AUTO else None
        self._regions = survey.regions if survey else ()
        self.notes: dict[str, None] = {}
        if survey:
            self._note(survey.left_out)
            if not survey.regions:
                self.notes["no block repeats, so the program is compiled as a whole"] = None

    def units_at(self, whole: Point, *, instances: Collection[str] = (), pieces: int = 0) -> tuple[Unit, ...]:
        """Return the units at a point of the whole program; with `instances`, only those that stand for one of them.

        Raises SourceNotLoadable when the program does not run at a size of its own coverage.
        """
        if not self._regions:
            module = self._program.module
            return (Unit(region="", instances=("",), module=module, point=whole, whole=whole, pieces=pieces),)
        units = self._capture(whole, pieces)
        return tuple(unit for unit in units if not instances or not set(instances).isdisjoint(unit.instances))

    def _capture(self, whole: Point, pieces: int) -> tuple[Unit, ...]:
        """Run the program at `whole` and at another size of each open dimension, and see which sizes go along."""
        module = self._program.module
        at = [measure(whole.example, whole.sizes)]
        examples = [whole.example]
        if other := other_sizes(whole.ranged, at[0]):
            at.append({**at[0], **other})
            examples.append(resize(whole.example, whole.sizes, at[1]))
        captured = capture_region_inputs(module, examples, self._regions, tree=self._tree)
        captured = confirm_regions(module, captured)
        self._note(captured.left_out)
        return tuple(
            Unit(
                region=region.name,
                instances=region.instances,
                module=module.get_submodule(region.instances[0]),
                point=replace(whole, example=seen[0], sizes=_sizes_in(name_sizes(seen, at))),
                whole=whole,
                pieces=pieces,
            )
            for region, seen in captured.examples.items()
        )

    def _note(self, left_out: Collection[LeftOut]) -> None:
        for one in left_out:
            names = ", ".join(one.instances[:3]) + (" …" if len(one.instances) > 3 else "")
            self.notes[f"{names} runs as it is: {one.reason}"] = None


def _sizes_in(named: tuple[Mapping[int, str], ...]) -> tuple[Mapping[int, Size], ...]:
    return tuple({axis: Size(name) for axis, name in axes.items()} for axes in named)
