"""The archive's form: a plain ustar file with pax headers for long and non-ASCII paths, regular files only.

Written and read here and not by `tarfile`: the bytes are a build key's factor, so they must not change with the
version of Python or zlib, and the reader meets hostile archives, so it knows nothing of links, devices, sparse files
and extensions. Any tar program reads the result. Source: POSIX.1-2017, pax, "ustar Interchange Format".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from aot.errors import InvalidSource

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
_NAME_BYTES = 100
_PAX_BYTES = 4096  # a path of PATH_BYTES and its keyword
_SIZE_LIMIT = 8**11
_REGULAR, _PAX = b"0", b"x"
_ZERO_BLOCK = bytes(BLOCK_BYTES)


@dataclass(frozen=True)
class Member:
    """One file of an archive; its content is `size_bytes` at `offset`."""

    path: str
    executable: bool
    size_bytes: int
    offset: int


def header_of(path: str, *, size_bytes: int, executable: bool) -> bytes:
    """Return the blocks that stand before the content of one file."""
    if size_bytes >= _SIZE_LIMIT:
        raise InvalidSource(f"{path} has {size_bytes} bytes", hint="files of 8 GiB and more cannot be packed")
    name = path.encode()
    mode = 0o755 if executable else 0o644
    if len(name) <= _NAME_BYTES and path.isascii():
        return _header(name, mode=mode, size_bytes=size_bytes, kind=_REGULAR)
    record = _pax_record(b"path", name)
    # Readers without pax see the beginning of the path.
    short = name[:_NAME_BYTES].decode(errors="ignore").encode()
    return b"".join(
        (
            _header(b"PaxHeader", mode=0o644, size_bytes=len(record), kind=_PAX),
            record,
            padding(len(record)),
            _header(short, mode=mode, size_bytes=size_bytes, kind=_REGULAR),
        )
    )


def padding(size_bytes: int) -> bytes:
    """Return what fills the last block of a content."""
    return bytes(-size_bytes % BLOCK_BYTES)


def read_members(file: BinaryIO, *, size_bytes: int) -> Iterator[Member]:
    """Yield the members of an archive of `size_bytes`. Raises InvalidSource for what `header_of` would not write."""
    position, path = 0, None
    while True:
        file.seek(position)
        block = file.read(BLOCK_BYTES)
        if len(block) < BLOCK_BYTES:
            raise _damaged("it ends in the middle")
        position += BLOCK_BYTES
        if block == _ZERO_BLOCK:
            if path is not None or file.read() != _ZERO_BLOCK:
                raise _damaged("its end is not where it should be")
            return
        kind, content_bytes, mode, name = _parse(block)
        if position + content_bytes > size_bytes:
            raise _damaged(f"a member of {content_bytes} bytes is cut off")
        if kind == _PAX and path is None:
            path = _parse_pax(file.read(content_bytes) if content_bytes <= _PAX_BYTES else b"")
        elif kind == _REGULAR and mode in (0o644, 0o755):
            yield Member(path if path is not None else name, mode == 0o755, content_bytes, position)
            path = None
        else:
            raise _damaged(f"a member has type {kind!r} and mode {mode:o}: only plain files are allowed")
        position += content_bytes + -content_bytes % BLOCK_BYTES


def _header(name: bytes, *, mode: int, size_bytes: int, kind: bytes) -> bytes:
    head = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.ljust(_NAME_BYTES, b"\0"), mode, 0, 0, size_bytes, 0)
    tail = kind + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(155 + 12)
    # The sum is taken with spaces in its own place.
    return head + b"%06o\0 " % (sum(head) + 8 * 0x20 + sum(tail)) + tail


def _parse(block: bytes) -> tuple[bytes, int, int, str]:
    """Return kind, content size, mode and name."""
    if block[257:265] != b"ustar\x0000":
        raise _damaged("a header is not ustar")
    stated = _octal(block[148:156])
    if stated != sum(block) - sum(block[148:156]) + 8 * 0x20:
        raise _damaged("a header's sum does not match")
    if block[345:500].strip(b"\0"):
        raise _damaged("a header has a prefix")
    name = block[:_NAME_BYTES].partition(b"\0")[0]
    try:
        return block[156:157], _octal(block[124:136]), _octal(block[100:108]), name.decode()
    except UnicodeDecodeError:
        raise _damaged("a name is not UTF-8") from None


def _octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ")
    if not digits or digits.strip(b"01234567"):
        raise _damaged("a header has a number that is not octal")
    return int(digits, 8)


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    """Return `length keyword=value\\n`, where the length counts itself."""
    rest = b" %b=%b\n" % (keyword, value)
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d" % length + rest


def _parse_pax(content: bytes) -> str:
    value = content.partition(b" path=")[2].removesuffix(b"\n")
    if not value or content != _pax_record(b"path", value):
        raise _damaged("a pax header holds something else than one path")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _damaged("a path is not UTF-8") from None


def _damaged(finding: str) -> InvalidSource:
    return InvalidSource(
        f"the archive was not written by aot, or is damaged: {finding}", hint="pack the source tree again"
    )
