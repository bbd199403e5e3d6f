"""A run that leaves nothing behind: its processes write below one directory, and none of them outlives it."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aot.sandbox.spawn import PR_SET_CHILD_SUBREAPER, prctl
from aot.sandbox.tree import find_descendants, kill_descendants

ENDING_SECONDS = 10.0
# Where programs put their files when they are told nothing else, and the place below ours that they are told instead.
PLACES = {
    "HOME": "home",
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "XDG_STATE_HOME": "home/.local/state",
}


@contextmanager
def leaving_nothing(place: Path) -> Iterator[None]:
    """Make homes, caches and temporary files of this process and of all that it starts lie below `place`.

    At the end every process that was started must have ended, also those that went to sessions of their own. Python's
    bytecode stays beside its sources, as for any program. Raises RuntimeError with the command lines of those that
    still ran after ENDING_SECONDS; they are killed then.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process, not of init
    with _led_below(place):
        try:
            yield
        finally:
            if left := _wait_for_the_end():
                kill_descendants(os.getpid())
                raise RuntimeError(f"{len(left)} process(es) outlived the run and were killed: {'; '.join(left)}")


@contextmanager
def _led_below(place: Path) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in PLACES}
    for name, below in PLACES.items():
        (place / below).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(place / below)
    tempfile.tempdir = None  # it is read once
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None


def _wait_for_the_end() -> list[str]:
    """Return the command lines of what is still alive once all have had their time to end."""
    deadline = time.monotonic() + ENDING_SECONDS
    while True:
        _reap()
        left = [command for entry in find_descendants(os.getpid()) if (command := _command_of(entry.pid))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _reap() -> None:
    """Take leave of the orphans that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _command_of(pid: int) -> str:
    """The command line; empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
