"""Mega-Cache, the blob of `torch.compiler.save_cache_artifacts`, as entries and back. Nothing is unpickled here.

Each entry is one file of an Inductor cache directory under another name, so an imported one is restored like a captured
one: where torch would write it while it loads the blob. Pure: no files, no torch.

The format (torch/utils/_appending_byte_serializer.py, version 1; torch/compiler/_cache.py): four bytes of CRC-32 over
the rest, eight of version, then sections: a kind, a count, and so many pairs of key and content. Numbers are eight
bytes, big-endian; bytes have their length before them; texts are base64. It has no signature, and torch uses keys as
parts of paths as they come: that is why they are checked here.
"""

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from aot.bundle.paths import why_unsafe
from aot.errors import MalformedDocument

VERSION = 1
_CRC_BYTES, _NUMBER_BYTES = 4, 8
# Windows takes these for devices in every directory, whatever their suffix.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$)(?:\..*)?", re.IGNORECASE)
_CODE_STATE = re.compile(r'[<>:"/\\|?*]')  # torch/_dynamo/pgo.py, code_state_path


class SavedKind(StrEnum):
    """What torch calls the type of a cache artifact."""

    INDUCTOR = "inductor"
    AOT_AUTOGRAD = "aot_autograd"
    AUTOTUNE = "autotune"
    PGO = "pgo"
    PRECOMPILE = "precompile"


@dataclass(frozen=True)
class Saved:
    """One entry as torch saves it; `aot.capture.entries` has the same as a file."""

    kind: SavedKind
    key: str
    content: bytes


def split(content: bytes) -> tuple[Saved, ...]:
    """Return every entry of the blob, each once, in its order.

    Raises MalformedDocument for bytes that torch would not write, a kind that this version does not know, and a key
    that would lead out of its directory.
    """
    reader = _Reader(content)
    found: dict[tuple[SavedKind, str, str], Saved] = {}
    while not reader.finished:
        kind = _kind(reader.text())
        for _ in range(reader.number()):
            entry = Saved(kind, reader.text(), reader.content())
            place_of(entry)
            # A process that saves twice writes a section twice; torch itself would then load the last one alone.
            found.setdefault((kind, entry.key, hashlib.sha256(entry.content).hexdigest()), entry)
    return tuple(found.values())


def join(entries: Iterable[Saved]) -> bytes:
    """Return the blob of these entries, one section a kind, as `torch.compiler.load_cache_artifacts` takes it."""
    sections: dict[SavedKind, list[Saved]] = {}
    for entry in entries:
        place_of(entry)
        sections.setdefault(entry.kind, []).append(entry)
    body = bytearray(VERSION.to_bytes(_NUMBER_BYTES, "big"))
    for kind, several in sections.items():
        body += _text(kind) + len(several).to_bytes(_NUMBER_BYTES, "big")
        for entry in several:
            body += _text(entry.key) + _sized(entry.content)
    return zlib.crc32(body).to_bytes(_CRC_BYTES, "big") + bytes(body)


def place_of(entry: Saved) -> str:
    """Return where torch keeps the entry, below `TORCHINDUCTOR_CACHE_DIR`. Raises MalformedDocument for a hostile key.

    Sources: FxGraphCache and AOTAutogradCache._get_tmp_dir_for_key, AutotuneCacheArtifact, code_state_path,
    DiskDynamoStore; a lookup takes every file of a graph's directory, whatever its name.
    """
    key = entry.key
    match entry.kind:
        case SavedKind.INDUCTOR:
            place = f"fxgraph/{_part(entry)[1:3]}/{key}/{_name(entry.content)}"
        case SavedKind.AOT_AUTOGRAD:
            place = f"aotautograd/{_part(entry)}/{_name(entry.content)}"
        case SavedKind.AUTOTUNE if key.count("/") == 1 and key.endswith(".best_config"):
            place = key
        case SavedKind.PGO:
            place = f"dynamo/code_state_{_CODE_STATE.sub('_', key)}.pkl"
        case SavedKind.PRECOMPILE:
            place = f"dynamo/{_part(entry)}/entry"
        case _:
            raise _hostile(entry.kind, key, "it is no place of one file in one directory")
    devices = (f"{part} is a device" for part in place.split("/") if _DEVICES.fullmatch(part))
    if reason := why_unsafe(place) or next(devices, None):
        raise _hostile(entry.kind, key, reason)
    return place


def entry_at(place: str, content: bytes, *, code_state_key: str = "") -> Saved | None:
    """Return the entry that torch keeps at `place` below its cache directory; None for files of other caches.

    The name of a code state does not tell its key, so that comes from whoever has kept it.
    """
    entry = None
    match place.split("/"):
        case ["fxgraph", _, key, _]:
            entry = Saved(SavedKind.INDUCTOR, key, content)
        case ["aotautograd", key, _]:
            entry = Saved(SavedKind.AOT_AUTOGRAD, key, content)
        case ["dynamo", key, "entry"]:
            entry = Saved(SavedKind.PRECOMPILE, key, content)
        case ["dynamo", name] if code_state_key and name.startswith("code_state_"):
            entry = Saved(SavedKind.PGO, code_state_key, content)
        case [_, name] if name.endswith(".best_config"):
            entry = Saved(SavedKind.AUTOTUNE, place, content)
    return entry


class _Reader:
    def __init__(self, content: bytes) -> None:
        head = int.from_bytes(content[:_CRC_BYTES], "big")
        if len(content) < _CRC_BYTES + _NUMBER_BYTES or zlib.crc32(memoryview(content)[_CRC_BYTES:]) != head:
            raise _malformed("its checksum does not match")
        self._content = content
        self._position = _CRC_BYTES
        if (version := self.number()) != VERSION:
            raise _malformed(f"it has version {version}, this version of aot reads {VERSION}")

    @property
    def finished(self) -> bool:
        return self._position == len(self._content)

    def number(self) -> int:
        return int.from_bytes(self._take(_NUMBER_BYTES), "big")

    def content(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        try:
            return base64.b64decode(self.content(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise _malformed("a name in it is no base64 of text") from None

    def _take(self, count: int) -> bytes:
        if count > len(self._content) - self._position:
            raise _malformed("it ends in the middle of an entry")
        self._position += count
        return self._content[self._position - count : self._position]


def _kind(text: str) -> SavedKind:
    try:
        return SavedKind(text)
    except ValueError:
        raise _malformed(f"it has entries of kind {text[:80]!r}, which this version of aot does not know") from None


def _part(entry: Saved) -> str:
    """Return the key where it is the name of one directory, as torch's hashes are."""
    if "/" in entry.key or len(entry.key) < 3:
        raise _hostile(entry.kind, entry.key, "it is no name of one directory")
    return entry.key


def _name(content: bytes) -> str:
    """As torch names the file of a graph: torch/_inductor/codecache.py, sha256_hash."""
    return base64.b32encode(hashlib.sha256(content).digest())[:51].decode().lower()


def _text(text: str) -> bytes:
    return _sized(base64.b64encode(text.encode()))


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(_NUMBER_BYTES, "big") + content


def _hostile(kind: str, key: str, reason: str) -> MalformedDocument:
    return MalformedDocument(
        f"the key {key[:200]!r} of a Mega-Cache entry of kind {kind} cannot be used: {reason}",
        hint="torch would write to that place: do not load this file with it either",
        details={"path": key[:200]},
    )


def _malformed(finding: str) -> MalformedDocument:
    return MalformedDocument(
        f"the file is no Mega-Cache that torch wrote: {finding}",
        hint="save it again with torch.compiler.save_cache_artifacts",
        details={"path": "$"},
    )
