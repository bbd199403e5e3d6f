"""Preprocessed headers, kept beside the precompiled ones: as good as new while all that they were made of is the same.

Inductor preprocesses both headers in every build, only to see whether a precompiled one is still right.
"""

import re
from pathlib import Path

from aot.errors import MalformedDocument
from aot.schema.codec import Document, decode, encode
from aot.schema.digest import Digest

_PLACE = re.compile(r"(?:\\.|\S)+")


class Trace(Document, kw_only=True):
    """What a file or a directory was: that another one takes its place shows in `changed_ns`, its time of change."""

    path: str
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "Trace":
        """Look at `path` as it is now. Raises OSError."""
        found = path.stat()
        # The size of a directory says nothing, and differs between file systems.
        return cls(path=str(path), size_bytes=0 if path.is_dir() else found.st_size, changed_ns=found.st_mtime_ns)


class Preprocessed(Document, kw_only=True):
    """Of what a kept text was made: every file, and every directory that one was found in, where others may appear."""

    text: Digest
    traces: tuple[Trace, ...]


def find_kept(place: Path, name: str) -> bytes | None:
    """Return the text kept in `place` as `name`; None where there is none, or what it was made of has changed."""
    try:
        kept = decode((place / f"{name}.json").read_bytes(), Preprocessed, what="preprocessed header")
        text = (place / f"{name}.i").read_bytes()
        if Digest.of(text) == kept.text and all(Trace.of(Path(one.path)) == one for one in kept.traces):
            return text
    except (OSError, MalformedDocument):
        pass
    return None


def keep(place: Path, name: str, *, text: bytes, files: tuple[Path, ...]) -> None:
    """Keep `text`, which was made of `files`, where `place` has nothing of that name yet. Raises OSError."""
    record, kept = place / f"{name}.json", place / f"{name}.i"
    if any(path.is_symlink() or path.exists() for path in (record, kept)):
        return  # shared with other builds: no file of this one
    places = sorted({*files, *(file.parent for file in files)})
    kept.write_bytes(text)
    record.write_bytes(encode(Preprocessed(text=Digest.of(text), traces=tuple(Trace.of(path) for path in places))))


def read_dependencies(rule: str) -> tuple[Path, ...]:
    """Return the files that a rule of make names as what something is made of, as a compiler writes it."""
    _, _, after = rule.replace("\\\n", " ").partition(": ")
    return tuple(Path(re.sub(r"\\(.)", r"\1", word).replace("$$", "$")) for word in _PLACE.findall(after))
