"""Removing directories that other people's programs have filled: whatever they left, it goes."""

import contextlib
import os
import secrets
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
    for one in _directories_in(path):  # each by itself: one that is still too deep ends its own removal alone
        _removed(one)
    _removed(path)


def _removed(path: Path) -> bool:
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    return not path.is_dir() or path.is_symlink()


def _open_and_flatten(path: Path) -> None:
    """Open every directory below `path` to its owner, and move deep ones up to `path` itself.

    Opened before it is moved: a directory's own entry for its parent is written then, which its mode has to allow. The
    new names cannot be known before; beside `path` they would be another's to clear. One that resists keeps no other.
    """
    with contextlib.suppress(OSError):
        path.chmod(0o700)
    waiting = [(path, 0)]
    while waiting:
        place, depth = waiting.pop()
        for one in _directories_in(place):
            with contextlib.suppress(OSError):
                one.chmod(0o700)
                deep = depth + 1
                if depth >= _DEEP or len(os.fsencode(one)) > _LONG_BYTES:
                    target = path / f".aot-deep-{secrets.token_hex(16)}"
                    one.rename(target)
                    one, deep = target, 1
                waiting.append((one, deep))


def _directories_in(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as found:
            return [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
