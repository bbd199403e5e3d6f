"""What tuning has measured on its way: from the registry before a build, to the registry with the bundle.

Nothing here can fail a build. Without measurements it is tuned afresh; and where they cannot be sent, later builds are.
"""

from pathlib import Path

from aot.bundle.hashing import blob_of
from aot.client import RegistryClient
from aot.compile.tuned import MOST_BYTES, TuningStore
from aot.errors import AotError, CompileStopped, IntegrityFailed
from aot.pipeline import pending
from aot.pipeline.build import Staged
from aot.pipeline.source import download
from aot.sandbox import OnEvent, ShouldStop
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link


def fetch_measurements(
    client: RegistryClient,
    link: Link,
    *,
    store: TuningStore,
    into: Path,
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> None:
    """Put what the namespace's last build of this profile has measured into `store`, below what it has itself.

    `into` is a new directory. `on_event` gets a line of what came of it. Raises CompileStopped alone.
    """
    blob, path = Blob(digest=link.digest, size_bytes=link.size_bytes), into / link.digest.hex
    try:
        if blob.size_bytes > MOST_BYTES:
            raise IntegrityFailed(f"measurements of {blob.size_bytes} bytes, wanted at most {MOST_BYTES}")
        into.mkdir(parents=True)
        download(client, link, blob, path, should_stop=should_stop)
        found = len(store.seed(path.read_bytes()))
    except CompileStopped:
        raise
    except (AotError, OSError) as error:
        reason = error.message if isinstance(error, AotError) else str(error)
        on_event({"line": f"tuning begins afresh: the registry's measurements could not be used: {reason}"})
        return
    on_event({"line": f"tuning begins with {found} measurements from the registry ({link.digest})"})


def upload_measurements(
    client: RegistryClient,
    staged: Staged,
    *,
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> Blob | None:
    """Upload what the build has measured, and return the blob to publish; None where there is none to send.

    Waits where the blob is pending, as for those of the bundle. Raises CompileStopped alone.
    """
    if staged.measured is None:
        return None
    namespace = staged.manifest.namespace
    try:
        blob = blob_of(staged.measured)
        if not 0 < blob.size_bytes <= MOST_BYTES:
            raise IntegrityFailed(f"measurements of {blob.size_bytes} bytes, wanted 1 to {MOST_BYTES}")
        pending.upload(client, namespace, (blob,), {blob.digest: staged.measured}, should_stop=should_stop)
    except CompileStopped:
        raise
    except (AotError, OSError) as error:
        on_event({"line": f"what tuning has measured was not uploaded, and later builds measure again: {error}"})
        return None
    return blob
