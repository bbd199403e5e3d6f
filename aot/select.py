"""Selection: which artifact fits this host, and why every other one does not.

Stands between observing and fetching in the pod's flow (design.md, section 5). Pure: it takes manifests and facts and
touches nothing, so every GPU, driver and CPU of the world is tested on a laptop. The rules are in `aot.rules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from aot.rules import RULES, Order
from aot.schema.artifact import Artifact
from aot.schema.capability import CPU_X86_LEVELS
from aot.schema.decision import Accepted, Decision, Reason, Rejected, Selection, Undecided, Verdict
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.manifest import Manifest
from aot.schema.recipe import Route

# What an artifact must have recorded about itself. A condition that nobody wrote down is a reason to reject.
REQUIRED_GUARDS: dict[Route, frozenset[str]] = {
    Route.PACKAGE: frozenset({"machine", "capability", "torch", "libc"}),
    Route.CACHE: frozenset({"machine", "capability", "torch", "python", "isa"}),
    Route.FUNCTION: frozenset({"machine", "capability", "torch", "python"}),
}


@dataclass(frozen=True)
class Policy:
    """What the caller accepts besides a full fit."""

    tuned_elsewhere: bool = True  # same architecture, other SKU
    undecided: bool = False  # fetch what may fit; only `load` settles it


def select(
    bundles: Sequence[tuple[Digest, Manifest]], environment: Environment, *, policy: Policy = Policy()
) -> Selection:
    """Return the best bundle for `environment` with a decision for every artifact of every bundle.

    Best: fits before undecided, tuned here before tuned elsewhere, the higher CPU level before the lower one, then
    the order given. Where the best is undecided, `alternatives` are those that come after it by order alone: of two
    torch releases, for example, while the release is not known. `bundle` is None where nothing fits; never raises
    for a misfit.
    """
    decisions: list[Decision] = []
    ranked: list[tuple[tuple[int, ...], Digest, tuple[int, ...], bool]] = []
    for order, (digest, manifest) in enumerate(bundles):
        of_bundle = decide(digest, manifest, environment, policy=policy)
        decisions += of_bundle
        usable = tuple(decision.artifact for decision in of_bundle if _usable(decision.verdict, policy))
        if usable:
            verdicts = [of_bundle[index].verdict for index in usable]
            rank = (*_rank(manifest, verdicts, usable), order)
            ranked.append((rank, digest, usable, any(isinstance(verdict, Undecided) for verdict in verdicts)))
    if not ranked:
        return Selection(bundle=None, artifacts=(), decisions=tuple(decisions))
    best, digest, artifacts, undecided = min(ranked)
    equal = [other for rank, other, _, _ in sorted(ranked) if rank[:-1] == best[:-1] and other != digest]
    return Selection(
        bundle=digest,
        artifacts=artifacts,
        decisions=tuple(decisions),
        undecided=undecided,
        alternatives=tuple(equal) if undecided else (),
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
        )
        for index, artifact in enumerate(manifest.artifacts)
    )


def verdict_on(artifact: Artifact, environment: Environment, *, policy: Policy = Policy()) -> Verdict:
    """Apply every rule to every guard of one artifact; all reasons are kept, not the first."""
    against: list[Reason] = list(_unrecorded(artifact))
    missing: list[Reason] = []
    notes: list[Reason] = []
    for guard in artifact.host_guards:
        rule = RULES.get(guard.kind)
        if rule is None:
            against.append(_unknown(guard.kind, guard.value))
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


def _usable(verdict: Verdict, policy: Policy) -> bool:
    return isinstance(verdict, Accepted) or (policy.undecided and isinstance(verdict, Undecided))


def _rank(manifest: Manifest, verdicts: list[Verdict], usable: tuple[int, ...]) -> tuple[int, int, int]:
    # Whether, not how many: a bundle with more artifacts is not the worse one for it.
    undecided = any(isinstance(verdict, Undecided) for verdict in verdicts)
    elsewhere = any(isinstance(verdict, Accepted) and verdict.notes for verdict in verdicts)
    level = max(_level(manifest.artifacts[index]) for index in usable)
    return undecided, elsewhere, -level


def _level(artifact: Artifact) -> int:
    target = artifact.capability.target
    return CPU_X86_LEVELS.index(target) if target in CPU_X86_LEVELS else 0


def _unrecorded(artifact: Artifact) -> list[Reason]:
    recorded = {guard.kind for guard in artifact.host_guards}
    return [
        Reason(kind=kind, wanted="a recorded value", found="none", text=f"the artifact does not record its {kind}")
        for kind in sorted(REQUIRED_GUARDS[artifact.route] - recorded)
    ]


def _unknown(kind: str, value: str) -> Reason:
    text = f"guard {kind}={value} is not known to this version of aot"
    return Reason(kind=kind, wanted=value, found="unknown guard", text=text)
