"""Build on this machine, to be pushed: `aot build --here`, `aot ensure --here`.

A worker proves the bundle again before it goes live: nobody certifies himself.
"""

import getpass
import os
from pathlib import Path

from aot.client import RegistryClient
from aot.environment import observe_environment
from aot.errors import InvalidProfile
from aot.keys import factors_of, key_of
from aot.pipeline.build import Question, Staged, build_bundle
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

    Raises InvalidProfile when this machine is not the profile that the spec names, and what `build_bundle` raises.
    """
    profile = _registered(client, spec)
    factors = factors_of(spec, profile)
    # First: whoever may not upload should know before he compiles.
    links = client.open_uploads(spec.namespace, source.blobs)
    client.upload_blobs(links, source.paths, namespace=spec.namespace)
    opened = open_source(spec, source.paths, into=scratch / "source")
    sandbox = find_sandbox()
    return build_bundle(
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


def _registered(client: RegistryClient, spec: Spec) -> Profile:
    """The profile as the registry knows it, which the key is made of; and this machine must be it."""
    known = {view.profile.name: view.profile for view in client.list_profiles().profiles}
    wanted = known.get(spec.profile)
    if wanted is None:
        raise InvalidProfile(
            f"no worker has registered the profile {spec.profile}; registered: {', '.join(known) or 'none'}",
            hint="start a worker of that profile: it has to prove the bundle again",
        )
    here = {profile.name: profile for profile in observe_profiles(observe_environment())}
    own = here.get(spec.profile)
    if own is None or own.toolchain != wanted.toolchain or own.device != wanted.device:
        raise InvalidProfile(
            f"this machine is not the profile {spec.profile}: it is {', '.join(here)}",
            hint="build on a worker (without --here), or on a machine with the profile's toolchain",
            details={"wanted": str(wanted.toolchain), "found": str(own and own.toolchain)},
        )
    return wanted


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that runs as a number without a name
        return f"user {os.getuid()}"
