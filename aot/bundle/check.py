"""Everything that is wrong with a bundle on disk, as values: an operator sees all of it, a loader stops at the first.

Stands before any use of a bundle that came from elsewhere. The stored bytes are what is verified, never a re-encoding;
that they are canonical is one more condition, so that one bundle has one identity.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aot.bundle.assemble import check_files
from aot.bundle.form import BLOBS, ENVELOPE, MANIFEST, read_document
from aot.bundle.hashing import blob_of
from aot.errors import (
    AotError,
    DigestMismatch,
    IntegrityFailed,
    MalformedDocument,
    SignatureRejected,
    SizeMismatch,
    UnknownFile,
)
from aot.schema.codec import decode, encode
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope, Manifest, decode_manifest
from aot.trust import TrustedKeys, verify


class ViolationKind(StrEnum):
    MALFORMED = "malformed"  # manifest or envelope does not decode, or lists what cannot be stored
    NOT_CANONICAL = "not-canonical"
    UNSIGNED = "unsigned"
    SIGNATURE = "signature"  # of no trusted key, altered, or about another bundle
    MISSING = "missing"
    TRUNCATED = "truncated"
    EXTENDED = "extended"
    ALTERED = "altered"
    UNKNOWN = "unknown"
    NOT_A_FILE = "not-a-file"  # a link, a directory or a device stands where a file belongs


_ERRORS: dict[ViolationKind, type[AotError]] = {
    ViolationKind.MALFORMED: MalformedDocument,
    ViolationKind.NOT_CANONICAL: IntegrityFailed,
    ViolationKind.UNSIGNED: SignatureRejected,
    ViolationKind.SIGNATURE: SignatureRejected,
    ViolationKind.MISSING: IntegrityFailed,
    ViolationKind.TRUNCATED: SizeMismatch,
    ViolationKind.EXTENDED: SizeMismatch,
    ViolationKind.ALTERED: DigestMismatch,
    ViolationKind.UNKNOWN: UnknownFile,
    ViolationKind.NOT_A_FILE: UnknownFile,
}


@dataclass(frozen=True)
class Violation:
    """`path` is relative to the bundle's directory."""

    kind: ViolationKind
    path: str
    text: str


def verify_bundle(directory: Path, trusted: TrustedKeys | None) -> tuple[Violation, ...]:
    """Return every violation; empty for a bundle that is whole and signed by a trusted key.

    `trusted` None leaves the signature out of it: for a bundle that was just built and is not published yet.
    Reads every byte once. Raises OSError when the disk cannot be read.
    """
    try:
        content = read_document(directory / MANIFEST)
        if content is None:
            return (Violation(ViolationKind.MISSING, MANIFEST, f"{MANIFEST} is missing"),)
        manifest = decode_manifest(content)
        check_files(manifest)
    except MalformedDocument as error:
        return (Violation(ViolationKind.MALFORMED, MANIFEST, error.message),)
    return (
        *_documents(directory, manifest, content, trusted),
        *_blobs(directory, manifest),
        *_unknown(directory, manifest),
    )


def raise_first(violations: Iterable[Violation]) -> None:
    """Raise the error that the first violation stands for, with all of them in its details; nothing when empty."""
    every = tuple(violations)
    if not every:
        return
    raise _ERRORS[every[0].kind](
        every[0].text + (f" (and {len(every) - 1} more)" if len(every) > 1 else ""),
        hint="do not use this bundle; fetch or build it again",
        details={"violations": [f"{violation.path}: {violation.text}" for violation in every[:100]]},
    )


def _documents(directory: Path, manifest: Manifest, content: bytes, trusted: TrustedKeys | None) -> Iterator[Violation]:
    if encode(manifest) != content:
        text = "the manifest is not in its canonical form, so the same bundle could have another digest"
        yield Violation(ViolationKind.NOT_CANONICAL, MANIFEST, text)
    try:
        stored = read_document(directory / ENVELOPE)
        envelope = None if stored is None else decode(stored, Envelope, what="envelope")
    except MalformedDocument as error:
        yield Violation(ViolationKind.MALFORMED, ENVELOPE, error.message)
        return
    if trusted is None:
        return
    if envelope is None:
        yield Violation(ViolationKind.UNSIGNED, ENVELOPE, "the bundle is not signed")
        return
    try:
        verify(
            envelope,
            trusted,
            manifest=Digest.of(content),
            namespace=manifest.namespace,
            name=manifest.name,
            build_key=manifest.build_key,
        )
    except SignatureRejected as error:
        yield Violation(ViolationKind.SIGNATURE, ENVELOPE, error.message)


def _blobs(directory: Path, manifest: Manifest) -> Iterator[Violation]:
    for blob in manifest.blobs:
        path = f"{BLOBS}/{blob.digest.hex}"
        try:
            status = os.lstat(directory / path)
        except (FileNotFoundError, NotADirectoryError):
            yield Violation(ViolationKind.MISSING, path, f"blob {blob.digest.short} is missing")
            continue
        if not stat.S_ISREG(status.st_mode):
            yield Violation(ViolationKind.NOT_A_FILE, path, f"blob {blob.digest.short} is no plain file")
        elif status.st_size != blob.size_bytes:
            kind = ViolationKind.TRUNCATED if status.st_size < blob.size_bytes else ViolationKind.EXTENDED
            text = f"blob {blob.digest.short} has {status.st_size} bytes, the manifest says {blob.size_bytes}"
            yield Violation(kind, path, text)
        elif (found := blob_of(directory / path)).digest != blob.digest:
            text = f"the bytes of blob {blob.digest.short} have digest {found.digest.short}"
            yield Violation(ViolationKind.ALTERED, path, text)


def _unknown(directory: Path, manifest: Manifest) -> Iterator[Violation]:
    """Whatever stands in the directory besides the manifest, the envelope and the listed blobs."""
    listed = {f"{BLOBS}/{blob.digest.hex}" for blob in manifest.blobs}
    pending = [""]
    while pending:
        prefix = pending.pop(0)
        for entry in sorted(os.scandir(directory / prefix), key=lambda entry: entry.name):
            path = f"{prefix}{entry.name}"
            if path in listed or path in (MANIFEST, ENVELOPE):
                continue  # looked at already
            if not entry.is_dir(follow_symlinks=False):
                yield Violation(ViolationKind.UNKNOWN, path, f"{path} is not listed in the manifest")
            elif f"{BLOBS}/".startswith(f"{path}/"):
                pending.append(f"{path}/")
            else:
                yield Violation(ViolationKind.UNKNOWN, path, f"directory {path} is no part of a bundle")
