"""What one run used of what was restored, and what it compiled all the same: counted from outside, from files.

A graph counts as found when its entry was opened and nothing new was written beside it: torch writes a new one where
no entry's guards held. What was compiled are new files of machine code. Nothing is read from the program itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.capture.collect import repeats
from aot.capture.entries import Kind, graph_of, graphs_of, kind_of
from aot.capture.units import unit_of

_CODE = (".so", ".cubin", ".hsaco")
_SOURCES = (".cpp", ".ttir")


@dataclass(frozen=True)
class Account:
    """Of one run. `found` is None where opened files could not be watched; then new files alone tell."""

    restored: int  # graphs of the bundle
    found: int | None  # of these
    compiled: int  # graphs
    files: int  # new files of machine code
    compiler_seconds: float  # between the source of each and its code, overlaps once
    seconds: float
    saved_seconds: float | None = None  # what the capture measured: its first run against its second
    earlier: int = 0  # graphs found that earlier runs on this node had compiled

    @property
    def graphs(self) -> int:
        return (self.found or 0) + self.earlier + self.compiled

    @property
    def unused(self) -> bool:
        """Whether entries were there and none of them was found, while graphs were compiled."""
        missed = self.compiled >= self.restored if self.found is None else self.found == 0
        return self.restored > 0 and self.compiled + self.earlier > 0 and missed

    @property
    def counters(self) -> Mapping[str, int]:
        known = {} if self.found is None else {"hits": self.found}
        times = {"compiler_milliseconds": round(1000 * self.compiler_seconds)}
        counts = {"graphs": self.graphs, "misses": self.compiled, "compiled_files": self.files}
        return {**counts, **({"earlier": self.earlier} if self.earlier else {}), **known, **times}

    def line(self) -> str:
        """The one line at exit."""
        if not self.graphs and self.found == 0:
            of_restored = f", and looked for none of the {self.restored} that were restored" if self.restored else ""
            return f"0 graphs: the command compiled none{of_restored}"
        of_bundle = "an unknown number" if self.found is None else str(self.found)
        saved = ""
        if self.saved_seconds is not None and self.found and self.restored and not self.compiled:
            saved = f", saved ~{self.saved_seconds * min(1.0, self.found / self.restored):.0f} s"
        spent = f" in {self.compiler_seconds:.0f} s of compilers" if self.files else ""
        earlier = f", {self.earlier} from earlier runs here" if self.earlier else ""
        return f"{self.graphs} graphs: {of_bundle} from the bundle{earlier}, {self.compiled} compiled{spent}{saved}"


def account(
    directory: Path,
    *,
    bundle: frozenset[str],
    before: frozenset[str],
    after: frozenset[str],
    opened: frozenset[str] | None,
    seconds: float,
    saved_seconds: float | None = None,
) -> Account:
    """Return the account of a run from the files `before`, `bundle` restored among them, to the files `after`."""
    new = after - before
    new -= repeats(directory, new, before)
    compiled = graphs_of(new)
    looked_up = frozenset(
        key for path in opened or () if path in before and (key := graph_of(path)) is not None and key not in compiled
    )
    machine_code = [path for path in new if path.endswith(_CODE)]
    return Account(
        restored=len(graphs_of(bundle)),
        found=None if opened is None else len(looked_up & graphs_of(bundle)),
        compiled=len(compiled),
        files=len(machine_code),
        compiler_seconds=_seconds_of(directory, new),
        seconds=seconds,
        saved_seconds=saved_seconds,
        earlier=len(looked_up - graphs_of(bundle)),
    )


def _seconds_of(directory: Path, new: frozenset[str]) -> float:
    """Return for how long at least one compiler was between the source of a new file and its code."""
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    for path in new:
        if not path.endswith((*_CODE, *_SOURCES)) or kind_of(path) is Kind.EXTENSION:
            continue
        try:
            time = (directory / path).stat().st_mtime
        except OSError:
            continue
        times, better = (begun, min) if path.endswith(_SOURCES) else (ended, max)
        unit = unit_of(path)
        times[unit] = better(times.get(unit, time), time)
    total, reached = 0.0, 0.0
    for start, end in sorted((start, ended[unit]) for unit, start in begun.items() if unit in ended):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
