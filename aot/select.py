"""Selection: which artifact fits this host, and why every other one does not.

Stands between observing and fetching in the pod's flow (design.md, section 5). Pure: it takes manifests and facts and
touches nothing, so every GPU, driver and CPU of the world is tested on a laptop. The rules are in `aot.rules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from aot.rules import RULES, Order, unknown
from aot.rules.required import REQUIRED_GUARDS, unrecorded, unspoken, untuned
from aot.schema.artifact import Artifact
from aot.schema.capability import Capability
from aot.schema.decision import Accepted, Decision, Reason, Rejected, Selection, Undecided, Verdict
from aot.schema.digest import Digest
from aot.schema.environment import Environment, Gpu
from aot.schema.guard import HostGuard
from aot.schema.manifest import Manifest
from aot.schema.targets import level_features

__all__ = [
    "REQUIRED_GUARDS",
    "Policy",
    "decide",
    "describe_coverage",
    "judge_guards",
    "particularity",
    "select",
    "verdict_on",
    "with_card",
]


@dataclass(frozen=True)
class Policy:
    """What the caller accepts besides a full fit."""

    tuned_elsewhere: bool = True  # same architecture, other SKU
    undecided: bool = False  # fetch what may fit; only `load` settles it


def select(
    bundles: Sequence[tuple[Digest, Manifest]], environment: Environment, *, policy: Policy = Policy()
) -> Selection:
    """Return the best bundle for `environment` with a decision for every artifact of every bundle.

    Best: fits before undecided, tuned here before tuned elsewhere, the more particular capability before the lesser
    one, then the order given. Where the best is undecided, `alternatives` are those of equal rank after it that may
    turn out the better choice: of two torch releases, for example, while the release is not known. `bundle` is None
    where nothing fits; never raises for a misfit.
    """
    decisions: list[Decision] = []
    candidates: list[_Candidate] = []
    for digest, manifest in bundles:
        of_bundle = decide(digest, manifest, environment, policy=policy)
        decisions += of_bundle
        usable = tuple(decision for decision in of_bundle if _usable(decision.verdict, policy))
        if usable:
            candidates.append(_Candidate.of(digest, manifest, usable))
    if not candidates:
        return Selection(bundle=None, artifacts=(), decisions=tuple(decisions))
    best, *others = sorted(candidates, key=lambda candidate: candidate.rank)
    equal = dict.fromkeys(
        other.bundle
        for other in others
        if other.rank == best.rank and other.bundle != best.bundle and best.yields(other)
    )
    return Selection(
        bundle=best.bundle,
        artifacts=best.artifacts,
        decisions=tuple(decisions),
        undecided=best.undecided,
        alternatives=tuple(equal) if best.undecided else (),
    )


def decide(
    digest: Digest, manifest: Manifest, environment: Environment, *, policy: Policy = Policy()
) -> tuple[Decision, ...]:
    """Return one decision for each artifact of the bundle, in the manifest's order."""
    return tuple(
        Decision(
            bundle=digest,
            artifact=index,
            region=artifact.region,
            coverage=describe_coverage(artifact),
            verdict=verdict_on(artifact, environment, policy=policy),
            frozen=manifest.frozen,
        )
        for index, artifact in enumerate(manifest.artifacts)
    )


def verdict_on(artifact: Artifact, environment: Environment, *, policy: Policy = Policy()) -> Verdict:
    """Apply every rule to every guard of one artifact; all reasons are kept, not the first.

    Rules about cards hold for one and the same card: on a host with several, the verdict is that on the card that
    suits best, and `devices` says which these are.
    """
    against = (*unrecorded(artifact, tuned_here=not policy.tuned_elsewhere), *unspoken(artifact, environment.process))
    notes = untuned(artifact)
    if not policy.tuned_elsewhere:
        against, notes = (*against, *notes), ()
    verdict = judge_guards(artifact.host_guards, environment, policy=policy)
    if against:
        reasons = verdict.reasons if isinstance(verdict, Rejected) else ()
        return Rejected(reasons=(*reasons, *against), devices=verdict.devices)
    return replace(verdict, notes=(*verdict.notes, *notes)) if isinstance(verdict, Accepted) else verdict


def judge_guards(
    guards: Sequence[HostGuard], environment: Environment, *, policy: Policy = Policy()
) -> Accepted | Undecided | Rejected:
    """The verdict on these guards alone, whatever else an artifact would have to record."""
    gpus = environment.node.gpus or ()
    if len(gpus) < 2 or not _ask_for_card(guards):
        return _judge(guards, environment, policy)
    verdicts = {gpu: _judge(guards, with_card(environment, gpu), policy) for gpu in dict.fromkeys(gpus)}
    best = min(verdicts.values(), key=_distance)
    return replace(best, devices=tuple(index for index, gpu in enumerate(gpus) if verdicts[gpu].level is best.level))


def with_card(environment: Environment, gpu: Gpu) -> Environment:
    """Return the same environment as a process sees it that uses `gpu`."""
    return replace(environment, node=replace(environment.node, gpus=(gpu,)))


def describe_coverage(artifact: Artifact) -> str:
    """Return the coverage as people read it: "batch 1..32, seq 1..512" or "exact"."""
    parts = [
        f"{dimension.name} {dimension.low}"
        if dimension.high == dimension.low
        else f"{dimension.name} {dimension.low}..{'' if dimension.high is None else dimension.high}"
        for dimension in artifact.coverage.dimensions
    ]
    example = f" (example {artifact.coverage.example})" if artifact.coverage.example else ""
    return (", ".join(parts) or artifact.coverage.kind) + example


def particularity(capability: Capability) -> int:
    """Order what one host runs: of two, the one that covers the other is the more particular."""
    if capability.family == "cpu":
        return len((level_features(capability.level) or frozenset()) | capability.features)
    if capability.family == "rocm":
        return 2 * ("generic" not in capability) + capability.count(":")
    kind, _, version = capability.target.partition("_")
    number = version.rstrip("af")
    # PTX, which is compiled at load, comes after all machine code.
    return (1000 if kind == "sm" else 0) + 3 * int(number) + ("", "f", "a").index(version[len(number) :])


@dataclass(frozen=True)
class _Candidate:
    """One bundle with what may be used of it."""

    bundle: Digest
    artifacts: tuple[int, ...]
    rank: tuple[bool, bool, int]
    missing: tuple[frozenset[Reason], ...]  # of each artifact

    @classmethod
    def of(cls, bundle: Digest, manifest: Manifest, usable: tuple[Decision, ...]) -> "_Candidate":
        missing = tuple(frozenset(_missing(decision.verdict)) for decision in usable)
        elsewhere = any(isinstance(decision.verdict, Accepted) and decision.verdict.notes for decision in usable)
        particular = max(particularity(manifest.artifacts[decision.artifact].capability) for decision in usable)
        # Whether, not how many: a bundle with more artifacts is not the worse one for it.
        rank = (any(missing), elsewhere, -particular)
        return cls(bundle, tuple(decision.artifact for decision in usable), rank, missing)

    @property
    def undecided(self) -> bool:
        return any(self.missing)

    def yields(self, other: "_Candidate") -> bool:
        """True when `other`, of equal rank, may fit where this does not: it hangs on other facts than this."""
        own = frozenset().union(*self.missing)
        return not all(asked >= own for asked in other.missing)


def _judge(guards: Sequence[HostGuard], environment: Environment, policy: Policy) -> Verdict:
    """Apply every rule, with at most one card in view."""
    against: list[Reason] = []
    missing: list[Reason] = []
    notes: list[Reason] = []
    for guard in guards:
        rule = RULES.get(guard.kind)
        if rule is None:
            against.append(unknown("guard", f"{guard.kind}={guard.value}", kind=guard.kind))
            continue
        reason = rule.check(guard.value, environment)
        if reason is None:
            continue
        if reason.found is None:
            missing.append(reason)
        elif rule.order is Order.ADVISORY and policy.tuned_elsewhere:
            notes.append(reason)
        else:
            against.append(reason)
    if against:
        return Rejected(reasons=tuple(against))
    if missing:
        return Undecided(missing=tuple(missing))
    return Accepted(notes=tuple(notes))


def _distance(verdict: Verdict) -> tuple[int, int]:
    match verdict:
        case Accepted(notes=notes):
            return 0, len(notes)
        case Undecided(missing=missing):
            return 1, len(missing)
        case Rejected(reasons=reasons):
            return 2, len(reasons)


def _ask_for_card(guards: Sequence[HostGuard]) -> bool:
    of_card = (guard for guard in guards if guard.kind in RULES and RULES[guard.kind].of_card)
    return any(guard.kind != "capability" or not guard.value.startswith("cpu:") for guard in of_card)


def _missing(verdict: Verdict) -> tuple[Reason, ...]:
    return verdict.missing if isinstance(verdict, Undecided) else ()


def _usable(verdict: Verdict, policy: Policy) -> bool:
    return isinstance(verdict, Accepted) or (policy.undecided and isinstance(verdict, Undecided))
