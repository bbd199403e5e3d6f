"""Hashing of what the store holds, a few seconds at a time: a blob of many gigabytes keeps no lease from running out.

What was begun and not ended is this process's own knowledge, an open stream each; a restart begins again.
"""

import hashlib
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from aot.errors import AotError
from aot.schema.digest import Digest
from aot.schema.wire.blobs import SLOWEST_BYTES_PER_SECOND

CHUNK_BYTES = 1 << 20
# So many streams are kept open between passes; what does not fit is begun again by a later one.
MOST_BEGUN = 8
# A stream that nobody has gone on with for so long is of an upload that is settled, or gone.
FORGOTTEN_SECONDS = 900.0
# Opens the bytes; the version is "" where the store tells none.
Open = Callable[[], tuple[BinaryIO, str]]


@dataclass(frozen=True)
class Hashed:
    size_bytes: int
    hex: str
    version: str


@dataclass
class _Begun:
    wanted: Digest
    stream: BinaryIO
    version: str
    running: Any = field(default_factory=hashlib.sha256)
    size_bytes: int = 0
    failed: bool = False
    hashed: Hashed | None = None
    used_at: float = field(default_factory=time.monotonic)
    begun_at: float = field(default_factory=time.monotonic)
    offered_at: float = 0.0


class Hashing:
    """One a process; used by one thread."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, ...], _Begun] = {}
        self._offers = True

    def hash(self, key: tuple[str, ...], wanted: Digest, open_: Open, *, seconds: float = math.inf) -> Hashed | None:
        """Size and SHA-256 of what `open_` opens; None where it takes longer: the next call goes on.

        Other bytes than `wanted` are read once more: a bad read is not a bad blob. The result stays until `forget`.
        Raises BlobNotFound and StorageUnavailable; what was begun is forgotten then.
        """
        until = time.monotonic() + seconds
        self._forget_old()
        begun = self._begun.get(key)
        try:
            if begun is None:
                begun = self._begun[key] = _Begun(wanted, *open_())
            begun.used_at = time.monotonic()
            while begun.hashed is None:
                if not _read(begun, until):
                    return self._later(key)
                if begun.running.hexdigest() == wanted.hex or begun.failed:
                    begun.hashed = Hashed(begun.size_bytes, begun.running.hexdigest(), begun.version)
                else:
                    begun = self._begun[key] = _Begun(wanted, *open_(), failed=True)
        except BaseException:
            self.forget(key)
            raise
        return begun.hashed

    def next_begun(self) -> Digest | None:
        """Every other time: what was begun, and has waited longest for its turn.

        Among hundreds a pass that begins anywhere comes back to it too late: it would be begun again, and never end.
        Also where it is hashed, and its copy takes longer. In between nothing, so that it keeps none of the others from
        their turn.
        """
        self._offers = not self._offers
        if self._offers or not self._begun:
            return None
        longest = min(self._begun.values(), key=lambda begun: max(begun.used_at, begun.offered_at))
        longest.offered_at = time.monotonic()
        return longest.wanted

    def goes_on(self, key: tuple[str, ...]) -> bool:
        """Whether it was begun and gets forward: by SLOWEST_BYTES_PER_SECOND or more, pauses between passes included.

        Once it is hashed, as long again: it may have to be copied. So whatever is kept for it has an end, as its bytes
        have.
        """
        begun = self._begun.get(key)
        if begun is None:
            return False
        worth = begun.size_bytes * (1 if begun.hashed is None else 2) / SLOWEST_BYTES_PER_SECOND
        return time.monotonic() - begun.begun_at <= FORGOTTEN_SECONDS + worth

    def forget(self, key: tuple[str, ...]) -> None:
        if (begun := self._begun.pop(key, None)) is not None:
            with suppress(AotError, OSError):
                begun.stream.close()

    def _later(self, key: tuple[str, ...]) -> None:
        if len(self._begun) > MOST_BEGUN:
            self.forget(key)

    def _forget_old(self) -> None:
        before = time.monotonic() - FORGOTTEN_SECONDS
        for key in [key for key, begun in self._begun.items() if begun.used_at < before]:
            self.forget(key)


def _read(begun: _Begun, until: float) -> bool:
    """True at the end of the stream, which is closed then; False once the time is over."""
    while chunk := begun.stream.read(CHUNK_BYTES):
        begun.running.update(chunk)
        begun.size_bytes += len(chunk)
        if len(chunk) == CHUNK_BYTES and time.monotonic() > until:  # less is the end of it
            return False
    begun.stream.close()
    return True
