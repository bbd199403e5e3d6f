"""Manifests and remembered tags: small files, written whole and renamed, read back only if they are what they say.

What is read here is not trusted by that: the caller verifies the envelope before it uses a manifest.
"""

import contextlib
import os
from datetime import datetime
from pathlib import Path

from aot.cache.faults import cache_error
from aot.errors import MalformedDocument
from aot.schema.codec import Response, decode, encode
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.wire.signed import SignedManifest


class RememberedTag(Response, kw_only=True):
    """Which bundles a tag stood for when the registry last said so. It may have moved since: mark it stale."""

    reference: Reference
    bundles: tuple[Digest, ...]
    seen_at: datetime


def write_manifest(root: Path, signed: SignedManifest) -> None:
    """Raises LocalStorageFull or InvalidConfig."""
    _write(root, _manifest_path(root, signed.digest), encode(signed))


def read_manifest(root: Path, digest: Digest) -> SignedManifest | None:
    """The manifest as it was stored; None when it is absent, or damaged, which removes it."""
    path = _manifest_path(root, digest)
    content = _read(path)
    if content is None:
        return None
    try:
        signed = decode(content, SignedManifest, what="cached manifest")
    except MalformedDocument:
        signed = None
    if signed is None or signed.digest != digest or Digest.of(signed.manifest.encode()) != digest:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    return signed


def write_tag(root: Path, tag: RememberedTag) -> None:
    """Raises LocalStorageFull or InvalidConfig."""
    _write(root, _tag_path(root, tag.reference), encode(tag))


def read_tag(root: Path, reference: Reference) -> RememberedTag | None:
    content = _read(_tag_path(root, reference))
    if content is None:
        return None
    try:
        tag = decode(content, RememberedTag, what="remembered tag")
    except MalformedDocument:
        return None
    return tag if tag.reference == reference else None


def _manifest_path(root: Path, digest: Digest) -> Path:
    return root / "manifests" / f"{digest.hex}.json"


def _tag_path(root: Path, reference: Reference) -> Path:
    # By digest: a reference holds characters, and a length, that file names do not.
    return root / "tags" / f"{Digest.of(reference.encode()).hex}.json"


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return content


def _write(root: Path, path: Path, content: bytes) -> None:
    temporary = root / "incoming" / f"{path.name}.{os.getpid()}.{os.urandom(6).hex()}"
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.rename(path)
    except OSError as error:
        raise cache_error(error, root, f"store {path.name} in the cache") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
