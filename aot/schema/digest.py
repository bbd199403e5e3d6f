"""Digests: how every blob, manifest and key is known."""

import hashlib
import re
from typing import Self

from aot.errors import InvalidDigest
from aot.schema.text import Text

_SHAPE = re.compile(r"sha256:[0-9a-f]{64}")


class Digest(Text):
    """`sha256:` and 64 lower-case hexadecimal digits."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidDigest for any other spelling: upper case and bare hex are refused, not repaired."""
        if not _SHAPE.fullmatch(text):
            raise InvalidDigest(
                f"wanted a digest, found {text[:80]!r}", hint="write sha256: and 64 lower-case hexadecimal digits"
            )
        return cls(text)

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return the digest of `content`, which is in memory already; files are hashed while they stream."""
        return cls("sha256:" + hashlib.sha256(content).hexdigest())

    @classmethod
    def from_hex(cls, text: str) -> Self:
        return cls.parse("sha256:" + text)

    @property
    def hex(self) -> str:
        return self[7:]

    @property
    def short(self) -> str:
        """The first twelve hexadecimal digits, for people."""
        return self[7:19]


class BuildKey(Digest):
    """The digest over all factors of a spec, in order. Equal keys mean equal builds."""

    __slots__ = ()
