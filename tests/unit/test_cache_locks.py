"""Waiting in turn for a lock, on a clock that is turned by hand: who is judged, by what, and how long it takes."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aot import locks
from aot.cache.incoming import sweep_incoming
from aot.cache.locks import MOST_TURNS, POLL_SECONDS, locked_in_turn, sweep_locks

STALL_SECONDS = 120.0


class HandClock:
    """What the locks know of time: sleeping turns it, and lets others do something meanwhile."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meanwhile: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    found = HandClock()
    monkeypatch.setattr("aot.cache.locks.time", found)
    return found


class Holder:
    """Another open file on the name, which has the lock until it says otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("a+b")
        assert locks.try_lock(self.file)

    def names_it(self) -> bool:
        return self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self.file.fileno()))

    def gives_up(self) -> None:
        if self.names_it():
            self.path.unlink()
        self.file.close()


@contextmanager
def held(path: Path) -> Iterator[Holder]:
    holder = Holder(path)
    try:
        yield holder
    finally:
        holder.gives_up()


def test_a_holder_is_judged_by_what_it_has_done_until_then(tmp_path: Path, clock: HandClock) -> None:
    path, begun = tmp_path / "lock", clock.now
    with held(path) as holder:
        named: list[bool] = []

        def end_at_last() -> None:
            if clock.now > begun + 1.5 * STALL_SECONDS and not named:
                named.append(holder.names_it())
                holder.gives_up()

        clock.meanwhile = end_at_last
        # One byte, a moment before its time was over: after the last of the looks that are due anyway.
        done = lambda: clock.now > begun + STALL_SECONDS - 2 * POLL_SECONDS  # noqa: E731
        with locked_in_turn(path, stall_seconds=STALL_SECONDS, progress=done) as had:
            assert had and clock.now > begun + 1.5 * STALL_SECONDS
        assert named == [True]


@pytest.mark.parametrize("seconds", [STALL_SECONDS, 0.2, 0.01, 0.0])
def test_a_holder_without_progress_loses_the_name_in_time(seconds: float, tmp_path: Path, clock: HandClock) -> None:
    path, begun = tmp_path / "lock", clock.now
    with held(path) as holder:
        with locked_in_turn(path, stall_seconds=seconds, progress=lambda: 0) as had:
            assert had and not holder.names_it()
        assert seconds <= clock.now - begun < seconds + 1.0


def test_whoever_was_stopped_together_with_the_holder_gives_it_its_time(tmp_path: Path, clock: HandClock) -> None:
    path, begun = tmp_path / "lock", clock.now
    with held(path) as holder:

        def stop_both_once() -> None:
            if clock.now < begun + STALL_SECONDS:
                clock.now += 10 * STALL_SECONDS
            elif clock.now > begun + 10.5 * STALL_SECONDS:
                holder.gives_up()

        clock.meanwhile = stop_both_once
        named: list[bool] = []

        def progress() -> int:
            named.append(holder.names_it())
            return 0

        with locked_in_turn(path, stall_seconds=STALL_SECONDS, progress=progress) as had:
            assert had and clock.now > begun + 10.5 * STALL_SECONDS
        assert all(named)


def test_after_some_holders_that_gave_up_nobody_waits_for_the_next(tmp_path: Path, clock: HandClock) -> None:
    path, holders = tmp_path / "lock", []

    def next_one() -> None:
        holders[-1].gives_up()
        holders.append(Holder(path))

    holders.append(Holder(path))
    clock.meanwhile = next_one
    try:
        with locked_in_turn(path, stall_seconds=STALL_SECONDS, progress=lambda: 0) as had:
            assert not had and len(holders) == 1 + MOST_TURNS
            assert holders[-1].names_it()
        assert holders[-1].names_it()
    finally:
        for one in holders:
            one.file.close()


def test_where_no_file_has_its_own_name_nobody_waits_for_ever(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.cache.locks.os.path.samestat", lambda *_: False)
    with locked_in_turn(tmp_path / "lock", stall_seconds=STALL_SECONDS, progress=lambda: 0) as had:
        assert not had


def test_on_a_network_file_system_the_remains_of_the_dead_are_removed_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def over_the_network(file: int, kind: int) -> None:
        if kind & fcntl.LOCK_EX and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, kind)

    monkeypatch.setattr("aot.locks.fcntl.flock", over_the_network)
    for place in (tmp_path / "locks", tmp_path / "incoming"):
        place.mkdir()
        for name in ("dead", "alive"):
            (place / name).touch()
            os.utime(place / name, (0, 0))
    with held(tmp_path / "locks" / "alive"), held(tmp_path / "incoming" / "alive"):
        sweep_locks(tmp_path / "locks")
        sweep_incoming(tmp_path)
        assert [path.name for path in (tmp_path / "locks").iterdir()] == ["alive"]
        assert [path.name for path in (tmp_path / "incoming").iterdir()] == ["alive"]
