"""Restore: verified entries into a node-local directory that the caches' variables then name.

One directory a bundle, shared by every process of this user that runs on it, as a cache directory of torch's is: each
file appears whole, by rename, and one that is there is compared with what is to be there at every start. What such
processes compile themselves stays there as well, and the next start on this node has it.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from aot.bundle.paths import why_unsafe_together
from aot.cache.faults import NOEXEC_HINT, is_noexec
from aot.cache.locks import locked, locked_directory
from aot.cache.renames import rename_into, unless_stale
from aot.capture.collect import MARK, names_places
from aot.capture.entries import Entry
from aot.capture.pickled import MOST_BYTES
from aot.capture.plain import read_plain
from aot.capture.roots import DRIVER, ROOTS
from aot.capture.tables import MOST_BYTES as MOST_TABLE_BYTES
from aot.capture.tables import form_of, joined
from aot.errors import AotError, DigestMismatch, InvalidConfig, LocalStorageFull, MalformedDocument
from aot.schema.digest import Digest

DIRECTORY = "captures"
MOST_DIRECTORIES = 8
WAIT_SECONDS = 60.0
_CHUNK_BYTES = 1 << 20


def place_for(cache_dir: Path, bundle: Digest | None) -> Path:
    """Return the directory of the caches that belong to `bundle`; of None those of commands that no bundle fits."""
    return cache_dir / DIRECTORY / (bundle.hex if bundle is not None else "none")


def restore(entries: Sequence[Entry], blobs: Mapping[Digest, Path], *, into: Path) -> int:
    """Make true that every entry lies in `into`; return how many had to be written.

    Each has the bytes of its digest, but for two: an entry that names places has `into` where the mark is, and a table
    (`aot.capture.tables`) that is there keeps the rows that earlier runs on this node have added, joined with its own.
    Safe to call from many processes at once. Raises MalformedDocument for a path that leaves its cache, DigestMismatch
    for a blob that is not what it is called, LocalStorageFull, InvalidConfig for a directory that cannot be written, or
    from which no shared object among the entries could be loaded: torch would find it, and fail.
    """
    check_paths([entry.path for entry in entries])
    if is_noexec(into) and any(entry.path.endswith(".so") for entry in entries):
        raise InvalidConfig(
            f"{into} is on a file system mounted noexec: no shared object can be loaded from it",
            hint=f"{NOEXEC_HINT}; where a command is captured, TMPDIR",
        )
    try:
        into.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Nothing says that the driver makes the directory that it is told to use, as compilers do. Where it cannot be
        # made (an older version has filled the directory, which is mounted read-only by now), it keeps nothing.
        with contextlib.suppress(OSError):
            (into / DRIVER).mkdir(exist_ok=True)
        # The lock saves work: without one each file still appears whole, several times.
        with locked(into.with_name(f"{into.name}.lock"), wait_seconds=WAIT_SECONDS):
            written = sum(unless_stale(partial(_place, entry, blobs[entry.digest], into)) for entry in entries)
        with contextlib.suppress(OSError):  # when it was used last: everything is in its place without
            os.utime(into)
    except OSError as error:
        raise _of_system(error, into) from error
    return written


@contextlib.contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """Keep `directory` from being forgotten during the block, and forget the oldest others beyond MOST_DIRECTORIES."""
    with locked_directory(directory, wait_seconds=1.0, shared=True):
        _forget_old(directory.parent, keep=directory)
        yield


def check_paths(paths: Sequence[str]) -> None:
    """Raise MalformedDocument for the first path that is of no known cache, or cannot be used."""
    names = {root.name for root in ROOTS}
    unsafe = why_unsafe_together(paths)
    unknown = next((path for path in paths if path.partition("/")[0] not in names or "/" not in path), None)
    if unsafe is None and unknown is not None:
        unsafe = unknown, "it is of no known cache"
    if unsafe is not None:
        raise MalformedDocument(
            f"the bundle lists the entry {unsafe[0][:200]!r}, which cannot be used: {unsafe[1]}",
            hint="do not use this bundle: it was not written by aot, or by a newer version",
            details={"path": unsafe[0][:200]},
        )


def _place(entry: Entry, blob: Path, into: Path) -> bool:
    target = into / entry.path
    if (names_places(entry.path) or form_of(entry.path)) and entry.size_bytes <= MOST_BYTES:
        content = blob.read_bytes()
        _require(hashlib.sha256(content).hexdigest(), entry)
        if names_places(entry.path):
            content = content.replace(MARK, str(into).encode())
        content = _with_rows_of(target, entry.path, content)
        if _holds(target, content):
            return False
        with _appearing(target, is_whole=partial(_holds, target, content)) as file:
            file.write(content)
        return True
    if _is_whole(target, entry):
        return False
    _copy(blob, target, entry)
    return True


def _with_rows_of(target: Path, path: str, content: bytes) -> bytes:
    """Return a table with what earlier runs on this node have added to it; every other content as it is."""
    try:
        there = read_plain(target.parent, target.name, most_bytes=MOST_TABLE_BYTES + 1) if form_of(path) else content
    except OSError:
        return content
    return content if there == content else joined(path, content, there) or content


def _is_whole(target: Path, entry: Entry) -> bool:
    try:
        with target.open("rb") as file:
            return (
                os.fstat(file.fileno()).st_size == entry.size_bytes
                and hashlib.file_digest(file, "sha256").hexdigest() == entry.digest.hex
            )
    except OSError:
        return False  # absent, or a handle that a network file system has let go stale


def _copy(blob: Path, target: Path, entry: Entry) -> None:
    running = hashlib.sha256()
    with blob.open("rb") as source, _appearing(target, is_whole=partial(_is_whole, target, entry)) as file:
        while chunk := source.read(_CHUNK_BYTES):
            running.update(chunk)
            file.write(chunk)
        _require(running.hexdigest(), entry)


def _holds(target: Path, content: bytes) -> bool:
    try:
        return target.read_bytes() == content
    except OSError:
        return False


@contextlib.contextmanager
def _appearing(target: Path, *, is_whole: Callable[[], bool]) -> Iterator[BinaryIO]:
    """A new file that gets its name when the block ends well, and is gone where it does not."""
    temporary = target.with_name(f".aot-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with _created(temporary) as file:
            yield file
        rename_into(temporary, target, is_whole=is_whole)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _created(place: Path) -> BinaryIO:
    try:
        return place.open("xb")
    except FileNotFoundError:  # the first file of its directory
        place.parent.mkdir(parents=True, exist_ok=True)
        return place.open("xb")


def _require(found: str, entry: Entry) -> None:
    if found != entry.digest.hex:
        raise DigestMismatch(
            f"the entry {entry.path} is sha256:{found}, the manifest says {entry.digest}",
            hint="fetch the bundle again",
            details={"wanted": entry.digest, "found": f"sha256:{found}"},
        )


def _forget_old(parent: Path, *, keep: Path) -> None:
    """Remove the least recently used directories that no process is in. Never raises."""
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found = sorted(
            (place for place in parent.iterdir() if place.is_dir()), key=lambda place: -place.stat().st_mtime
        )
    for place in found[MOST_DIRECTORIES:]:
        if place == keep:
            continue
        # One that cannot go, as a file that another client has open keeps it, does not keep the others.
        with contextlib.suppress(OSError), locked_directory(place, wait_seconds=0.0) as free:
            if free:
                gone = place.with_name(f".gone-{place.name[:16]}-{os.getpid()}")
                place.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)


def _of_system(error: OSError, place: Path) -> AotError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LocalStorageFull(f"no space to restore into {place}", hint="free space, or move AOT_CACHE_DIR")
    return InvalidConfig(
        f"could not restore into {place}: {error.strerror or error}", hint="check the permissions of AOT_CACHE_DIR"
    )
