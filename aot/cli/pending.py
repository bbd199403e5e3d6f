"""What `aot run` says where nothing was restored and a capture waits for its proof: which, since when, and what now."""

from collections.abc import Sequence

from aot.capture.prepare import Prepared
from aot.client import RegistryClient
from aot.client.connect import open_client
from aot.config import Config
from aot.errors import AotError, NotFound
from aot.schema.names import Reference
from aot.schema.state import BundleState
from aot.schema.wire.builds import BuildView
from aot.schema.wire.bundles import BundleView

# Nothing is restored: the command starts as it would without us, and must not wait for what is only told.
ASK_SECONDS = 2.0
MOST_BUILDS = 50


def pending_lines(prepared: Prepared, config: Config) -> list[str]:
    """Return a line for each capture of the reference that is pending, and how to follow them; none where none is.

    The registry is asked only where it has just answered that it has nothing, or nothing that fits. Never raises
    AotError: what cannot be asked is not told.
    """
    if prepared.bundle is not None or not _answered(prepared) or not config.url or config.offline:
        return []
    try:
        timeout = min(config.timeout_seconds, ASK_SECONDS)
        client = open_client(config.url, config.token, timeout_seconds=timeout, attempts=1)
        return _lines(prepared.reference, client)
    except AotError:
        return []


def _answered(prepared: Prepared) -> bool:
    return not prepared.stale and (prepared.failure is None or isinstance(prepared.failure, NotFound))


def _lines(reference: Reference, client: RegistryClient) -> list[str]:
    namespace, name = reference.namespace, reference.name
    bundles = client.search(namespace=namespace, name=name, state=BundleState.PENDING).bundles
    if reference.digest is not None:
        bundles = tuple(one for one in bundles if one.digest == reference.digest)
    if not bundles:
        return []
    builds = client.list_builds(namespace=namespace, name=name, limit=MOST_BUILDS).builds
    going_on = [build for build in builds if not build.state.finished]
    proofs = [(bundle, _proof_of(bundle, reference, going_on)) for bundle in bundles]
    if reference.tag is not None:
        # Of another tag's it says nothing; one whose build is not seen may be of any.
        proofs = [(bundle, build) for bundle, build in proofs if build is None or reference.tag in build.tags]
    if not proofs:
        return []
    follow = next((f": `aot wait {build.id}` follows it" for _, build in proofs if build is not None), "")
    now = f"the command starts without it, and compiles; a start after its proof restores it{follow}"
    return [*(_line(bundle, build) for bundle, build in proofs), now]


def _proof_of(bundle: BundleView, reference: Reference, builds: Sequence[BuildView]) -> BuildView | None:
    """Return the build that proves the bundle, of several the one that moves the reference's tag."""
    own = [build for build in builds if build.build_key == bundle.build_key and build.profile == bundle.profile]
    return next((build for build in own if reference.tag in build.tags), own[0] if own else None)


def _line(bundle: BundleView, build: BuildView | None) -> str:
    what = f"{bundle.digest.short} for {bundle.profile} is pending since {bundle.created_at:%Y-%m-%d %H:%M} UTC"
    if build is None:
        return f"{what}: {bundle.waiting or 'a worker is to prove it'}"
    stands = f"{build.state}{f', {build.waiting}' if build.waiting else ''}"
    return f"{what}: its proof, build {build.id}, is {stands}"
