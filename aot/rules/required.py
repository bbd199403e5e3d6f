"""What an artifact must have recorded about itself. A condition that nobody wrote down is a reason to reject."""

from aot.rules.process import FRESH_PROCESS
from aot.rules.rule import A_RECORDED_VALUE
from aot.schema.artifact import Artifact
from aot.schema.decision import Reason
from aot.schema.environment import ProcessFacts
from aot.schema.recipe import Route

REQUIRED_GUARDS: dict[Route, frozenset[str]] = {
    Route.PACKAGE: frozenset({"machine", "capability", "torch", "libc"}),
    Route.CACHE: frozenset({"machine", "capability", "torch", "python", "isa"}),
    Route.FUNCTION: frozenset({"machine", "capability", "torch", "python", "interpreter"}),
    Route.BYTECODE: frozenset({"bytecode", "distribution"}),  # an interpreter reads it, whatever the hardware
    Route.KERNEL: frozenset({"capability"}),  # a driver loads it: no code of a host's CPU, no torch, no libraries
}

# A build records what the program has set as a whole: the first of these says that the others must be there.
SETTINGS = ("deterministic", "default_dtype", "matmul_precision")
COOPERATIVE_FACT = "cooperative_kernels"


def unrecorded(artifact: Artifact, *, tuned_here: bool = False) -> tuple[Reason, ...]:
    """Return a reason for each guard that an artifact of this kind must have and has not.

    `tuned_here`: the caller takes only what was tuned on this very card, so that must be recorded too.
    Not asked for, since their absence says something: ranks (the code serves every one), memory (nobody measured it).
    A module's Python version is asked for by its fingerprint.
    """
    recorded = {guard.kind for guard in artifact.host_guards}
    return tuple(
        Reason(kind=kind, wanted=A_RECORDED_VALUE, found="none", text=f"the artifact does not record its {kind}")
        for kind in sorted(_required(artifact, recorded, tuned_here) - recorded)
    )


def falls_back(artifact: Artifact) -> bool:
    """True where it has PTX for the cards that do not run its machine code, and says so."""
    return any(guard.kind == "capability" and " " in guard.value for guard in artifact.host_guards)


def untuned(artifact: Artifact) -> tuple[Reason, ...]:
    """Return the note on an artifact that was built without the card that could have measured its configurations."""
    if artifact.tuned is not False:
        return ()
    text = f"untuned: built for {artifact.capability} without the card, no configuration was measured"
    return (Reason(kind="tuned", wanted="tuned", found="untuned", text=text),)


def unspoken(artifact: Artifact, process: ProcessFacts) -> tuple[Reason, ...]:
    """Return the reasons against an artifact that does not record what its program had set.

    It is of a version that compiled as torch starts, so a process that is known to have set something else is another.
    """
    if artifact.route is not Route.PACKAGE or any(guard.kind == SETTINGS[0] for guard in artifact.host_guards):
        return ()
    return tuple(
        Reason(
            kind=kind,
            wanted=A_RECORDED_VALUE,
            found=str(found).lower(),
            text=f"the artifact does not record its {kind}, and this process has set {str(found).lower()}",
        )
        for kind in SETTINGS[:2]
        if (found := getattr(process, kind)) not in (None, getattr(FRESH_PROCESS, kind))
    )


def _required(artifact: Artifact, recorded: set[str], tuned_here: bool) -> set[str]:
    capability, package = artifact.capability, artifact.route is Route.PACKAGE
    on_card = capability.family != "cpu"
    several = falls_back(artifact)
    settings = package and not recorded.isdisjoint(SETTINGS)
    conditions = {
        "driver": capability.family == "cuda",
        "cuda": package and capability.family == "cuda",
        "ptx": capability.target.startswith("compute_"),
        "fallback": several,
        "machine_code": several and tuned_here,
        "kernel": "amx_" in capability,
        "libstdcxx": artifact.elf is not None and artifact.elf.libstdcxx_floor is not None,
        "threads": artifact.facts.get("threads", "dynamic") != "dynamic",
        "sm_floor": COOPERATIVE_FACT in artifact.facts,
        "cpu": settings and on_card,
        "sku": package and on_card and tuned_here,
        "sm_count": settings and on_card and tuned_here,
        "mig": settings and on_card and tuned_here,
        **dict.fromkeys(SETTINGS, settings),
    }
    return {*REQUIRED_GUARDS[artifact.route], *(kind for kind, asked in conditions.items() if asked)}
