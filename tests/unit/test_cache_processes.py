"""The local cache shared by several processes: one fetch, death in the middle, eviction beside use."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from aot.cache import Incoming, LocalCache
from aot.schema.digest import Digest
from aot.schema.spec import Blob

CONTENT = bytes(range(256)) * 4096
BLOB = Blob(digest=Digest.of(CONTENT), size_bytes=len(CONTENT))
FORK = multiprocessing.get_context("fork")


def start(target: Callable[..., None], *args: object) -> BaseProcess:
    process = FORK.Process(target=target, args=args)
    process.start()
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited for nothing"
        time.sleep(0.01)


def note(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(b"x")


def ensure_and_note(root: Path, fetches: Path) -> None:
    def fetch(writer: Incoming) -> None:
        note(fetches)
        for start_at in range(0, len(CONTENT), 65536):
            writer.write(CONTENT[start_at : start_at + 65536])
            time.sleep(0.005)

    path = LocalCache(root).ensure(BLOB, fetch)
    assert path.read_bytes() == CONTENT


def test_sixteen_processes_fetch_a_blob_once(tmp_path: Path) -> None:
    fetches = tmp_path / "fetches"
    processes = [start(ensure_and_note, tmp_path / "cache", fetches) for _ in range(16)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 16
    assert fetches.read_bytes() == b"x"


def ensure_and_hang(root: Path, fill_wait_seconds: float = 60.0) -> None:
    def fetch(writer: Incoming) -> None:
        writer.write(CONTENT[:1000])
        time.sleep(600)

    LocalCache(root, fill_wait_seconds=fill_wait_seconds).ensure(BLOB, fetch)


def test_a_process_killed_while_filling_leaves_the_others_free(tmp_path: Path) -> None:
    root, fetches = tmp_path / "cache", tmp_path / "fetches"
    hanging = start(ensure_and_hang, root)
    wait_for(lambda: any((root / "incoming").glob("*")))
    waiting = start(ensure_and_note, root, fetches)
    assert hanging.pid is not None
    os.kill(hanging.pid, signal.SIGKILL)
    hanging.join(10)
    waiting.join(30)
    assert waiting.exitcode == 0
    assert fetches.read_bytes() == b"x"
    (remains,) = (root / "incoming").iterdir()
    os.utime(remains, (time.time() - 1000,) * 2)
    LocalCache(root).evict()
    assert not remains.exists()


def test_the_lock_of_a_process_that_died_is_removed(tmp_path: Path) -> None:
    hanging = start(ensure_and_hang, tmp_path)
    wait_for(lambda: any((tmp_path / "incoming").glob("*")))
    cache = LocalCache(tmp_path)
    cache.evict()
    assert len(list((tmp_path / "locks").iterdir())) == 1  # in use
    hanging.kill()
    hanging.join(10)
    cache.evict()
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_waiter_fetches_for_itself_when_no_byte_arrives(tmp_path: Path) -> None:
    hanging = start(ensure_and_hang, tmp_path)
    try:
        wait_for(lambda: any((tmp_path / "incoming").glob("*")))
        cache = LocalCache(tmp_path, fill_wait_seconds=0.2)
        assert cache.ensure(BLOB, lambda writer: writer.write(CONTENT)).read_bytes() == CONTENT
    finally:
        hanging.kill()
        hanging.join(10)


PIECE_BYTES, PIECE_SECONDS = 65536, 0.15
SLOW_SECONDS = PIECE_SECONDS * len(CONTENT) / PIECE_BYTES
# Less than a fetch takes, and for a machine with other work to do far more than from one piece of it to the next.
STALL_SECONDS = 0.8 * SLOW_SECONDS


def ensure_slowly(root: Path, fetches: Path, fill_wait_seconds: float) -> None:
    def fetch(writer: Incoming) -> None:
        note(fetches)
        for start_at in range(0, len(CONTENT), PIECE_BYTES):
            writer.write(CONTENT[start_at : start_at + PIECE_BYTES])
            time.sleep(PIECE_SECONDS)

    assert LocalCache(root, fill_wait_seconds=fill_wait_seconds).ensure(BLOB, fetch).read_bytes() == CONTENT


def test_whoever_waits_goes_on_waiting_for_as_long_as_bytes_arrive(tmp_path: Path) -> None:
    root, fetches = tmp_path / "cache", tmp_path / "fetches"
    processes = [start(ensure_slowly, root, fetches, STALL_SECONDS) for _ in range(8)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    assert fetches.read_bytes() == b"x"
    assert list((root / "locks").iterdir()) == []


def ensure_when(root: Path, begun: Path, allowed: Path) -> None:
    def fetch(writer: Incoming) -> None:
        begun.touch()
        while not allowed.exists():
            time.sleep(0.01)
        writer.write(CONTENT)

    assert LocalCache(root).ensure(BLOB, fetch).read_bytes() == CONTENT


def test_of_sixteen_processes_one_takes_over_from_one_that_stalls_and_the_others_wait_for_it(tmp_path: Path) -> None:
    root, fetches, begun, allowed = (tmp_path / name for name in ("cache", "fetches", "begun", "allowed"))
    stalled = start(ensure_when, root, begun, allowed)
    try:
        wait_for(begun.exists)
        assert stalled.pid is not None
        os.kill(stalled.pid, signal.SIGSTOP)
        others = [start(ensure_slowly, root, fetches, STALL_SECONDS) for _ in range(15)]
        wait_for(fetches.exists)
        # It comes to its end while the one that took over still fetches, and takes the lock from nobody.
        allowed.touch()
        os.kill(stalled.pid, signal.SIGCONT)
        stalled.join(30)
        for process in others:
            process.join(60)
    finally:
        stalled.kill()
        stalled.join(10)
    assert [process.exitcode for process in (stalled, *others)] == [0] * 16
    assert fetches.read_bytes() == b"x"
    assert list((root / "locks").iterdir()) == list((root / "incoming").iterdir()) == []


def test_the_next_takes_over_from_one_that_took_over_and_died(tmp_path: Path) -> None:
    root, fetches = tmp_path / "cache", tmp_path / "fetches"
    hanging = [start(ensure_and_hang, root)]
    try:
        wait_for(lambda: len(list((root / "incoming").glob("*"))) == 1)
        hanging.append(start(ensure_and_hang, root, 0.3))
        wait_for(lambda: len(list((root / "incoming").glob("*"))) == 2)
        others = [start(ensure_slowly, root, fetches, STALL_SECONDS) for _ in range(6)]
        hanging[1].kill()
        for process in others:
            process.join(60)
    finally:
        for process in hanging:
            process.kill()
            process.join(10)
    assert [process.exitcode for process in others] == [0] * 6
    assert fetches.read_bytes() == b"x"


def hold_and_hang(root: Path, ready: Path) -> None:
    with LocalCache(root).hold([BLOB.digest]):
        ready.touch()
        time.sleep(600)


def test_a_hold_ends_with_its_process(tmp_path: Path) -> None:
    cache = LocalCache(tmp_path / "cache")
    cache.ensure(BLOB, lambda writer: writer.write(CONTENT))
    holding = start(hold_and_hang, cache.root, tmp_path / "ready")
    wait_for((tmp_path / "ready").exists)
    assert cache.evict(limit_bytes=0).removed == 0
    holding.kill()
    holding.join(10)
    assert cache.evict(limit_bytes=0).removed == 1
    assert list((cache.root / "holds").iterdir()) == []


def use_some(root: Path, seed: int) -> None:
    chosen = random.Random(seed)
    cache = LocalCache(root, limit_bytes=300_000)
    for _ in range(60):
        content = bytes([chosen.randrange(12)]) * 100_000
        blob = Blob(digest=Digest.of(content), size_bytes=len(content))
        with cache.hold([blob.digest]):
            path = cache.ensure(blob, lambda writer, content=content: writer.write(content))
            cache.evict()
            assert path.read_bytes() == content
            assert cache.verified_path(blob.digest) == path


def test_what_a_process_holds_stays_while_others_fill_and_evict(tmp_path: Path) -> None:
    processes = [start(use_some, tmp_path, seed) for seed in range(6)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 6
    cache = LocalCache(tmp_path)
    assert cache.evict(limit_bytes=300_000).used_bytes <= 300_000
    assert list((tmp_path / "incoming").iterdir()) == list((tmp_path / "locks").iterdir()) == []


def test_of_sixteen_processes_the_one_that_fetches_is_killed_and_the_others_get_the_blob(tmp_path: Path) -> None:
    root, fetches = tmp_path / "cache", tmp_path / "fetches"
    hanging = start(ensure_and_hang, root)
    wait_for(lambda: any((root / "incoming").glob("*")))
    others = [start(ensure_and_note, root, fetches) for _ in range(15)]
    time.sleep(0.3)  # until they wait for it
    assert not fetches.exists(), "one fetches, the others wait"
    hanging.kill()
    hanging.join(10)
    for process in others:
        process.join(60)
    assert [process.exitcode for process in others] == [0] * 15
    assert fetches.read_bytes() == b"x"
