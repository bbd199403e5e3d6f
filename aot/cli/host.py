"""Hosts that a command is told of: files, directories of files, and descriptions."""

from collections.abc import Sequence
from pathlib import Path

from aot import hosts
from aot.errors import InvalidInput, MalformedDocument
from aot.schema.environment import Environment


def read_host(text: str) -> Environment:
    """Return the host that `text` names, a file, or describes. Raises InvalidInput, MalformedDocument."""
    path = Path(text)
    if not _is_there(path):
        return hosts.parse_host(text)
    try:
        return hosts.read_host(path)
    except MalformedDocument as error:
        # Of sixty files, which one.
        hint = error.hint or "write it with `aot doctor --json`"
        raise MalformedDocument(f"{path}: {error.message}", hint=hint, details=error.details) from error


def read_hosts(texts: Sequence[str]) -> dict[str, Environment]:
    """Return every host by its name: a file's, or the description itself. A directory stands for its .json files.

    Raises InvalidInput, also for a directory without such a file and for two files of one name.
    """
    found: dict[str, Environment] = {}
    for text in texts:
        for name, place in _places(text):
            if name in found:
                raise InvalidInput(f"two hosts are named {name!r}", hint="rename one of the files")
            found[name] = read_host(place)
    return found


def _places(text: str) -> list[tuple[str, str]]:
    path = Path(text)
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise InvalidInput(
                f"{path} holds no host file (*.json)", hint="`aot doctor --json > host.json` in a pod writes one"
            )
        return [(file.stem, str(file)) for file in files]
    return [(path.stem if _is_there(path) else text, text)]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # a description may be longer than a file name
