"""An archive as a tree again: `unpack_tree`. The archive is hostile: it comes from whoever submitted it."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aot.bundle.hashing import CHUNK_BYTES
from aot.bundle.paths import why_unsafe_together
from aot.errors import InvalidInput, InvalidSource
from aot.source.archive import Member, read_members
from aot.source.pack import FILE_BYTES, FILES, TOTAL_BYTES


@dataclass(frozen=True, kw_only=True)
class TreeLimits:
    """What a tree may hold; checked before the first byte is written."""

    file_bytes: int = FILE_BYTES
    total_bytes: int = TOTAL_BYTES
    files: int = FILES


def unpack_tree(archive: Path, into: Path, *, limits: TreeLimits = TreeLimits()) -> tuple[str, ...]:
    """Make the directory `into` with the archive's files, and return their paths; it appears whole or not at all.

    Raises InvalidSource for an archive that `pack_tree` would not write: paths that leave the tree, links, devices,
    sizes over a limit, anything cut off or appended. Raises InvalidInput when `into` is there already.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise InvalidInput(f"{into} exists and is not empty", hint="unpack into a new directory")
    with archive.open("rb") as file:
        members = _checked_members(file, limits)
        into.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{into.name}-", dir=into.parent))
        try:
            for member in members:
                _write(member, file, temporary)
            temporary.chmod(0o755)
            temporary.rename(into)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return tuple(member.path for member in members)


def _checked_members(file: BinaryIO, limits: TreeLimits) -> tuple[Member, ...]:
    members: list[Member] = []
    total = 0
    for member in read_members(file, size_bytes=os.fstat(file.fileno()).st_size):
        members.append(member)
        total += member.size_bytes
        if len(members) > limits.files:
            raise _refused(member.path, f"the archive has more than {limits.files} files")
        if member.size_bytes > limits.file_bytes:
            raise _refused(member.path, f"it has {member.size_bytes} bytes, the limit is {limits.file_bytes}")
        if total > limits.total_bytes:
            raise _refused(member.path, f"the files have more than {limits.total_bytes} bytes together")
    if (unsafe := why_unsafe_together(member.path for member in members)) is not None:
        raise _refused(*unsafe)
    return tuple(members)


def _write(member: Member, archive: BinaryIO, root: Path) -> None:
    path = root / member.path
    path.parent.mkdir(parents=True, exist_ok=True)
    archive.seek(member.offset)
    left = member.size_bytes
    with path.open("xb") as file:
        while left and (chunk := archive.read(min(left, CHUNK_BYTES))):
            file.write(chunk)
            left -= len(chunk)
    if left:
        raise _refused(member.path, "the archive was cut off while it was read")
    path.chmod(0o755 if member.executable else 0o644)


def _refused(path: str, reason: str) -> InvalidSource:
    return InvalidSource(
        f"{path[:200]!r} cannot be unpacked: {reason}", hint="pack the source tree again", details={"path": path}
    )
