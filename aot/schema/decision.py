"""Decisions: what `aot.select` says of every artifact, with all reasons, and the choice it ends in.

On a host with several cards a verdict on an artifact for cards has `devices`: the places in the environment's
`node.gpus` of those whose level is this one; its reasons and notes are those of the card that suits best.
"""

from enum import StrEnum

from aot.schema.codec import Document
from aot.schema.digest import Digest


class Reason(Document, kw_only=True):
    """One condition that does not hold, or cannot be told."""

    kind: str  # the guard's kind, or the fact's name
    wanted: str
    found: str | None  # None: not observed on this host
    text: str


class Level(StrEnum):
    """How well one artifact fits, as tables say it."""

    FITS = "fits"
    TUNED_ELSEWHERE = "fits, tuned elsewhere"
    UNDECIDED = "undecided"
    REJECTED = "rejected"


class Accepted(Document, kw_only=True, tag="accepted"):
    """Fits. `notes` say what was weaker than ideal: tuned on another SKU, for example."""

    notes: tuple[Reason, ...] = ()
    devices: tuple[int, ...] = ()

    @property
    def level(self) -> Level:
        return Level.TUNED_ELSEWHERE if self.notes else Level.FITS


class Undecided(Document, kw_only=True, tag="undecided"):
    """Host facts are missing; only `load`, in the process that runs, may settle it."""

    missing: tuple[Reason, ...]
    devices: tuple[int, ...] = ()

    @property
    def level(self) -> Level:
        return Level.UNDECIDED


class Rejected(Document, kw_only=True, tag="rejected"):
    """Does not fit, with every reason; on a host with several cards, those of the card that comes nearest."""

    reasons: tuple[Reason, ...]
    devices: tuple[int, ...] = ()

    @property
    def level(self) -> Level:
        return Level.REJECTED


Verdict = Accepted | Undecided | Rejected


class Decision(Document, kw_only=True):
    """The verdict on one artifact of one bundle. `frozen`: the bundle serves the one checkpoint it was built from."""

    bundle: Digest
    artifact: int
    region: str
    coverage: str
    verdict: Verdict
    frozen: bool = False


class Refusal(Document, kw_only=True):
    """A bundle that is not used at all, whatever the host: no trusted signature, or a manifest that cannot be read."""

    bundle: Digest
    reason: str


class Selection(Document, kw_only=True):
    """The choice plus every decision. `bundle` None: nothing fits, and the model runs eagerly.

    `alternatives`: the bundles that may be the better choice once what is undecided is known.
    """

    bundle: Digest | None
    artifacts: tuple[int, ...]
    decisions: tuple[Decision, ...]
    undecided: bool = False
    alternatives: tuple[Digest, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @property
    def frozen(self) -> bool:
        """True when the chosen bundle serves one checkpoint alone."""
        return any(decision.frozen for decision in self.decisions if decision.bundle == self.bundle)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every reason against, as sentences."""
        unfit = [
            f"{decision.region or 'whole'} [{decision.coverage}]: {reason.text}"
            for decision in self.decisions
            for reason in reasons_of(decision.verdict)
        ]
        return (*unfit, *(f"bundle {refusal.bundle.short}: {refusal.reason}" for refusal in self.refusals))

    def choices(self) -> tuple["Selection", ...]:
        """This selection, and one that chooses each alternative with every artifact of it that may fit."""
        return (self, *(self._choosing(bundle) for bundle in self.alternatives))

    def _choosing(self, bundle: Digest) -> "Selection":
        usable = (
            decision.artifact
            for decision in self.decisions
            if decision.bundle == bundle and not isinstance(decision.verdict, Rejected)
        )
        return Selection(
            bundle=bundle,
            artifacts=tuple(usable),
            decisions=self.decisions,
            undecided=self.undecided,
            refusals=self.refusals,
        )


def reasons_of(verdict: Verdict) -> tuple[Reason, ...]:
    match verdict:
        case Accepted():
            return ()
        case Undecided(missing=missing):
            return missing
        case Rejected(reasons=reasons):
            return reasons
