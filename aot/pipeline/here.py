"""Build on this machine, to be pushed: `aot build --here`, `aot ensure --here`.

A worker proves the bundle again before it goes live: nobody certifies himself.
"""

import getpass
import os
from collections.abc import Callable
from pathlib import Path

from aot.client import RegistryClient
from aot.environment import observe_environment
from aot.errors import InvalidProfile
from aot.keys import factors_of, key_of
from aot.pipeline.build import Question, Staged, build_bundle
from aot.pipeline.cross import build_unproven, find_cross_profile, refuse_foreign
from aot.pipeline.pending import upload
from aot.pipeline.profiles import observe_profiles
from aot.pipeline.source import PackedSource, open_source
from aot.sandbox import Bubblewrap, OnEvent, find_sandbox
from aot.schema.profile import Profile
from aot.schema.spec import Spec


def build_here(
    client: RegistryClient,
    spec: Spec,
    source: PackedSource,
    *,
    scratch: Path,
    shared_caches: Path,
    on_event: OnEvent,
) -> Staged:
    """Compile and prove `spec` on this machine, and upload its source, which the worker's proof needs.

    For a CPU target above this machine's it is compiled, and nothing is proven. Raises InvalidProfile when this machine
    is not the profile that the spec names, and what `build_bundle` raises.
    """
    profile, build = _registered(client, spec)
    factors = factors_of(spec, profile)
    # First: whoever may not upload should know before he compiles.
    upload(client, spec.namespace, source.blobs, source.paths)
    opened = open_source(spec, source.paths, into=scratch / "source")
    sandbox = find_sandbox()
    return build(
        Question(spec=spec, profile=profile, build_key=key_of(factors), factors=factors),
        opened,
        scratch=scratch / "work",
        shared_caches=shared_caches,
        # The source is the caller's own: without bubblewrap it runs as any program of his does.
        sandbox=sandbox if isinstance(sandbox, Bubblewrap) else None,
        builder=user_name(),
        on_event=on_event,
        should_stop=lambda: None,
    )


def _registered(client: RegistryClient, spec: Spec) -> tuple[Profile, Callable[..., Staged]]:
    """The profile as the registry knows it, which the key is made of, and how this machine builds for it."""
    environment = observe_environment()
    views = client.list_profiles().profiles
    here = {profile.name: profile for profile in observe_profiles(environment)}
    # Before what is registered: of a CPU target that no worker is, the registry asks for its workers' toolchain.
    crossed = find_cross_profile(spec.profile, views, node=environment.node)
    wanted = crossed or next((view.profile for view in views if view.profile.name == spec.profile), None)
    refuse_foreign(spec.profile, wanted)
    if wanted is None:
        known = ", ".join(view.profile.name for view in views) or "none"
        raise InvalidProfile(
            f"no worker has registered the profile {spec.profile}; registered: {known}",
            hint="start a worker of that profile: it has to prove the bundle again",
        )
    own = next(iter(here.values()), None) if crossed else here.get(spec.profile)
    if own is None or own.toolchain != wanted.toolchain or (crossed is None and own.device != wanted.device):
        raise InvalidProfile(
            f"this machine is not the profile {spec.profile}: it is {', '.join(here)}",
            hint="build on a worker (without --here), or on a machine with the profile's toolchain",
            details={"wanted": str(wanted.toolchain), "found": str(own and own.toolchain)},
        )
    return wanted, build_unproven if crossed else build_bundle


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that runs as a number without a name
        return f"user {os.getuid()}"
