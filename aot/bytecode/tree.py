"""The tree that `PYTHONPYCACHEPREFIX` names: made once a node, compared with its archives at every use.

Under that variable an interpreter looks for no `.pyc` beside the source any more, so what an image brings itself is
linked into the tree; an interpreter checks it against its source as it always does. Nothing else ever enters: whoever
runs on the tree must not write to it, or a module of one image would answer in the next.
"""

import contextlib
import errno
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.bundle.paths import why_unsafe_together
from aot.bytecode.interpreter import cached_name, is_checked
from aot.errors import InvalidConfig, InvalidSource, LocalStorageFull
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.source.archive import read_members

MOST_TREES = 4
_IN_PLACE = "__pycache__"


@dataclass(frozen=True)
class Member:
    """One module's bytecode; `content` is the whole `.pyc`."""

    path: str  # of the source, relative to where its distribution lies
    content: bytes


@dataclass(frozen=True)
class Archive:
    """What a bundle holds of one distribution, and where that is installed here. `digest` is the archive's."""

    root: Path
    digest: Digest
    members: Sequence[Member]


@dataclass(frozen=True)
class Tree:
    """`restored` modules come from the bundle, `linked` ones lie beside their sources in this image."""

    prefix: Path
    restored: int
    linked: int

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a process that starts on it. It may not write: see the module."""
        return {"PYTHONPYCACHEPREFIX": str(self.prefix), "PYTHONDONTWRITEBYTECODE": "1"}


def read_archive(archive: Path, interpreter: str) -> tuple[Member, ...]:
    """Return what a bundle holds of one distribution.

    Raises InvalidSource for an archive with paths that leave it, with anything that is no module, and with bytecode
    that an interpreter would not compare with its source: then a changed file would run old code.
    """
    with archive.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        members = tuple(read_members(file, size_bytes=size_bytes))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            found = tuple(Member(one.path, view[one.offset : one.offset + one.size_bytes]) for one in members)
    if (unsafe := why_unsafe_together(one.path for one in found)) is not None:
        raise _refused(*unsafe)
    for one in found:
        if not one.path.endswith(".py"):
            raise _refused(one.path, "it is no module")
        if not is_checked(one.content, interpreter):
            raise _refused(one.path, f"it is no bytecode of {interpreter} that is compared with its source")
    return found


def count_own(archives: Sequence[Archive], interpreter: str) -> int:
    """Return how many of these modules this image has bytecode of itself: an interpreter needs no other for them."""
    return sum(
        os.path.exists(_in_place(cached_name(f"{archive.root}/{one.path}", interpreter)))
        for archive in archives
        for one in archive.members
    )


def ensure_tree(
    parent: Path, interpreter: str, archives: Sequence[Archive], *, places: Sequence[Path] | None = None
) -> Tree:
    """Make true that a directory below `parent` is exactly the tree of `archives`, each under where it is installed.

    Bytecode that lies beside sources below `places` (this interpreter's search path when left out) is linked.

    One that is there already is compared byte for byte, and made anew where it differs. Raises LocalStorageFull,
    InvalidConfig for a directory that cannot be written.
    """
    wanted = {
        cached_name(f"{archive.root}/{one.path}", interpreter): one.content
        for archive in archives
        for one in archive.members
    }
    places = search_path() if places is None else tuple(places)
    prefix = parent / _identity(interpreter, archives, places).hex
    try:
        linked = _compare(prefix, wanted)
        if linked is None:
            linked = _make(prefix, wanted, _links(interpreter, places))
        with contextlib.suppress(OSError):
            os.utime(prefix)
        _forget_old(parent, keep=prefix)
    except OSError as error:
        raise _of_system(error, parent) from error
    return Tree(prefix, len(wanted), linked)


def _identity(interpreter: str, archives: Sequence[Archive], places: Sequence[Path]) -> Digest:
    """Of what the tree holds, and of what this image has installed, since that decides what is linked."""
    installed = sorted(f"{place}/{name}" for place in places for name in _names(place) if name.endswith(".dist-info"))
    held = sorted((str(archive.root), archive.digest) for archive in archives)
    return Digest.of(encode((interpreter, held, installed)))


def search_path() -> tuple[Path, ...]:
    """Where this interpreter finds modules in directories, the standard library's first."""
    entries = (os.path.dirname(os.__file__), *sys.path)
    return tuple(
        dict.fromkeys(Path(entry) for entry in entries if entry and os.path.isabs(entry) and os.path.isdir(entry))
    )


def _names(place: Path) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        return tuple(os.listdir(place))
    return ()


def _compare(prefix: Path, wanted: Mapping[str, bytes]) -> int | None:
    """Return how many links the tree has; None where it is absent, or anything in it is not as it was made."""
    if not prefix.is_dir() or prefix.is_symlink():
        return None
    seen, linked = 0, 0
    for place, directories, files in os.walk(prefix):
        for name in (*directories, *files):
            path = os.path.join(place, name)
            relative = os.path.relpath(path, prefix)
            if os.path.islink(path):
                if relative in wanted or os.readlink(path) != _in_place(relative):
                    return None
                linked += 1
            elif name in files:
                if wanted.get(relative) != Path(path).read_bytes():
                    return None
                seen += 1
    return linked if seen == len(wanted) else None


def _in_place(relative: str) -> str:
    head, name = os.path.split(relative)
    return f"/{head}/{_IN_PLACE}/{name}"


def _make(prefix: Path, wanted: Mapping[str, bytes], links: Iterable[str]) -> int:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=prefix.parent))
    try:
        made: set[str] = set()

        def make_directory(relative: str) -> None:
            head = os.path.dirname(relative)
            if head not in made:
                made.add(head)
                (temporary / head).mkdir(parents=True, exist_ok=True)

        for relative, content in wanted.items():
            make_directory(relative)
            (temporary / relative).write_bytes(content)
        linked = 0
        for relative in links:
            if relative not in wanted:
                make_directory(relative)
                (temporary / relative).symlink_to(_in_place(relative))
                linked += 1
        temporary.chmod(0o755)
        _place(temporary, prefix)
        return linked
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _place(temporary: Path, prefix: Path) -> None:
    """Give the tree its name. What stood there was compared before and found wrong, or is another's of this moment."""
    try:
        temporary.rename(prefix)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        aside = Path(tempfile.mkdtemp(prefix=".old-", dir=prefix.parent))
        prefix.rename(aside / "tree")
        temporary.rename(prefix)
        shutil.rmtree(aside, ignore_errors=True)


def _links(interpreter: str, places: Sequence[Path]) -> Iterator[str]:
    """Yield the tree's path of every `.pyc` of this interpreter that lies beside its source."""
    suffix = cached_name("x.py", interpreter).removeprefix("x")
    seen: set[str] = set()
    for place in places:
        for found, directories, _ in os.walk(place):
            if found in seen:
                directories.clear()
                continue
            seen.add(found)
            if _IN_PLACE not in directories:
                continue
            directories.remove(_IN_PLACE)
            for name in _names(Path(found, _IN_PLACE)):
                # "x.cpython-311.pyc", and not "x.cpython-311.opt-1.pyc".
                if name.endswith(suffix) and "." not in name.removesuffix(suffix):
                    yield os.path.join(found, name).lstrip("/")


def _forget_old(parent: Path, *, keep: Path) -> None:
    """Leave the trees that were used last. A process that runs on one of the others compiles what it misses."""
    with contextlib.suppress(OSError):
        trees = sorted((path for path in parent.iterdir() if path != keep), key=lambda path: -path.stat().st_mtime)
        hour = time.time() - 3600
        for index, path in enumerate(trees):
            if (path.name.startswith(".") and path.stat().st_mtime < hour) or (
                not path.name.startswith(".") and index >= MOST_TREES - 1
            ):
                shutil.rmtree(path, ignore_errors=True)


def _of_system(error: OSError, parent: Path) -> LocalStorageFull | InvalidConfig:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LocalStorageFull(
            f"no space left for bytecode in {parent}", hint="free space there, or set AOT_CACHE_DIR"
        )
    return InvalidConfig(
        f"could not write bytecode to {parent}: {error.strerror or error}",
        hint="check the permissions of AOT_CACHE_DIR",
    )


def _refused(path: str, reason: str) -> InvalidSource:
    return InvalidSource(
        f"{path[:200]!r} of a bytecode archive cannot be used: {reason}", hint="do not use this bundle"
    )
