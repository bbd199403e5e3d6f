"""Facts of an artifact about what was measured: every candidate's time, a card's clocks then, its graphs' memory.

They are texts among the artifact's facts, and no fields: every client and registry reads an artifact that has facts,
and none reads one with a field that it does not know. Each is a JSON object; what it holds beyond what is known here,
and one that is of another form, is passed over.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from aot.schema.artifact import Artifact, Kernel
from aot.schema.codec import encode
from aot.schema.environment import Clocks


class Measured(StrEnum):
    """Names of the facts. `memory` is in bytes: what the card held for all graphs that were captured by then."""

    TUNING = "clocks:tuning"  # by the number of a kernel in `Artifact.kernels`: when its candidates had been measured
    COMPILED = "clocks:compiled"  # by "": when the artifact had been compiled
    PROOF = "clocks:proof"  # by point (`spell_point`): when its calls had been measured
    MEMORY = "graphs:memory_bytes"  # by point
    # By the number of a kernel: pairs of a candidate and its microseconds, best first, None for one that cannot run; or
    # the number of an earlier kernel that has the same, as equal layers do.
    CANDIDATES = "tuning:candidates"
    CONTEST = "tuning:contest"  # `Contest`


# Microseconds by candidate, best first; None for one that cannot run.
Candidates = Mapping[str, float | None]
_PAIRS = tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The tuned build of an artifact against the untuned one, in median microseconds a call.

    Where the untuned one was kept the artifact has nothing else of what tuning measured: `kernels` are those that were
    tuned, and `facts` what `Measured` has of them, by their numbers.
    """

    tuned_us: float
    untuned_us: float
    kept_untuned: bool
    kernels: tuple[Kernel, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


OF_PROOF = (Measured.PROOF, Measured.MEMORY)


def spell_point(point: Mapping[str, int]) -> str:
    """Return "batch 4, seq 512", by name; "" of a coverage without dimensions."""
    return ", ".join(f"{name} {size}" for name, size in sorted(point.items()))


def write_clocks(name: Measured, found: Mapping[str, Clocks | None]) -> dict[str, str]:
    """Return the fact; none where nobody told the clocks."""
    told = {key: clocks for key, clocks in found.items() if clocks is not None}
    return {name: encode(told).decode()} if told else {}


def write_memory(found: Mapping[str, int]) -> dict[str, str]:
    """Return the fact; none where no graph was held."""
    held = {key: count for key, count in found.items() if count}
    return {Measured.MEMORY: encode(held).decode()} if held else {}


def write_candidates(found: Sequence[Candidates]) -> dict[str, str]:
    """Return the fact, of kernels by their order; none where no candidates were measured."""
    first: dict[tuple[tuple[str, float | None], ...], int] = {}
    told: dict[str, Sequence[tuple[str, float | None]] | int] = {}
    for number, candidates in enumerate(found):
        pairs = tuple(candidates.items())
        same = first.setdefault(pairs, number)
        told[str(number)] = pairs if same == number else same
    return {Measured.CANDIDATES: encode(told).decode()} if told else {}


def write_contest(found: Contest | None) -> dict[str, str]:
    """Return the fact; none where there was no contest."""
    return {Measured.CONTEST: encode(found).decode()} if found is not None else {}


def candidates_of(artifact: Artifact) -> dict[str, Candidates]:
    """By the number of a kernel, as text."""
    told = _read(artifact, Measured.CANDIDATES)
    found: dict[str, Candidates] = {}
    for number, value in told.items():
        if type(value) is not int:
            with suppress(msgspec.ValidationError):
                found[number] = dict(msgspec.convert(value, _PAIRS))
    # Once each: thousands of kernels may name one long list.
    same = {number: str(value) for number, value in told.items() if type(value) is int}
    return found | {number: found[first] for number, first in same.items() if first in found}


def contest_of(artifact: Artifact) -> Contest | None:
    try:
        return msgspec.convert(_read(artifact, Measured.CONTEST), Contest)
    except msgspec.ValidationError:
        return None


def tuned_kernels(artifact: Artifact) -> tuple[Kernel, ...]:
    """All whose candidates were measured for this artifact, also those of a tuned build that was not kept."""
    contest = contest_of(artifact)
    return (*(one for one in artifact.kernels if one.candidates), *(contest.kernels if contest else ()))


def clocks_of(artifact: Artifact, name: Measured) -> dict[str, Clocks]:
    return {key: _clocks(value) for key, value in _read(artifact, name).items() if isinstance(value, dict)}


def memory_of(artifact: Artifact) -> dict[str, int]:
    return {key: value for key, value in _read(artifact, Measured.MEMORY).items() if type(value) is int}


def without_measured(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts that hold of an artifact that has not been measured."""
    names = set(Measured)
    return {name: text for name, text in facts.items() if name not in names}


def _read(artifact: Artifact, name: Measured) -> dict[str, Any]:
    try:
        return msgspec.json.decode(artifact.facts.get(name, "{}"), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _clocks(value: dict[str, Any]) -> Clocks:
    return Clocks(**{name: value[name] for name in Clocks.__struct_fields__ if type(value.get(name)) is int})
