"""Relative paths from manifests and archives, which other people wrote."""

import re
from collections.abc import Iterable

PATH_BYTES = 1024
_PART_BYTES = 255
_PARTS = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def why_unsafe(path: str) -> str | None:
    """Return why `path` must not be used below a directory; None where it may.

    Allowed is a relative path of plain names with forward slashes, in one spelling only.
    """
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if not path:
        return "it is empty"
    if len(encoded) > PATH_BYTES:
        return f"it is longer than {PATH_BYTES} bytes"
    if _CONTROL.search(path):
        return "it has a control character"
    if "\\" in path:
        return "it has a backslash"
    if path.startswith("/"):
        return "it is absolute"
    parts = path.split("/")
    if len(parts) > _PARTS:
        return f"it is more than {_PARTS} directories deep"
    for part in parts:
        if part in ("", ".", ".."):
            return f"it has the part {part!r}"
        if len(encoded) > _PART_BYTES and len(part.encode()) > _PART_BYTES:
            return f"it has a part longer than {_PART_BYTES} bytes"
    return None


def why_unsafe_together(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return the first path that cannot be there beside the others, and why; None where all can.

    Each must be safe by itself, none may appear twice, and none may be a directory of another.
    """
    seen: set[str] = set()
    directories: set[str] = set()
    for path in paths:
        if (reason := why_unsafe(path)) is not None:
            return path, reason
        if path in seen:
            return path, "it appears twice"
        # Of a directory that is known, so are those around it: none of them is a file.
        parents = set() if path.rpartition("/")[0] in directories else _parents(path)
        if path in directories or parents & seen:
            return path, "a file and a directory have the same name"
        seen.add(path)
        directories |= parents
    return None


def _parents(path: str) -> set[str]:
    return {path[:index] for index, character in enumerate(path) if character == "/"}
