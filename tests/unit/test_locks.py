"""One process serves a directory, whoever it is, and its lock ends with it."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aot import locks
from aot.errors import DirectoryInUse, InvalidConfig

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from aot.locks import claimed
with claimed(Path(sys.argv[1]), hint=""):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_serves_until_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        served = pytest.raises(DirectoryInUse, match=f"served already, by process {holder.pid}")
        with served as refused, locks.claimed(path, hint="stop it"):
            raise AssertionError
        assert refused.value.hint == "stop it"
        holder.kill()
        holder.wait()
    with locks.claimed(path, hint=""):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_disk_without_locks_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    refused = pytest.raises(InvalidConfig, match="cannot be locked: No locks available")
    with refused, locks.claimed(tmp_path / "lock", hint=""):
        raise AssertionError


def test_shared_locks_exclude_exclusive_ones_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open() as one, path.open() as other, path.open() as third:
        assert locks.try_lock(one, shared=True) and locks.try_lock(other, shared=True)
        assert not locks.try_lock(third)
        locks.unlock(one)
        locks.unlock(other)
        assert locks.try_lock(third) and not locks.try_lock(one, shared=True)


def test_nothing_else_calls_flock() -> None:
    callers = {
        path.relative_to(ROOT).as_posix()
        for top in ("aot", "registry", "worker")
        for path in (ROOT / top).rglob("*.py")
        if "flock(" in path.read_text() or "import fcntl" in path.read_text()
    }
    assert callers == {"aot/locks.py"}, "lock with aot.locks"
