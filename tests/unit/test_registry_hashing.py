"""Hashing in slices: what takes long goes on in the next pass, and small ones have their turn meanwhile."""

import io
import time
from collections.abc import Callable
from typing import BinaryIO

import pytest

from aot.errors import BlobNotFound, StorageUnavailable
from aot.schema.digest import Digest
from registry.services import hashing
from registry.services.hashing import CHUNK_BYTES, Hashed, Hashing

LARGE = bytes(range(256)) * (4 * CHUNK_BYTES // 256) + b"and the rest"
KEY = ("default", str(Digest.of(LARGE)))


class Opening:
    """Opens `contents` one after the other, the last one for ever, and counts."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = list(contents)
        self.streams: list[io.BytesIO] = []

    def __call__(self) -> tuple[BinaryIO, str]:
        content = self.contents[min(len(self.streams), len(self.contents) - 1)]
        self.streams.append(io.BytesIO(content))
        return self.streams[-1], f"version {len(self.streams)}"

    @property
    def open(self) -> int:
        return sum(not stream.closed for stream in self.streams)


def until_done(act: Callable[[], Hashed | None]) -> tuple[Hashed, int]:
    for calls in range(1, 100):
        if (found := act()) is not None:
            return found, calls
    pytest.fail("it never ends")


def test_a_large_blob_is_hashed_over_several_calls_and_read_once() -> None:
    opening, hashed = Opening(LARGE), Hashing()
    found, calls = until_done(lambda: hashed.hash(KEY, Digest.of(LARGE), opening, seconds=-1))
    assert (found.size_bytes, found.hex, found.version) == (len(LARGE), Digest.of(LARGE).hex, "version 1")
    assert (calls, len(opening.streams), opening.open) == (5, 1, 0)
    assert hashed.hash(KEY, Digest.of(LARGE), opening) == found, "the result stays"
    hashed.forget(KEY)
    assert until_done(lambda: hashed.hash(KEY, Digest.of(LARGE), opening)) == (
        Hashed(len(LARGE), Digest.of(LARGE).hex, "version 2"),
        1,
    )


def test_a_small_blob_needs_one_call_however_little_time_is_left() -> None:
    small = b"small"
    assert Hashing().hash(("small",), Digest.of(small), Opening(small), seconds=-1) is not None


def test_other_bytes_are_read_once_more() -> None:
    opening, hashed = Opening(b"bad read" + LARGE, LARGE), Hashing()
    found, _ = until_done(lambda: hashed.hash(KEY, Digest.of(LARGE), opening, seconds=-1))
    assert (found.hex, found.version, len(opening.streams), opening.open) == (Digest.of(LARGE).hex, "version 2", 2, 0)
    wrong = Opening(b"wrong")
    assert Hashing().hash(KEY, Digest.of(LARGE), wrong) == Hashed(5, Digest.of(b"wrong").hex, "version 2")


def test_a_read_that_fails_is_begun_again() -> None:
    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise StorageUnavailable("broke", hint="")

    hashed = Hashing()
    with pytest.raises(StorageUnavailable):
        hashed.hash(KEY, Digest.of(LARGE), lambda: (Breaking(), ""))
    found = hashed.hash(KEY, Digest.of(LARGE), Opening(LARGE))
    assert found is not None and found.hex == Digest.of(LARGE).hex

    def gone() -> tuple[BinaryIO, str]:
        raise BlobNotFound("gone", hint="")

    with pytest.raises(BlobNotFound):
        hashed.hash(("gone",), Digest.of(LARGE), gone)


def test_no_more_streams_stay_open_than_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "MOST_BEGUN", 2)
    hashed, openings = Hashing(), [Opening(LARGE) for _ in range(4)]
    for number, opening in enumerate(openings):
        assert hashed.hash((str(number),), Digest.of(LARGE), opening, seconds=-1) is None
    assert [opening.open for opening in openings] == [1, 1, 0, 0]
    for number in (0, 1):
        until_done(lambda number=number: hashed.hash((str(number),), Digest.of(LARGE), openings[number], seconds=-1))
        hashed.forget((str(number),))
    until_done(lambda: hashed.hash(("3",), Digest.of(LARGE), openings[3], seconds=-1))
    assert len(openings[3].streams) == 2


def test_what_nobody_goes_on_with_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, opening, other = Hashing(), Opening(LARGE), Opening(b"other")
    hashed.hash(KEY, Digest.of(LARGE), opening, seconds=-1)
    assert opening.open == 1
    monkeypatch.setattr(hashing, "FORGOTTEN_SECONDS", -1.0)
    hashed.hash(("other",), Digest.of(b"other"), other)
    assert opening.open == 0


def test_what_gets_forward_goes_on_for_as_long_as_its_bytes_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    now, opening, hashed = [time.monotonic()], Opening(LARGE), Hashing()
    monkeypatch.setattr(hashing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(hashing, "SLOWEST_BYTES_PER_SECOND", CHUNK_BYTES // 100)
    monkeypatch.setattr(hashing, "FORGOTTEN_SECONDS", 50.0)
    assert not hashed.goes_on(KEY), "it was not begun"
    goes_on = []
    for seconds in (49, 49, 49, 49):  # two chunks are worth 200 s, and 50 are given besides
        assert hashed.hash(KEY, Digest.of(LARGE), opening, seconds=-1) is None
        now[0] += seconds
        goes_on.append(hashed.goes_on(KEY))
    now[0] += 270
    assert (goes_on, hashed.goes_on(KEY)) == ([True] * 4, False)
    now[0] -= 270
    assert hashed.hash(KEY, Digest.of(LARGE), opening) is not None
    now[0] += 600
    assert hashed.goes_on(KEY), "it may be copied for as long"
    now[0] += 300
    assert not hashed.goes_on(KEY)
    hashed.forget(KEY)
    assert not hashed.goes_on(KEY)


def test_every_other_pass_goes_on_with_what_has_waited_longest() -> None:
    contents = [LARGE, LARGE + b"1", LARGE + b"2"]
    digests, hashed = [Digest.of(content) for content in contents], Hashing()
    assert [hashed.next_begun() for _ in range(2)] == [None, None]

    def go_on(number: int) -> None:
        assert hashed.hash((str(number),), digests[number], Opening(contents[number]), seconds=-1) is None

    for number in range(3):
        go_on(number)
    offered = [hashed.next_begun() for _ in range(6)]
    assert offered == [digests[0], None, digests[1], None, digests[2], None], "also where nobody can go on with it"
    go_on(0)
    assert [hashed.next_begun() for _ in range(2)] == [digests[1], None]
    assert hashed.hash(("1",), digests[1], Opening(contents[1])) is not None
    go_on(2)
    go_on(0)
    assert [hashed.next_begun() for _ in range(2)] == [digests[1], None], "hashed, its copy may go on"
    for number in range(3):
        hashed.forget((str(number),))
    assert hashed.next_begun() is None
