"""What could not be written back, kept beside the entries until a later run on this node can: nothing is lost.

A registry that is down at the end of a command would else cost its compile on every other node.
"""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from aot.errors import MalformedDocument
from aot.schema.codec import Document, decode, encode

_PREFIX = ".aot-unwritten-"


class Unwritten(Document, kw_only=True):
    """A command, what its environment sets of torch's options, and the files that it has compiled."""

    command: tuple[str, ...]
    environment: dict[str, str] = {}
    paths: tuple[str, ...]


def keep(directory: Path, unwritten: Unwritten) -> None:
    """Keep it in `directory`. Raises OSError."""
    place = directory / f"{_PREFIX}{secrets.token_hex(4)}"
    temporary = place.with_name(f".aot-{place.name}")
    temporary.write_bytes(encode(unwritten))
    temporary.rename(place)


def take(directory: Path) -> Iterator[Unwritten]:
    """Yield everything that was kept, each taken by one process alone; what is damaged or gone is dropped."""
    for place in sorted(directory.glob(f"{_PREFIX}*")):
        with contextlib.suppress(OSError, MalformedDocument):
            taken = place.with_name(f".aot-taken{place.name}")
            place.rename(taken)
            content = taken.read_bytes()
            taken.unlink()
            found = decode(content, Unwritten, what="entries that were not written back")
            if all((directory / path).is_file() for path in found.paths):
                yield found
