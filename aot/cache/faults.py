"""What the operating system's refusals mean for the cache: one translation, used wherever it writes."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aot.errors import AotError, InvalidConfig, LocalStorageFull


@contextmanager
def translated(root: Path, wish: str) -> Iterator[None]:
    """Turn an OSError of the block into LocalStorageFull or InvalidConfig."""
    try:
        yield
    except OSError as error:
        raise cache_error(error, root, wish) from error


def cache_error(error: OSError, root: Path, wish: str) -> AotError:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LocalStorageFull(
            f"could not {wish}: {reason} ({root})",
            hint="free space on this disk, lower AOT_CACHE_BYTES, or set AOT_CACHE_DIR to a larger one",
        )
    return InvalidConfig(
        f"could not {wish}: {reason} ({root})",
        hint="set AOT_CACHE_DIR to a directory that this process may write",
    )
