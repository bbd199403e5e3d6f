"""Decisions: what `aot.select` says of every artifact, with all reasons, and the choice it ends in."""

from aot.schema.codec import Document
from aot.schema.digest import Digest


class Reason(Document, kw_only=True):
    """One condition that does not hold, or cannot be told."""

    kind: str  # the guard's kind, or the fact's name
    wanted: str
    found: str | None  # None: not observed on this host
    text: str


class Accepted(Document, kw_only=True, tag="accepted"):
    """Fits. `notes` say what was weaker than ideal: tuned on another SKU, for example."""

    notes: tuple[Reason, ...] = ()


class Undecided(Document, kw_only=True, tag="undecided"):
    """Host facts are missing; only `load`, in the process that runs, may settle it."""

    missing: tuple[Reason, ...]


class Rejected(Document, kw_only=True, tag="rejected"):
    reasons: tuple[Reason, ...]


Verdict = Accepted | Undecided | Rejected


class Decision(Document, kw_only=True):
    """The verdict on one artifact of one bundle."""

    bundle: Digest
    artifact: int
    region: str
    coverage: str
    verdict: Verdict


class Selection(Document, kw_only=True):
    """The choice plus every decision. `bundle` None: nothing fits, and the model runs eagerly."""

    bundle: Digest | None
    artifacts: tuple[int, ...]
    decisions: tuple[Decision, ...]
    undecided: bool = False

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every reason against, as sentences."""
        return tuple(
            f"{decision.region or 'whole'} [{decision.coverage}]: {reason.text}"
            for decision in self.decisions
            for reason in reasons_of(decision.verdict)
        )


def reasons_of(verdict: Verdict) -> tuple[Reason, ...]:
    match verdict:
        case Accepted():
            return ()
        case Undecided(missing=missing):
            return missing
        case Rejected(reasons=reasons):
            return reasons
