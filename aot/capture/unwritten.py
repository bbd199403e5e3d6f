"""What a run writes back, kept beside the entries until the registry has taken it: nothing is lost.

A registry that is down at the end of a command, or a process that is killed before it has pushed, would else cost the
compile on every other node.
"""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aot.errors import MalformedDocument
from aot.locks import try_lock
from aot.schema.codec import Document, decode, encode
from aot.schema.digest import Digest
from aot.schema.names import Name, Reference

_PREFIX = ".aot-unwritten-"


class Unwritten(Document, kw_only=True):
    """A command, what its environment sets of torch's options, and the files that it has compiled.

    `reference`, `tree` and `profile` say what it can be joined with once the tag stands for another bundle.
    """

    command: tuple[str, ...]
    environment: dict[str, str] = {}
    paths: tuple[str, ...]
    reference: Reference | None = None
    tree: Digest | None = None
    profile: Name | None = None


@dataclass(frozen=True)
class Kept:
    """`directory` has the files of `unwritten`; it lies at `place`, or nowhere, where the disk did not take it."""

    directory: Path
    unwritten: Unwritten
    place: Path | None

    def discard(self) -> None:
        """It was pushed. Never raises: pushed once more is once."""
        if self.place is not None:
            with contextlib.suppress(OSError):
                self.place.unlink(missing_ok=True)


def keep(directory: Path, unwritten: Unwritten) -> Kept:
    """Keep it in `directory`. Raises OSError."""
    place = directory / f"{_PREFIX}{secrets.token_hex(4)}"
    temporary = place.with_name(f".aot-{place.name}")
    temporary.write_bytes(encode(unwritten))
    temporary.rename(place)
    return Kept(directory, unwritten, place)


def each_kept(captures: Path) -> Iterator[Kept]:
    """Yield what was kept in any directory below `captures`, held from other processes until the next is asked for.

    It stays until it is discarded. What is damaged, or has lost its files, is removed and not yielded.
    """
    for place in _places(captures):
        with _held(place) as is_free:
            found = _read(place) if is_free else None
            if found is not None:
                yield Kept(place.parent, found, place)


def _places(captures: Path) -> Iterator[Path]:
    for directory in _listed(captures):
        if not directory.name.startswith("."):  # forgotten, and about to go
            yield from (place for place in _listed(directory) if place.name.startswith(_PREFIX))


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []  # a file, or a directory that another process has just removed


@contextlib.contextmanager
def _held(place: Path) -> Iterator[bool]:
    with contextlib.ExitStack() as stack:
        try:
            is_free = try_lock(stack.enter_context(place.open("rb")))
        except FileNotFoundError:
            is_free = False
        except OSError:  # no locks here: two may push the same, which is once
            is_free = True
        yield is_free


def _read(place: Path) -> Unwritten | None:
    try:
        found = decode(place.read_bytes(), Unwritten, what="entries that were not written back")
        if all((place.parent / path).is_file() for path in found.paths):
            return found
    except OSError:
        return None  # pushed by another process meanwhile, or not to be read now
    except MalformedDocument:
        pass
    with contextlib.suppress(OSError):
        place.unlink(missing_ok=True)
    return None
