"""What lies below a directory of caches: the files that may be entries, and those that cannot be, with the reason.

The command that filled it is not trusted to have left what compilers leave. Each bound here is far above what any cache
holds, and keeps what reads the files afterwards from being led into a loop, out of memory or onto a full disk:

    a name that no manifest can hold, directories deeper than a bundle has     left out by name
    a directory or file that may not be read, a link, a pipe, a device         left out
    a file above MOST_FILE_BYTES, or a large one that is nearly all holes      left out: a copy would fill the disk
    more than MOST_FILES files and directories                                 the rest is not looked at
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import islice
from pathlib import Path

from aot.bundle.paths import why_unsafe
from aot.cache.renames import unless_stale
from aot.capture.roots import ROOTS
from aot.capture.units import is_litter

# Tuning of a large model leaves some ten thousand, in twice as many directories; each file becomes a line of the
# manifest. No more than these of one directory are in memory either.
MOST_FILES = 100_000
MOST_FILE_BYTES = 4 << 30  # one upload, and all that the CUDA driver keeps together
# Holes: what is on the disk is less than one in so many of what a reader would get.
HOLES_FROM_BYTES, HOLES_SHARE = 64 << 20, 16
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's are: stat(2)
_NAMES = frozenset(root.name for root in ROOTS)
_CLOSED = "it may not be read"


class _Seen(Enum):
    FILE = auto()
    DIRECTORY = auto()


@dataclass(frozen=True)
class Listing:
    """`left_out` has a line for each file or directory that cannot be kept; `is_cut`: there are more than were seen."""

    paths: frozenset[str]
    left_out: tuple[str, ...] = ()
    is_cut: bool = False


def list_caches(directory: Path) -> Listing:
    """Return what may be an entry below `directory`; locks, bytecode and the like are neither kept nor told of.

    Links, pipes and devices are passed over in silence, as what vanishes meanwhile: other processes' temporary files.
    Raises OSError for what goes on failing.
    """
    found, left_out, seen = set(), [], 0
    for path, kind in _walk(directory):
        seen += 1
        if seen > MOST_FILES:
            return Listing(frozenset(found), tuple(left_out), is_cut=True)
        if kind is _Seen.DIRECTORY or path.partition("/")[0] not in _NAMES or is_litter(path):
            continue
        reason = why_unsafe(path) or _why_unkept(f"{directory}/{path}") if kind is _Seen.FILE else kind
        if reason is None:
            found.add(path)
        elif reason:
            left_out.append(f"{_printable(path)}: {reason}")
    return Listing(frozenset(found), tuple(left_out))


def directories_of(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield every directory below `directory` with its relative path, itself first as ""."""
    waiting = [("", directory)]
    while waiting:
        path, place = waiting.pop()
        yield path, place
        listed = _children(place, most=None)
        for name, is_directory in listed if not isinstance(listed, str) else ():
            below = f"{path}/{name}" if path else name
            if is_directory and why_unsafe(below) is None:
                waiting.append((below, place / name))


def _walk(directory: Path) -> Iterator[tuple[str, "_Seen | str"]]:
    """Yield every file and directory with its relative path; with the reason a directory that is not gone into."""
    waiting = [("", directory)]
    while waiting:
        path, place = waiting.pop()
        listed = _children(place, most=MOST_FILES + 1)
        if isinstance(listed, str):
            yield path, listed
            continue
        for name, is_directory in listed:
            below = f"{path}/{name}" if path else name
            if not is_directory:
                yield below, _Seen.FILE
            elif (reason := why_unsafe(below)) is not None:
                yield below, reason
            else:
                yield below, _Seen.DIRECTORY
                waiting.append((below, place / name))


def _children(place: Path, *, most: int | None) -> list[tuple[str, bool]] | str:
    """Return the names in a directory, and which are directories themselves; or why it has to be left out."""
    try:
        return sorted(unless_stale(partial(_read, place, most)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        return _CLOSED


def _read(place: Path, most: int | None) -> list[tuple[str, bool]]:
    with os.scandir(place) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, most)]


def _why_unkept(place: str) -> str | None:
    """Return why a file cannot be an entry; nothing where that need not be told; None where it can."""
    try:
        found = os.lstat(place)
    except PermissionError:  # its directory may be listed, and not gone into
        return _CLOSED
    except OSError:
        return ""
    if not stat.S_ISREG(found.st_mode):
        return ""
    if found.st_size > MOST_FILE_BYTES:
        return f"{found.st_size} bytes, and an entry has {MOST_FILE_BYTES} at most"
    if found.st_size >= HOLES_FROM_BYTES and found.st_blocks * _BLOCK_BYTES < found.st_size // HOLES_SHARE:
        return (
            f"{found.st_size} bytes, of which {found.st_blocks * _BLOCK_BYTES} are on the disk: no cache leaves holes"
        )
    return None


def _printable(path: str) -> str:
    text = path if len(path) <= 200 else f"{path[:120]}...{path[-60:]}"
    return text if text.isprintable() else ascii(text)
