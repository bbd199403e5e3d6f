"""Removing directories that other people's programs have filled: whatever they left, it goes."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_DEEP = 32  # directories: well below what `shutil.rmtree` goes down by calling itself
_LONG_BYTES = 2048  # of a path: half of what a system call takes


@contextlib.contextmanager
def temporary_tree(prefix: str) -> Iterator[Path]:
    """A new 0700 directory, removed at the end with all it holds. Raises OSError where none can be made."""
    place = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield place
    finally:
        remove_tree(place)


def remove_tree(path: Path) -> None:
    """Remove `path` with all it holds, also directories that a child closed to us or nested without end.

    What resists stays. To be called when nothing writes there any more.
    """
    if _removed(path):
        return
    _open_and_flatten(path)
    _removed(path)


def _removed(path: Path) -> bool:
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    return not path.is_dir() or path.is_symlink()


def _open_and_flatten(path: Path) -> None:
    """Open every directory below `path` to its owner, and move deep ones up to `path` itself."""
    waiting, moved = [(path, 0)], 0
    while waiting:
        place, depth = waiting.pop()
        with contextlib.suppress(OSError):
            place.chmod(0o700)
            with os.scandir(place) as found:
                inner = [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
            for one in inner:
                deep = depth
                if depth >= _DEEP or len(os.fsencode(one)) > _LONG_BYTES:
                    moved += 1
                    deep, target = 0, path / f".aot-deep-{moved}"
                    one.rename(target)
                    one = target
                waiting.append((one, deep + 1))
