"""Private directories: one for a worker while it lives, one for each attempt, gone afterwards whatever happens."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aot.cache.locks import locked
from aot.cache.trees import remove_tree
from aot.errors import DirectoryInUse, InvalidConfig
from aot.schema.names import Name

# Another worker that starts looks whether the lock of this name is free, and holds it then for a moment.
LOOK_SECONDS = 1.0


@contextmanager
def own_scratch(root: Path, name: Name, *, wait_seconds: float = LOOK_SECONDS) -> Iterator[Path]:
    """Hold the directory of the worker `name` below `root` during the block, and remove it afterwards.

    Also removes what workers left behind that were killed: their locks ended with them. Raises DirectoryInUse where
    a worker of this name lives, InvalidConfig where nothing can be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfig(
            f"could not make the scratch directory {root}: {error.strerror or error}",
            hint="set AOT_DATA_DIR to a directory that this process may write",
        ) from error
    with locked(_lock_of(root, name), wait_seconds=wait_seconds, remove=True) as held:
        if not held:
            raise DirectoryInUse(
                f"another worker named {name} works in {root}",
                hint="stop it, or set AOT_WORKER_NAME or AOT_DATA_DIR to something else",
            )
        _clear(root, own=name)
        try:
            yield root / name
        finally:
            remove_tree(root / name)


@contextmanager
def scratch_directory(root: Path, build: str) -> Iterator[Path]:
    """Make a 0700 directory below `root` and remove it with all it holds at the end."""
    root.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=f"{build}-", dir=root))
    try:
        yield path
    finally:
        remove_tree(path)


def _clear(root: Path, *, own: Name) -> None:
    remove_tree(root / own)
    left = {path.name.removesuffix(".lock") for path in root.iterdir()}
    for name in sorted(left - {own}):
        with locked(_lock_of(root, name), wait_seconds=0, remove=True) as free:
            if free:
                remove_tree(root / name)


def _lock_of(root: Path, name: str) -> Path:
    return root / f"{name}.lock"
