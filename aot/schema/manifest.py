"""The manifest: the canonical document that lists a bundle. Its digest is the bundle's identity.

Newcomer's first schema file. It is written by `aot.bundle` at the end of a compile, signed by the registry at
publish (design.md, section 5), verified and decoded by every client before one byte of an artifact is used.
"""

from collections.abc import Iterator

from aot.errors import MalformedDocument
from aot.schema.artifact import Artifact
from aot.schema.codec import Document, FormatProbe, always, decode, encode
from aot.schema.digest import BuildKey, Digest
from aot.schema.factor import Factor, Fingerprint
from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile
from aot.schema.report import CompileReport, Provenance, Qualification
from aot.schema.spec import Blob, File, Spec

MANIFEST_FORMAT = 1
PAYLOAD_TYPE = "application/vnd.aot-registry.bundle+json"


class Canary(Document, kw_only=True):
    """Small seeded inputs for a first check on the pod: their seed, and the point of the coverage they sit at."""

    artifact: int
    seed: int
    point: dict[str, int]
    weights_seed: int = 0
    expected: tuple[File, ...] = ()  # outputs under the synthetic weights


class Manifest(Document, kw_only=True):
    """One bundle: everything a client needs to decide, fetch, verify and load it.

    `weights` is empty unless the build is frozen; then the bundle serves exactly that checkpoint.
    """

    format: int = always(MANIFEST_FORMAT)
    namespace: Namespace
    name: Name
    build_key: BuildKey
    factors: tuple[Factor, ...]
    spec: Spec
    profile: Profile
    fingerprint: Fingerprint
    artifacts: tuple[Artifact, ...]
    qualification: Qualification
    compile_report: CompileReport = CompileReport()
    canaries: tuple[Canary, ...] = ()
    provenance: Provenance = Provenance()

    @property
    def frozen(self) -> bool:
        return self.spec.recipe.freeze

    @property
    def files(self) -> Iterator[File]:
        """Every file, artifact by artifact; equal files of two artifacts appear twice."""
        for artifact in self.artifacts:
            yield from artifact.all_files
        for canary in self.canaries:
            yield from canary.expected

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The distinct blobs of the bundle, by digest."""
        sizes = {file.digest: file.size_bytes for file in self.files}
        return tuple(Blob(digest=digest, size_bytes=sizes[digest]) for digest in sorted(sizes))

    @property
    def size_bytes(self) -> int:
        return sum(blob.size_bytes for blob in self.blobs)


class Signature(Document, kw_only=True):
    keyid: str
    sig: str  # base64


class Statement(Document, kw_only=True):
    """What the registry signs: that this digest is this bundle, under this name, for this key."""

    manifest: Digest
    namespace: Namespace
    name: Name
    build_key: BuildKey


class Envelope(Document, kw_only=True, rename={"payload_type": "payloadType"}):
    """A DSSE envelope (secure-systems-lab/dsse, protocol v1.0.0) around a `Statement`."""

    payload: str  # base64 of the statement's canonical bytes
    payload_type: str = PAYLOAD_TYPE
    signatures: tuple[Signature, ...]


def encode_manifest(manifest: Manifest) -> tuple[bytes, Digest]:
    """Return the canonical bytes and the digest of `manifest`."""
    # Read back once: an int in a float's place (`wall_seconds=300`) is written as `300`, and as `300.0` by whoever
    # decodes and encodes again.
    content = encode(decode(encode(manifest), Manifest))
    return content, Digest.of(content)


def decode_manifest(content: bytes) -> Manifest:
    """Return the manifest. Raises MalformedDocument, also for a format this version does not read."""
    version = decode(content, FormatProbe, what="manifest").format
    if version != MANIFEST_FORMAT:
        raise MalformedDocument(
            f"the manifest has format {version}, this version reads {MANIFEST_FORMAT}",
            hint="update aot on this side, or publish with an older one",
            details={"path": "$.format"},
        )
    return decode(content, Manifest, what="manifest")
