"""Build on this machine and push: `aot ensure --here`. A worker proves the bundle again before it goes live."""

import getpass
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot.client import RegistryClient
from aot.environment import observe_environment
from aot.errors import InvalidProfile
from aot.keys import factors_of, key_of
from aot.pipeline.build import Question, build_bundle
from aot.pipeline.profiles import observe_profiles
from aot.pipeline.publish import push_bundle
from aot.pipeline.source import PackedSource, open_source
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.names import Tag
from aot.schema.profile import Profile
from aot.schema.spec import Spec
from aot.schema.wire.bundles import PublishReply


def build_here(
    client: RegistryClient,
    spec: Spec,
    source: PackedSource,
    *,
    tags: Sequence[Tag],
    scratch: Path,
    shared_caches: Path,
    on_event: Callable[[Mapping[str, Any]], None],
) -> PublishReply:
    """Compile, prove and push `spec` from this machine.

    Raises InvalidProfile when this machine is not the profile that the spec names, and what `build_bundle` raises.
    """
    profile = _registered(client, spec)
    factors = factors_of(spec, profile)
    opened = open_source(spec, source.paths, into=scratch / "source")
    sandbox = find_sandbox()
    staged = build_bundle(
        Question(spec=spec, profile=profile, build_key=key_of(factors), factors=factors),
        opened,
        scratch=scratch / "work",
        shared_caches=shared_caches,
        # The source is the caller's own: without bubblewrap it runs as any program of his does.
        sandbox=sandbox if isinstance(sandbox, Bubblewrap) else None,
        builder=getpass.getuser(),
        on_event=on_event,
        should_stop=lambda: None,
    )
    # The worker that proves the bundle needs the source as well.
    client.upload_blobs(client.open_uploads(spec.namespace, source.blobs), source.paths)
    return push_bundle(client, staged, tags=tags)


def _registered(client: RegistryClient, spec: Spec) -> Profile:
    """The profile as the registry knows it, which the key is made of; and this machine must be it."""
    here = {profile.name: profile for profile in observe_profiles(observe_environment())}
    known = {view.profile.name: view.profile for view in client.list_profiles().profiles}
    wanted = known.get(spec.profile)
    own = here.get(spec.profile)
    if wanted is None or own is None or own.toolchain != wanted.toolchain or own.device != wanted.device:
        raise InvalidProfile(
            f"this machine is not the profile {spec.profile}: it is {', '.join(here)}",
            hint="build on a worker (without --here), or on a machine with the profile's toolchain",
            details={"wanted": str(wanted and wanted.toolchain), "found": str(own and own.toolchain)},
        )
    return wanted
