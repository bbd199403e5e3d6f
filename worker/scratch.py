"""A private directory for one attempt, gone afterwards whatever happens."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_directory(root: Path, build: str) -> Iterator[Path]:
    """Make a 0700 directory below `root` and remove it with all it holds at the end."""
    root.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=f"{build}-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def clear_scratch(root: Path) -> None:
    """Remove what killed workers left behind. Call it before the first attempt of the only worker on `root`."""
    for path in root.iterdir() if root.is_dir() else ():
        shutil.rmtree(path, ignore_errors=True)
