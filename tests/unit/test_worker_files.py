"""Scratch directories and the log files in them."""

import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.cache.locks import locked
from aot.errors import DirectoryInUse, InvalidConfig
from aot.schema.names import Name
from worker import app
from worker.lines import Lines, plain
from worker.logs import MOST_BYTES, LogFiles
from worker.names import kept_name
from worker.scratch import own_scratch, scratch_directory
from worker.settings import Settings


def a_log(work: Path, content: bytes, name: str = "compile/stderr.txt") -> Path:
    path = work / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_an_attempt_has_a_private_directory_that_goes_with_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch_directory(tmp_path, "b1") as path:
        assert (path.stat().st_mode & 0o777, path.parent, path.name[:3]) == (0o700, tmp_path, "b1-")
        (path / "deep" / "er").mkdir(parents=True)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_a_child_has_closed_is_removed_as_well() -> None:
    # In a process that is not root, for whom no directory is closed.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        process = os.fork()
        if process == 0:
            os.setuid(os.getuid() or 65534)
            left = -1
            try:
                with scratch_directory(Path(place), "b1") as path:
                    (path / "a" / "b").mkdir(parents=True)
                    (path / "a" / "b" / "file").touch()
                    os.chmod(path / "a" / "b", 0)
                    os.chmod(path / "a", 0)
                    shutil.rmtree(path, ignore_errors=True)
                    assert path.is_dir(), "the usual way does not remove it"
                left = len(os.listdir(place))
            finally:
                os._exit(left)
        _, status = os.waitpid(process, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def test_a_link_in_the_scratch_directory_is_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    (tmp_path / "scratch").mkdir()
    with scratch_directory(tmp_path / "scratch", "b1") as path:
        (path / "link").symlink_to(outside)
    assert (outside.is_dir(), outside.stat().st_mode & 0o777) == (True, 0o500)


def test_one_worker_has_a_name_at_a_time(tmp_path: Path) -> None:
    with (
        own_scratch(tmp_path, Name("w")),
        pytest.raises(DirectoryInUse, match="w works in"),
        own_scratch(tmp_path, Name("w")),
    ):
        pass
    with own_scratch(tmp_path, Name("w")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_killed_workers_left_is_removed_and_what_living_ones_use_is_kept(tmp_path: Path) -> None:
    for name in ("dead", "older", "w"):
        (tmp_path / name / "b1-x").mkdir(parents=True)
    (tmp_path / "dead.lock").touch()
    with own_scratch(tmp_path, Name("living")) as living:
        (living / "b2-x").mkdir(parents=True)
        with own_scratch(tmp_path, Name("w")):
            assert sorted(path.name for path in tmp_path.iterdir()) == ["living", "living.lock", "w.lock"]
        assert (living / "b2-x").is_dir()


def test_a_scratch_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfig, match="file/scratch"), own_scratch(tmp_path / "file" / "scratch", Name("w")):
        pass


def test_a_worker_without_a_name_takes_that_of_one_which_has_ended(tmp_path: Path) -> None:
    """The registry then knows it as the same one, whatever packages it has by now."""
    with kept_name(tmp_path, Name("host-7")) as (name, scratch):
        assert (name, scratch) == ("host-7", tmp_path / "scratch" / "host-7")
        # Two at once have names of their own, and each is had again.
        with kept_name(tmp_path, Name("host-8")) as (other, _):
            assert other == "host-8"
        with kept_name(tmp_path, Name("host-9")) as (again, _):
            assert again == "host-8"
    with kept_name(tmp_path, Name("host-10")) as (first, _), kept_name(tmp_path, Name("host-11")) as (second, _):
        assert (first, second) == ("host-7", "host-8")


def test_a_worker_that_was_killed_leaves_its_name_to_the_next(tmp_path: Path) -> None:
    process = os.fork()
    if process == 0:
        try:
            with kept_name(tmp_path, Name("host-7")) as (_, scratch):
                scratch.mkdir()
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(process, 0)
    assert (tmp_path / "scratch" / "host-7.lock").exists()
    with kept_name(tmp_path, Name("host-8")) as (name, scratch):
        assert name == "host-7" and not scratch.exists()


def test_a_worker_that_looks_for_what_others_left_ends_no_other_one_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started at once, one may just look at the lock that the other is about to take."""
    for hold in (
        lambda: kept_name(tmp_path, Name("host-8")),
        lambda: own_scratch(tmp_path / "scratch", Name("host-8")),
    ):
        looking = locked(tmp_path / "scratch" / "host-8.lock", wait_seconds=0, remove=True)
        assert looking.__enter__()
        ended = lambda seconds, looking=looking: looking.__exit__(None, None, None)  # noqa: E731
        monkeypatch.setattr("aot.cache.locks.time", SimpleNamespace(sleep=ended, monotonic=lambda: 0.0))
        with hold():
            pass
        monkeypatch.undo()


def test_a_name_of_another_host_that_shares_the_directory_is_left_alone(tmp_path: Path) -> None:
    for name in ("other-7", "host-2-7", "chosen"):
        with kept_name(tmp_path, Name(name)):
            pass
    with kept_name(tmp_path, Name("host-8")) as (name, _):
        assert name == "host-8"
    with kept_name(tmp_path, Name("host-2-9")) as (name, _):
        assert name == "host-2-7"


def test_a_name_that_cannot_be_noted_is_none_the_less_had(tmp_path: Path) -> None:
    (tmp_path / "workers").touch()
    with kept_name(tmp_path, Name("host-8")) as (name, _):
        assert name == "host-8"


@pytest.mark.parametrize("named", [True, False])
def test_a_name_that_was_chosen_is_the_workers(tmp_path: Path, named: bool) -> None:
    with kept_name(tmp_path, Name("host-7")):
        pass
    environ = {"AOT_URL": "http://r:1", "AOT_TOKEN": "t", "AOT_DATA_DIR": str(tmp_path)}
    settings = Settings.from_environ({**environ, **({"AOT_WORKER_NAME": "host-8"} if named else {})})
    with app._named(replace(settings, name=Name("host-8"))) as (found, scratch):
        assert (found.name, scratch.name) == (("host-8", "host-8") if named else ("host-7", "host-7"))


def test_every_child_of_a_build_is_read(tmp_path: Path) -> None:
    a_log(tmp_path, b"compile\n")
    a_log(tmp_path, b"print\n", "compile/stdout.txt")
    a_log(tmp_path, b"start\n", "qualify/start/stderr.txt")
    a_log(tmp_path, b"not a log\n", "qualify/start/job.json")
    a_log(tmp_path, b"the child's own\n", "compile/build/stderr.txt")
    logs = LogFiles(tmp_path)
    assert (logs.read(), logs.read()) == (["compile", "print", "start"], [])


def test_progress_bars_are_lines_and_empty_lines_are_not(tmp_path: Path) -> None:
    a_log(tmp_path, b"1%\r2%\r\n\n  \nend\n")
    assert LogFiles(tmp_path).read() == ["1%", "2%", "end"]


def test_the_list_of_imports_is_left_out(tmp_path: Path) -> None:
    a_log(
        tmp_path,
        b"import time: self [us] | cumulative\nimport time: 5 | 5 | torch\na warning\n",
        "qualify/start/stderr.txt",
    )
    assert LogFiles(tmp_path).read() == ["a warning"]


def test_the_end_of_a_flood_is_kept(tmp_path: Path) -> None:
    a_log(tmp_path, b"x" * 99 + b"\n" + b"y" * (MOST_BYTES - 1) + b"\n")
    first, *rest = LogFiles(tmp_path).read()
    assert (first, [len(line) for line in rest]) == ("[100 bytes left out]", [MOST_BYTES - 1])


def test_a_line_without_an_end_is_cut_and_does_not_grow_in_memory(tmp_path: Path) -> None:
    path = a_log(tmp_path, b"z" * 20_000)
    logs = LogFiles(tmp_path)
    assert [len(line) for line in logs.read()] == [20_000]
    with path.open("ab") as stream:
        stream.write(b"tail")
    assert (logs.read(), logs.read(last=True)) == ([], ["tail"])


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("secret\n")
    (tmp_path / "work" / "compile").mkdir(parents=True)
    (tmp_path / "work" / "compile" / "stderr.txt").symlink_to(secret)
    os.mkfifo(tmp_path / "work" / "compile" / "stdout.txt")
    assert LogFiles(tmp_path / "work").read() == []


def test_lines_that_wait_again_come_before_later_ones() -> None:
    lines = Lines()
    lines.add("one")
    taken = lines.take()
    lines.add("two")
    lines.put_back(taken)
    assert (lines.take().told, lines.take().told) == (("one", "two"), ())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("größe ✓", "größe ✓"),
        ("a\tb\x0bc", "a b c"),
        ("\x1b[1;32mok\x1b[0m", "ok"),
        ("null \x00", "null \ufffd"),
        ("\ud800", "\ufffd"),
        ("right\u202eleft", "right\ufffdleft"),
        ("x" * 50, "x" * 20),
    ],
)
def test_text_is_made_plain(text: str, told: str) -> None:
    assert plain(text, 20) == told
