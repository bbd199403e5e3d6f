"""Keeping the cache below its bound: the least recently used go first, what is held stays."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aot.cache.holds import held_digests
from aot.cache.incoming import sweep_incoming
from aot.cache.locks import locked_directory, sweep_locks

LOCK_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Evicted:
    """What one eviction did. `used_bytes` may stay above the bound: what is held is not removed."""

    removed: int
    freed_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class _Entry:
    path: Path
    digest: str
    size_bytes: int
    used_at_ns: int


def evict(root: Path, *, limit_bytes: int) -> Evicted:
    """Remove entries until the cache is within `limit_bytes`, and the remains of writers and holders that died.

    Does nothing when another process is evicting already, or when the directory cannot be written.
    """
    with locked_directory(root, wait_seconds=LOCK_WAIT_SECONDS) as alone:
        if alone:
            return _evict(root, limit_bytes)
    return Evicted(removed=0, freed_bytes=0, used_bytes=used_bytes(root))


def used_bytes(root: Path) -> int:
    """Size of all blobs and manifests."""
    return sum(entry.size_bytes for entry in _entries(root))


def _evict(root: Path, limit_bytes: int) -> Evicted:
    sweep_incoming(root)
    sweep_locks(root / "locks")
    entries = sorted(_entries(root), key=lambda entry: entry.used_at_ns)
    used = before = sum(entry.size_bytes for entry in entries)
    removed = 0
    if used > limit_bytes:
        held = held_digests(root)
        _drop_views(root, held)
        for entry in entries:
            if used <= limit_bytes:
                break
            if entry.digest in held:
                continue
            with contextlib.suppress(OSError):
                entry.path.unlink()
                used -= entry.size_bytes
                removed += 1
    return Evicted(removed=removed, freed_bytes=before - used, used_bytes=used)


def _drop_views(root: Path, held: set[str]) -> None:
    import shutil  # 4 ms that a start without eviction does not pay

    # A view is hard links to blobs: while it stands, removing a blob frees nothing. It is made again in no time.
    for path in (root / "views").glob("*"):
        if f"sha256:{path.name.partition('-')[0]}" not in held:
            shutil.rmtree(path, ignore_errors=True)


def _entries(root: Path) -> Iterator[_Entry]:
    for directory in (*(root / "blobs").glob("*"), root / "manifests"):
        with contextlib.suppress(OSError), os.scandir(directory) as found:
            for item in found:
                with contextlib.suppress(OSError):
                    status = item.stat(follow_symlinks=False)
                    stem = item.name if directory.name == "manifests" else directory.name + item.name
                    yield _Entry(
                        Path(item.path), f"sha256:{stem.removesuffix('.json')}", status.st_size, status.st_mtime_ns
                    )
