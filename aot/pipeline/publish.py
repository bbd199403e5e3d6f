"""Publish: the back half of the first flow. Bytes first, the manifest that makes them visible last."""

from collections.abc import Sequence

from aot.client import RegistryClient
from aot.errors import BlobMissing
from aot.pipeline import pending
from aot.pipeline.build import Staged
from aot.pipeline.measurements import upload_measurements
from aot.pipeline.source import PackedSource
from aot.sandbox import OnEvent, ShouldStop
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.names import Tag
from aot.schema.spec import ProgramSource, Spec
from aot.schema.wire.bundles import PublishReply


def publish_bundle(
    client: RegistryClient,
    staged: Staged,
    *,
    build: str,
    with_measurements: bool = False,
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> PublishReply:
    """Upload the blobs that the namespace lacks, then publish with the token of the attempt. Safe to repeat.

    `with_measurements`: the registry keeps what tuning has measured, and gets it.
    Raises LeaseLost, BlobMissing, Forbidden, Unavailable, and CompileStopped with the text of `should_stop`.
    """
    upload_bundle(client, staged, should_stop=should_stop)
    measurements = None
    if with_measurements:
        measurements = upload_measurements(client, staged, on_event=on_event, should_stop=should_stop)
    on_event({"phase": "publishing"})
    return pending.while_pending(
        lambda: client.publish(build, staged.manifest_text, measurements=measurements), should_stop=should_stop
    )


def push_bundle(
    client: RegistryClient, staged: Staged, *, tags: Sequence[Tag] = (), source: PackedSource | None = None
) -> PublishReply:
    """Upload a bundle that was built elsewhere; it stays pending until a fitting worker has proven it again.

    The proof needs the source and its weights: what the registry lacks of them is taken from `source`. Raises
    BlobMissing where it is not there, and what `publish_bundle` raises.
    """
    manifest = staged.manifest
    ours = {*staged.paths, *(source.paths if source is not None else ())}

    def upload() -> None:
        if source is not None:
            pending.upload(client, manifest.namespace, manifest.spec.blobs, source.paths, leave=True)
        upload_bundle(client, staged)

    try:
        return pending.after_upload(upload, lambda: client.push(staged.manifest_text, tags=tuple(tags)), ours=ours)
    except BlobMissing as error:
        # Asked at the end: what was uploaded and not yet used for anything is offered for upload again.
        raise _source_missing(manifest, error) from error


def _source_missing(manifest: Manifest, error: BlobMissing) -> BlobMissing:
    """The same error in the user's words, where it is about what the bundle was built from."""
    spec = manifest.spec
    missing = [blob.digest for blob in spec.blobs if blob.digest in error.details.get("digests", ())]
    if not missing:
        return error
    weights = {file.digest: file.path for file in spec.weights}
    names = [weights.get(digest, f"the source {digest}") for digest in missing]
    return BlobMissing(
        f"the registry lacks what {manifest.namespace}/{manifest.name} was built from: {', '.join(names)}",
        hint=f"a worker proves the bundle again, so it needs that too: add {_options(spec, missing)}",
        details={"digests": missing},
    )


def _options(spec: Spec, missing: Sequence[Digest]) -> str:
    """The options of `aot push` that bring the blobs."""
    wanted = "FILE.pt2" if isinstance(spec.source, ProgramSource) else "TREE"
    source = [] if any(file.digest == missing[0] for file in spec.weights) else [f"--source {wanted}"]
    return " ".join((*source, *(f"--weights {file.path}" for file in spec.weights if file.digest in missing)))


def upload_bundle(client: RegistryClient, staged: Staged, *, should_stop: ShouldStop = lambda: None) -> None:
    """Make true that the registry holds every blob of the bundle. What is there already is not sent again."""
    manifest = staged.manifest
    pending.upload(client, manifest.namespace, manifest.blobs, staged.paths, should_stop=should_stop)
