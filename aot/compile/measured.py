"""What a compiled artifact tells of its tuning and of the card's clocks, among its facts."""

from collections.abc import Collection, Iterator, Sequence

from aot.compile.torch_tuning import Tuning
from aot.environment.clocks import observe_clocks
from aot.schema.artifact import Artifact
from aot.schema.measured import Measured, tuned_kernels, write_candidates, write_clocks
from aot.schema.profile import Profile


def compiled_facts(profile: Profile, tuning: Tuning) -> dict[str, str]:
    """Return what its first kernels were chosen from, and the clocks of a card then and now that all is compiled."""
    now = {"": observe_clocks()} if profile.capability.family == "cuda" else {}
    return {**tuned_facts(profile, tuning), **write_clocks(Measured.COMPILED, now)}


def tuned_facts(profile: Profile, tuning: Tuning) -> dict[str, str]:
    """Return every candidate's time, and a card's clocks when they were measured."""
    found = write_candidates(tuning.candidates)
    if profile.capability.family == "cuda":
        found |= write_clocks(Measured.TUNING, {str(number): clocks for number, clocks in enumerate(tuning.clocks)})
    return found


def tell_reused(artifacts: Sequence[Artifact]) -> Iterator[str]:
    """Say how many kernels were not measured again, where any was not."""
    tuned = [kernel for artifact in artifacts for kernel in tuned_kernels(artifact)]
    if reused := sum(kernel.reused for kernel in tuned):
        yield f"{reused} of {len(tuned)} tuned kernels as earlier builds have measured them"


def tell_configured(taken: Collection[str]) -> Iterator[str]:
    """Say of how many generated kernels the configuration was not searched for again, where of any."""
    if taken:
        yield f"configurations of generated kernels as earlier builds have found them: {len(taken)}"
