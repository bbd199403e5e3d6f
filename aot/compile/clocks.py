"""The clocks that a compiled artifact tells among its facts."""

from collections.abc import Sequence

from aot.environment.clocks import observe_clocks
from aot.schema.environment import Clocks
from aot.schema.measured import Measured, write_clocks
from aot.schema.profile import Profile


def clock_facts(profile: Profile, tuned: Sequence[Clocks | None]) -> dict[str, str]:
    """Return the clocks of the card now that an artifact has been compiled, and when its first kernels were tuned."""
    if profile.capability.family != "cuda":
        return {}
    return {
        **write_clocks(Measured.TUNING, {str(number): clocks for number, clocks in enumerate(tuned)}),
        **write_clocks(Measured.COMPILED, {"": observe_clocks()}),
    }
