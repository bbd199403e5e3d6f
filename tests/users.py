"""Another user than root, whom the modes of files and directories do not bind."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aot.cache.trees import remove_tree

_NOBODY = 65534


@contextlib.contextmanager
def as_nobody() -> Iterator[Path]:
    """A directory of a user who is not root, as whom the block runs: whoever runs the tests, if that is not root."""
    is_root = os.geteuid() == 0
    place = Path(tempfile.mkdtemp(prefix="aot-test-"))
    try:
        if is_root:
            os.chown(place, _NOBODY, _NOBODY)
            os.seteuid(_NOBODY)
        yield place
    finally:
        if is_root:
            os.seteuid(0)
        remove_tree(place)
