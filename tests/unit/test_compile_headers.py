"""Headers that builds share: made once for each toolchain and target, by the first who needs them."""

import os
import threading
import time
from pathlib import Path

import pytest

from aot.compile import run
from aot.compile.headers import SharedCaches
from aot.compile.layout import Layout
from aot.compile.torch_inductor import share_headers
from aot.errors import CompileStopped
from tests.builders import a_profile, a_toolchain


def maker(calls: list[Path], *, seconds: float = 0.0):
    def make(scratch: Path) -> Path:
        calls.append(scratch)
        time.sleep(seconds)
        made = scratch / "headers"
        (made / "locks").mkdir(parents=True)
        (made / "abc.h").write_text("#include <x>\n")
        (made / "abc.h.gch").write_bytes(b"compiled")
        return made

    return make


def test_headers_are_made_once_and_their_locks_left_out(tmp_path: Path) -> None:
    shared, calls = SharedCaches(tmp_path / "shared"), []
    first, second = shared.ensure(a_profile(), maker(calls)), shared.ensure(a_profile(), maker(calls))
    assert first == second
    assert len(calls) == 1
    assert sorted(path.name for path in first.iterdir()) == ["abc.h", "abc.h.gch"]
    assert not calls[0].exists()


@pytest.mark.parametrize(
    "other",
    [
        a_profile(capability="cpu:x86-64-v4"),
        a_profile(toolchain=a_toolchain(torch="2.12.0+cpu")),
        a_profile(toolchain=a_toolchain(compiler="g++ 13.1.0")),
    ],
)
def test_another_target_or_toolchain_has_headers_of_its_own(tmp_path: Path, other) -> None:
    shared, calls = SharedCaches(tmp_path), []
    assert shared.ensure(a_profile(), maker(calls)) != shared.ensure(other, maker(calls))
    assert len(calls) == 2


def test_a_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    shared, calls, found = SharedCaches(tmp_path), [], []
    threads = [
        threading.Thread(target=lambda: found.append(shared.ensure(a_profile(), maker(calls, seconds=0.2))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(set(found)) == 1
    assert (found[0] / "abc.h.gch").read_bytes() == b"compiled"


def test_who_waits_says_so_once_and_stops_when_told(tmp_path: Path) -> None:
    shared, begun, go_on = SharedCaches(tmp_path), threading.Event(), threading.Event()

    def make(scratch: Path) -> Path:
        begun.set()
        assert go_on.wait(20)
        return maker([])(scratch)

    first = threading.Thread(target=shared.ensure, args=(a_profile(), make))
    first.start()
    assert begun.wait(20)
    waits, asked = [], iter([None, None, "the lease ran out"])
    try:
        with pytest.raises(CompileStopped, match="the lease ran out"):
            shared.ensure(a_profile(), maker([]), on_wait=lambda: waits.append(1), should_stop=lambda: next(asked))
    finally:
        go_on.set()
        first.join()
    assert waits == [1]
    assert shared.ensure(a_profile(), maker([]), on_wait=lambda: waits.append(2)).is_dir()
    assert waits == [1], "a lock that is free is not waited for"


def test_the_first_build_on_a_machine_tells_of_its_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_job(job: object, layout: Layout, **options: object) -> None:
        maker([])(layout.scratch / "build")

    monkeypatch.setattr(run, "run_job", run_job)
    events: list[object] = []
    for _ in range(2):
        run.ensure_headers(tmp_path, a_profile(), sandbox=None, on_event=events.append)
    assert events == [{"phase": "loading", "step": "headers: first build on this machine"}], "the second has them"


def test_a_failure_leaves_nothing_and_the_next_one_tries_again(tmp_path: Path) -> None:
    shared, calls = SharedCaches(tmp_path), []

    def fail(scratch: Path) -> Path:
        (scratch / "half").write_text("half")
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        shared.ensure(a_profile(), fail)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert shared.ensure(a_profile(), maker(calls)).is_dir()


def test_headers_that_nobody_used_for_long_are_dropped_when_new_ones_are_made(tmp_path: Path) -> None:
    shared, calls = SharedCaches(tmp_path), []
    old = shared.ensure(a_profile(toolchain=a_toolchain(torch="2.11.0+cpu")), maker(calls))
    recent = shared.ensure(a_profile(toolchain=a_toolchain(torch="2.12.0+cpu")), maker(calls))
    long_ago = time.time() - 40 * 86400
    os.utime(old, (long_ago, long_ago))
    shared.ensure(a_profile(), maker(calls))
    assert not old.exists()
    assert recent.is_dir()


def test_shared_headers_are_seen_as_if_they_were_private(tmp_path: Path) -> None:
    shared = maker([])(tmp_path)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "abc.h").write_text("own")
    assert share_headers(shared, tmp_path / "private") == 2
    assert (tmp_path / "private" / "abc.h").read_text() == "own"
    assert (tmp_path / "private" / "abc.h.gch").read_bytes() == b"compiled"
    assert share_headers(tmp_path / "absent", tmp_path / "other") == 0
