"""Installed distributions, from their RECORD: which modules they have, and one digest over what these are.

The digest is over the paths and hashes of the `.py` files alone. A whole RECORD differs between images that hold the
same code: it lists scripts with the path of their interpreter, and the `.pyc` files that an installer did or did not
make. Source: PyPA, "Recording installed projects".
"""

import csv
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from aot.bundle.paths import why_unsafe
from aot.schema.digest import Digest

STANDARD_LIBRARY = "python"
# Of the standard library: what no program imports, and what is not of it.
_NOT_OF_LIBRARY = frozenset(
    {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idlelib",
        "idle_test",
        "turtledemo",
        "ensurepip",
        "__pycache__",
    }
)


@dataclass(frozen=True)
class Installed:
    """One distribution of this interpreter. `files` are its modules, relative to `root`, sorted."""

    name: str
    version: str
    root: Path  # as the search path spells it: the place below a prefix is made of that
    record: Digest
    files: tuple[str, ...]

    @property
    def guard(self) -> str:
        """Return the value of the guard `distribution`, and of the fact that it is compared with."""
        return f"{self.name}=={self.version} {self.record}"


def find_installed(name: str) -> Installed | None:
    """Return the distribution of that name; None where it is absent, or has no RECORD with hashes (an editable one)."""
    if name == STANDARD_LIBRARY:
        return _standard_library()
    try:
        return _read(distribution(name))
    except PackageNotFoundError:
        return None


def list_installed() -> Iterator[Installed]:
    """Yield the standard library and every distribution that can be told by its RECORD, the first of each name."""
    yield _standard_library()
    seen: set[str] = set()
    for found in distributions():
        one = _read(found)
        if one is not None and one.files and one.name not in seen:
            seen.add(one.name)
            yield one


def _read(found: Distribution) -> Installed | None:
    record = found.read_text("RECORD")
    if record is None or not found.name:
        return None
    rows = sorted((row[0], row[1]) for row in csv.reader(record.splitlines()) if len(row) > 1 and _is_module(*row[:2]))
    if not rows:
        return None
    text = "".join(f"{path}\0{digest}\n" for path, digest in rows)
    name = re.sub(r"[-_.]+", "-", found.name).lower()  # PEP 503
    root = Path(str(found.locate_file("")))
    return Installed(name, found.version, root, Digest.of(text.encode()), tuple(path for path, _ in rows))


def _is_module(path: str, digest: str) -> bool:
    return path.endswith(".py") and bool(digest) and why_unsafe(path) is None


def _standard_library() -> Installed:
    """The release stands for its files: a distribution's patch to one of them is seen when it is imported."""
    root, version = Path(os.__file__).parent, platform.python_version()
    found: list[str] = []
    for place, directories, files in os.walk(root):
        directories[:] = [
            name for name in directories if name not in _NOT_OF_LIBRARY and not name.startswith("config-")
        ]
        found += [os.path.relpath(os.path.join(place, name), root) for name in files if name.endswith(".py")]
    record = Digest.of(f"{STANDARD_LIBRARY} {version}".encode())
    return Installed(STANDARD_LIBRARY, version, root, record, tuple(sorted(found)))
