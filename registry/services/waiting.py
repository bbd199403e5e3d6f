"""Why a queued build waits: whether a profile, as it is now, can build a spec. Pure."""

import re
from collections.abc import Iterable

from aot.keys import changes_between, factors_of
from aot.schema.factor import Factor
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.spec import KernelSource, Spec
from aot.schema.wire.builds import NOT_RUN


def reason(
    spec: Spec, *, factors: Iterable[Factor], profile: Profile, live: bool, before: str = "", lacks: str = ""
) -> str:
    """Say why no worker takes the build now; empty where one could.

    `before` is what was said last: of a bundle that has not run anywhere, that stays the reason. `lacks`: why what it
    is to read cannot be had (`registry.services.unreadable`).
    """
    if not live:
        unrun = isinstance(spec.source, KernelSource) or before == not_run(profile)
        return not_run(profile) if unrun else no_worker(profile.name)
    return "; ".join(filter(None, (*misfits(spec, factors=factors, profile=profile), lacks)))


def no_worker(profile: Name) -> str:
    return f"no live worker of the profile {profile}"


def not_run(profile: Profile) -> str:
    """Of kernels for a card, or of code for a CPU, that nothing has run yet."""
    capability = profile.capability
    if capability.family != "cpu":
        return f"{NOT_RUN}needs a {capability} device"
    return f"{NOT_RUN}no host with {'AMX' if 'amx_tile' in capability.features else capability.target}"


def misfits(spec: Spec, *, factors: Iterable[Factor], profile: Profile) -> tuple[str, ...]:
    """Every reason why `profile` cannot build this spec under the key it was submitted with."""
    changes = changes_between(factors, factors_of(spec, profile))
    changed = tuple(
        f"the profile {profile.name} has changed since: {change.name} was {change.before}, is {change.after}"
        for change in changes
    )
    return changed + unmet(spec.source.requirements, packages=profile.packages)


def unmet(requirements: Iterable[str], *, packages: dict[str, str]) -> tuple[str, ...]:
    """The exact pins that the profile's packages do not meet."""
    installed = {_normal(name): version for name, version in packages.items()}
    reasons = []
    for requirement in requirements:
        name, _, wanted = requirement.partition("==")
        found = installed.get(_normal(name))
        if found != wanted:
            reasons.append(f"it requires {requirement}, the workers have {found or 'none'}")
    return tuple(reasons)


def _normal(name: str) -> str:
    # Names of distributions compare without case, and with any run of -, _ and . as one (PEP 503).
    return re.sub(r"[-_.]+", "-", name).lower()
