"""Exit codes of the `aot` command: part of its contract with CI.

A build that ended without a bundle is 3, whoever ended it: failed, not proven, or cancelled. One that goes on after
`aot wait --timeout` is 5, as all that is to be tried again later. A command over several profiles ends with the worst
code of them: what trying again cannot mend is worse than what it can.
"""

import errno
from collections.abc import Iterable
from enum import IntEnum

from aot.errors import (
    AotError,
    ArtifactUnusable,
    BuildFailed,
    CompileFailed,
    IntegrityFailed,
    InvalidInput,
    LocalStorageFull,
    NoCompatibleArtifact,
    RegistryError,
    Unavailable,
)


class Exit(IntEnum):
    OK = 0  # present or built
    FAULT = 1  # ours
    BAD_INPUT = 2
    BUILD_FAILED = 3
    NOTHING_FITS = 4
    UNAVAILABLE = 5  # try again later
    INTEGRITY = 6
    REFUSED = 7
    INTERRUPTED = 130


_FAMILIES: tuple[tuple[type[AotError], Exit], ...] = (
    (BuildFailed, Exit.BUILD_FAILED),
    (CompileFailed, Exit.BUILD_FAILED),
    (InvalidInput, Exit.BAD_INPUT),
    (IntegrityFailed, Exit.INTEGRITY),
    (NoCompatibleArtifact, Exit.NOTHING_FITS),
    (ArtifactUnusable, Exit.NOTHING_FITS),
    (Unavailable, Exit.UNAVAILABLE),
    (RegistryError, Exit.REFUSED),
)


def exit_code_of(error: AotError) -> Exit:
    """Return the code of the first family that `error` belongs to."""
    return next((code for family, code in _FAMILIES if isinstance(error, family)), Exit.FAULT)


WORST_FIRST = (
    Exit.INTERRUPTED,
    Exit.FAULT,
    Exit.INTEGRITY,  # somebody may have tampered with something
    Exit.REFUSED,
    Exit.BAD_INPUT,
    Exit.BUILD_FAILED,
    Exit.NOTHING_FITS,
    Exit.UNAVAILABLE,  # the only one that the same command may mend later
    Exit.OK,
)


def worst(codes: Iterable[Exit]) -> Exit:
    """Return the code of the whole of several that ended with `codes`; OK for none."""
    return min(codes, key=WORST_FIRST.index, default=Exit.OK)


_FULL = (errno.ENOSPC, errno.EDQUOT)
_PLACES = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTEMPTY),
)


def of_system(error: OSError) -> AotError | None:
    """Return what an error of the operating system means to whoever named the path; None: not his to mend."""
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in _FULL:
        return LocalStorageFull(f"{where}{error.strerror}", hint="free space there, or name another place")
    if error.errno in _PLACES and error.filename:
        return InvalidInput(f"{where}{error.strerror}", hint="check the path and who may use it")
    return None
