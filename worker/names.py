"""The name that a worker goes by again after a restart, so that the registry knows it as the same one.

A name holds its profiles in the registry until it was not seen for a while. A worker that was started anew, with other
packages than before, would be refused under another name: its profile is held by itself. So a worker that was given no
name takes that of one which has ended here, whether it ended by itself or was killed: its lock is free.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from aot.errors import DirectoryInUse
from aot.schema.names import Name
from worker.scratch import own_scratch

_OF_PROCESS = re.compile(r"-\d+$")


@contextmanager
def kept_name(data_dir: Path, default: Name) -> Iterator[tuple[Name, Path]]:
    """Hold the name of a worker that has ended, or `default` where there is none, with its scratch directory.

    Raises what `own_scratch` does for `default`.
    """
    used = data_dir / "workers"
    with ExitStack() as stack:
        for name in (*_ended(used, default), default):
            wait = {} if name == default else {"wait_seconds": 0.0}  # of the others any will do
            try:
                scratch = stack.enter_context(own_scratch(data_dir / "scratch", name, **wait))
                break
            except DirectoryInUse:
                if name == default:
                    raise
        # Without the note the next one has a name of its own, which costs it a wait at most.
        with suppress(OSError):
            used.mkdir(parents=True, exist_ok=True)
            (used / name).touch()
        yield name, scratch


def _ended(used: Path, default: Name) -> list[Name]:
    """The names that workers of this host had, whether they have ended or not; the data directory may be shared."""
    host = _OF_PROCESS.sub("", default)
    try:
        found = sorted(path.name for path in used.iterdir())
    except OSError:
        return []
    return [Name(name) for name in found if name != default and _OF_PROCESS.sub("", name) == host != name]
