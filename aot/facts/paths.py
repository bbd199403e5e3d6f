"""Absolute paths inside compiled files: proof that nothing of the builder's directories is left in an artifact."""

import re
from collections.abc import Iterable
from pathlib import Path

from aot.errors import InvalidInput
from aot.facts.image import open_image

REPORTED = 100

# What may follow a directory's own name inside a longer name, and what ends a path in a message or a symbol.
_NAME = rb"[0-9A-Za-z_.+~@-]"
_PATH = rb"[^\x00-\x20\x7f-\xff\"'()<>:;,]{0,4096}"


def find_absolute_paths(path: Path, prefixes: Iterable[Path | str]) -> tuple[str, ...]:
    """Return the distinct texts in the file that begin with one of `prefixes` as a directory, sorted, 100 at most.

    A prefix is matched anywhere in the file and up to a name's end: "/build" finds "/build/a.cpp" and a bare
    "/build", not "/builder". Raises MalformedDocument for an empty file, InvalidInput for a prefix that is no
    directory below the root, and OSError.
    """
    patterns = [_pattern(str(prefix)) for prefix in prefixes]
    found: set[str] = set()
    with open_image(path) as image:
        for pattern in patterns:
            for match in image.matches(pattern):
                found.add(match.decode("ascii", errors="backslashreplace"))
                if len(found) >= REPORTED:
                    return tuple(sorted(found))
    return tuple(sorted(found))


def _pattern(prefix: str) -> re.Pattern[bytes]:
    directory = prefix.rstrip("/").encode()
    if not directory.startswith(b"/"):
        raise InvalidInput(
            f"wanted an absolute directory other than the root, found {prefix!r}",
            hint="name the directories that the build used",
        )
    return re.compile(re.escape(directory) + rb"(?!" + _NAME + rb")" + _PATH)
