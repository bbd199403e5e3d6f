"""`aot matrix`: a fleet of hosts against the bundles of some references. Nothing is fetched but manifests."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aot.cli.output import table
from aot.cli.unproven import Unproven, list_unproven, look_up_told, unproven_lines
from aot.cli.wrap import wrap
from aot.config import Config
from aot.runtime.fetch import Resolved
from aot.runtime.pod import judge
from aot.schema.codec import Response
from aot.schema.decision import Accepted, Decision, Level, Refusal, reasons_of
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.names import Name, Reference

_LEVELS = tuple(Level)


class Column(Response, kw_only=True):
    """One bundle; `title` names it among the others."""

    reference: Reference
    bundle: Digest
    profile: Name
    title: str


class Cell(Response, kw_only=True):
    """The best level that an artifact of the bundle has on the host, and the kinds of every reason against or note.

    `fitting` of `artifacts` have that level.
    """

    level: Level
    kinds: tuple[str, ...] = ()
    fitting: int
    artifacts: int


class HostRow(Response, kw_only=True):
    """One host: a cell for each column, what would be chosen of each reference, and those it would run eagerly.

    What is undecided counts as chosen, as it does for `aot pull`: `load` settles it.
    """

    host: str
    cells: tuple[Cell, ...]
    chosen: dict[Reference, Digest]
    undecided: tuple[Reference, ...] = ()
    unserved: tuple[Reference, ...] = ()


class Matrix(Response, kw_only=True):
    columns: tuple[Column, ...]
    hosts: tuple[HostRow, ...]
    refusals: tuple[Refusal, ...] = ()
    pending: tuple[Unproven, ...] = ()  # of the same models, which nobody may load before its proof


def cross(
    references: Sequence[str], hosts: Mapping[str, Environment], *, config: Config, lock: Path | None = None
) -> Matrix:
    """Judge every bundle of every reference on every host. Raises what `look_up` does."""
    parsed = dict.fromkeys(Reference.parse(reference) for reference in references)
    looked_up = [look_up_told(str(reference), lock=lock, config=config) for reference in parsed]
    return Matrix(
        columns=_columns(looked_up),
        hosts=tuple(_row(host, environment, looked_up) for host, environment in hosts.items()),
        refusals=tuple(refusal for resolved in looked_up for refusal in resolved.refusals),
        pending=_pending(looked_up, config=config),
    )


def matrix_lines(matrix: Matrix, *, width: int | None = None) -> list[str]:
    """The table, in as many parts as `width` needs, then the counts of each column and of the fleet."""
    names = [row.host for row in matrix.hosts]
    columns = [
        (column.title, *(cell_text(row.cells[index]) for row in matrix.hosts))
        for index, column in enumerate(matrix.columns)
    ]
    lines: list[str] = []
    for part in _parts(("host", *names), columns, width):
        lines += [*table(("host", *(column[0] for column in part)), _transposed(names, part)), ""]
    pending = [part for text in unproven_lines(matrix.pending) for part in wrap(text, width)]
    return [*lines, *_counts(matrix, width), "", *pending, _fleet(matrix)]


def cell_text(cell: Cell) -> str:
    """The level; where it is not a plain fit the first kind of reason; how many artifacts where they differ."""
    reason = f": {cell.kinds[0]}" if cell.kinds else ""
    some = f" ({cell.fitting} of {cell.artifacts})" if cell.fitting != cell.artifacts else ""
    return f"{cell.level}{reason}{some}"


def _pending(looked_up: Sequence[Resolved], *, config: Config) -> tuple[Unproven, ...]:
    """Each once, of however many tags of its model."""
    found = (one for resolved in looked_up for one in list_unproven(resolved, config=config))
    return tuple({one.bundle: one for one in found}.values())


def _columns(looked_up: Sequence[Resolved]) -> tuple[Column, ...]:
    """A title is the profile, with the model's name where there are several, and the digest where it takes that."""
    found = [(one.reference, digest, manifest.profile.name) for one in looked_up for digest, manifest in one.bundles]
    short = {one.reference: str(one.reference).rpartition("/")[2] if len(looked_up) > 1 else "" for one in looked_up}
    titles = [f"{short[reference]} {profile}".strip() for reference, _, profile in found]
    return tuple(
        Column(
            reference=reference,
            bundle=digest,
            profile=profile,
            title=title if titles.count(title) == 1 else f"{title} {digest.short}",
        )
        for title, (reference, digest, profile) in zip(titles, found, strict=True)
    )


def _row(host: str, environment: Environment, looked_up: Sequence[Resolved]) -> HostRow:
    cells: list[Cell] = []
    chosen: dict[Reference, Digest] = {}
    undecided: list[Reference] = []
    unserved: list[Reference] = []
    for resolved in looked_up:
        selection = judge(resolved, environment)
        for digest, _ in resolved.bundles:
            cells.append(_cell([decision for decision in selection.decisions if decision.bundle == digest]))
        if selection.bundle is None:
            unserved.append(resolved.reference)
            continue
        chosen[resolved.reference] = selection.bundle
        if selection.undecided:
            undecided.append(resolved.reference)
    return HostRow(host=host, cells=tuple(cells), chosen=chosen, undecided=tuple(undecided), unserved=tuple(unserved))


def _cell(decisions: Sequence[Decision]) -> Cell:
    levels = [decision.verdict.level for decision in decisions]
    best = min(levels, key=_LEVELS.index, default=Level.REJECTED)
    verdicts = [decision.verdict for decision in decisions if decision.verdict.level is best]
    reasons = (
        reason
        for verdict in verdicts
        for reason in (verdict.notes if isinstance(verdict, Accepted) else reasons_of(verdict))
    )
    kinds = tuple(dict.fromkeys(reason.kind for reason in reasons))
    return Cell(level=best, kinds=kinds, fitting=len(verdicts), artifacts=len(decisions))


def _parts(
    names: Sequence[str], columns: Sequence[tuple[str, ...]], width: int | None
) -> Iterator[list[tuple[str, ...]]]:
    """Split the columns into tables that, with the hosts' names before each, are no wider than `width`.

    A column that is too wide by itself gets a table of its own.
    """
    first = max(map(len, names))
    part: list[tuple[str, ...]] = []
    used = first
    for column in columns:
        needed = 2 + max(map(len, column))
        if part and width is not None and used + needed > width:
            yield part
            part, used = [], first
        part.append(column)
        used += needed
    if part:
        yield part


def _transposed(names: Sequence[str], columns: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [(name, *(column[index + 1] for column in columns)) for index, name in enumerate(names)]


def _counts(matrix: Matrix, width: int | None) -> list[str]:
    """How many hosts have which level: a table, or a line for each column where that is too wide."""
    counts = [
        (column.title, Counter(row.cells[index].level for row in matrix.hosts))
        for index, column in enumerate(matrix.columns)
    ]
    lines = table(("bundle", *_LEVELS), [(title, *(str(found[level]) for level in _LEVELS)) for title, found in counts])
    if width is None or max(map(len, lines), default=0) <= width:
        return lines
    said = (f"{title}: " + "; ".join(f"{found[level]} {level}" for level in _LEVELS) for title, found in counts)
    return [part for text in said for part in wrap(text, width)]


def _fleet(matrix: Matrix) -> str:
    unserved = sum(bool(row.unserved) for row in matrix.hosts)
    open_ = sum(bool(row.undecided) and not row.unserved for row in matrix.hosts)
    served = len(matrix.hosts) - unserved - open_
    return (
        f"{len(matrix.hosts)} host(s): {served} served, {open_} undecided until load, {unserved} with nothing that fits"
    )
