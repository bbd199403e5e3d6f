"""Writing and reading the on-disk form. Nothing here trusts: checks of a bundle are in `aot.bundle.check`."""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.bundle.assemble import check_files
from aot.bundle.hashing import CHUNK_BYTES
from aot.errors import DigestMismatch, InvalidInput, LocalStorageFull, MalformedDocument, SizeMismatch
from aot.schema.codec import decode, encode
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope, Manifest, decode_manifest, encode_manifest
from aot.schema.spec import Blob

MANIFEST = "manifest.json"
ENVELOPE = "envelope.json"
BLOBS = "blobs/sha256"
DOCUMENT_BYTES = 256 << 20  # the largest manifest that is read into memory


@dataclass(frozen=True)
class StoredBundle:
    """A bundle in a directory. `digest` is over `manifest_bytes` as they are stored."""

    directory: Path
    manifest: Manifest
    manifest_bytes: bytes
    digest: Digest
    envelope: Envelope | None

    def blob_path(self, digest: Digest) -> Path:
        return self.directory / BLOBS / digest.hex


def write_bundle(
    into: Path, *, manifest: Manifest, files: Mapping[Digest, Path], envelope: Envelope | None = None
) -> StoredBundle:
    """Make the directory `into` with the bundle; it appears whole, after everything reached the disk.

    `files` says where the bytes of each blob are; they are hashed while they are copied. Raises InvalidInput when a
    blob is missing there or `into` is in use, DigestMismatch or SizeMismatch when its bytes are others,
    MalformedDocument when the manifest cannot be stored, LocalStorageFull.
    """
    check_files(manifest)
    missing = [blob.digest for blob in manifest.blobs if blob.digest not in files]
    if missing:
        raise InvalidInput(
            f"the manifest lists {len(missing)} blobs that were not given, the first is {missing[0]}",
            hint="give a path for every blob of the manifest",
            details={"digests": list(missing)},
        )
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise InvalidInput(f"{into} exists and is not empty", hint="write the bundle to a new directory")
    content, _ = encode_manifest(manifest)
    into.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{into.name}-", dir=into.parent))
    try:
        _fill(temporary, manifest=manifest, content=content, files=files, envelope=envelope)
        temporary.chmod(0o755)
        temporary.rename(into)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalStorageFull(
                f"no space left for a bundle of {manifest.size_bytes} bytes in {into.parent}",
                hint="free space there, or write the bundle elsewhere",
            ) from error
        raise
    _sync(into.parent)
    return read_bundle(into)


def write_envelope(directory: Path, envelope: Envelope) -> None:
    """Put the signature beside the manifest of a bundle, replacing an older one."""
    temporary = directory / f".{ENVELOPE}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        _write(temporary, encode(envelope))
        temporary.rename(directory / ENVELOPE)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(directory)


def read_bundle(directory: Path) -> StoredBundle:
    """Return the bundle as it is stored, unverified. Raises MalformedDocument when it is none."""
    content = read_document(directory / MANIFEST)
    if content is None:
        raise MalformedDocument(
            f"{directory} holds no bundle: {MANIFEST} is missing",
            hint="name the directory that `aot build` or `aot pull` wrote",
            details={"path": MANIFEST},
        )
    envelope = read_document(directory / ENVELOPE)
    return StoredBundle(
        directory=directory,
        manifest=decode_manifest(content),
        manifest_bytes=content,
        digest=Digest.of(content),
        envelope=None if envelope is None else decode(envelope, Envelope, what="envelope"),
    )


def read_document(path: Path) -> bytes | None:
    """Return the bytes of a JSON document of a bundle; None where it is absent. Raises MalformedDocument."""
    try:
        # Not through a link, and no wait for a writer: a pipe under this name must not hang the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            content = file.read(DOCUMENT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MalformedDocument(
            f"{path} cannot be read: {error.strerror}", hint="check the directory", details={"path": path.name}
        ) from error
    if len(content) > DOCUMENT_BYTES:
        raise MalformedDocument(
            f"{path} has more than {DOCUMENT_BYTES} bytes", hint="it is no bundle", details={"path": path.name}
        )
    return content


def _fill(
    directory: Path,
    *,
    manifest: Manifest,
    content: bytes,
    files: Mapping[Digest, Path],
    envelope: Envelope | None,
) -> None:
    blobs = directory / BLOBS
    blobs.mkdir(parents=True)
    for blob in manifest.blobs:
        _copy(files[blob.digest], blobs / blob.digest.hex, blob=blob)
    # After all are written: a file system that has to bring each to the disk by itself takes ten times as long.
    for blob in manifest.blobs:
        _sync(blobs / blob.digest.hex)
    if envelope is not None:
        _write(directory / ENVELOPE, encode(envelope))
    _write(directory / MANIFEST, content)
    for written in (blobs, blobs.parent, directory):
        _sync(written)


def _copy(source: Path, target: Path, *, blob: Blob) -> None:
    running, size_bytes = hashlib.sha256(), 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            writer.write(chunk)
            running.update(chunk)
            size_bytes += len(chunk)
    hint = "the file changed after it was listed; build the bundle again"
    if size_bytes != blob.size_bytes:
        raise SizeMismatch(f"{source} has {size_bytes} bytes, the manifest says {blob.size_bytes}", hint=hint)
    found = Digest.from_hex(running.hexdigest())
    if found != blob.digest:
        raise DigestMismatch(f"{source} is {found}, the manifest says {blob.digest}", hint=hint)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(place: Path) -> None:
    """Bring a file, or the names in a directory, to the disk."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
