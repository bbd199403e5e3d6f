"""Views: a directory with one artifact's files under their own names, made of links to the blobs.

The last step before a loader maps an artifact. Manifests are hostile until verified, and careful after: a path that
leaves the directory is refused here as well.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from aot.bundle.hashing import blob_of
from aot.bundle.paths import why_unsafe_together
from aot.errors import BlobNotFound, LocalStorageFull, MalformedDocument
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.spec import File

# What says that there can be no hard link: another file system, a mount or kernel setting against it, too many links.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES)
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
_ATTEMPTS = 5


def materialise_view(lookup: Callable[[Digest], Path | None], artifact: Artifact, into: Path) -> Path:
    """Return `into`, a directory with the artifact's files: hard links to the blobs, else copies.

    `lookup` gives verified blobs: they are not hashed again. A hard link keeps the bytes while the view is there,
    whatever the cache evicts. A view that is complete is returned as it is, and one that is not is made again: each
    file is the blob itself, or is hashed now. Of several processes that make it, one wins and all return the same
    directory. Raises MalformedDocument for a path that cannot be used, BlobNotFound, LocalStorageFull.
    """
    if (unsafe := why_unsafe_together(file.path for file in artifact.files)) is not None:
        path, reason = unsafe
        raise MalformedDocument(
            f"an artifact lists {path[:200]!r}, which cannot be used: {reason}",
            hint="do not use this bundle: it was not written by aot",
            details={"path": path},
        )
    blobs = {file.path: _blob(lookup, file) for file in artifact.files}
    if _is_complete(into, artifact, blobs):
        return into
    into.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{into.name}-", dir=into.parent))
    try:
        for file in artifact.files:
            _place(blobs[file.path], temporary / file.path)
        temporary.chmod(0o755)
        _move(temporary, into, artifact, blobs)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise LocalStorageFull(f"no space left for a view in {into.parent}", hint="free space there") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return into


def _is_complete(view: Path, artifact: Artifact, blobs: Mapping[str, Path]) -> bool:
    """True when the view shows the verified bytes; a view appears whole, so this finds only later damage."""
    return view.is_dir() and all(_shows(view / file.path, file, blobs[file.path]) for file in artifact.files)


def _shows(path: Path, file: File, blob: Path) -> bool:
    """True when `path` is the blob under another name. A copy, or a link to what the blob was before, is hashed."""
    try:
        if os.path.samefile(path, blob):
            return True
        return path.stat().st_size == file.size_bytes and blob_of(path).digest == file.digest
    except OSError:
        return False


def _blob(lookup: Callable[[Digest], Path | None], file: File) -> Path:
    blob = lookup(file.digest)
    if blob is None:
        raise BlobNotFound(
            f"blob {file.digest} of {file.path} is not here",
            hint="fetch the bundle's blobs first",
            details={"digest": file.digest},
        )
    return blob


def _place(blob: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # The file itself and not a link to it: what a link points to may be moved.
    real = os.path.realpath(blob)
    try:
        os.link(real, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(real, target)


def _move(temporary: Path, into: Path, artifact: Artifact, blobs: Mapping[str, Path]) -> None:
    for _ in range(_ATTEMPTS):
        try:
            temporary.rename(into)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        else:
            return
        if _is_complete(into, artifact, blobs):
            return  # another process was first
        # A damaged view. What has mapped its files keeps them; the directory makes room, perhaps for another process.
        shutil.rmtree(into, ignore_errors=True)
    temporary.rename(into)
