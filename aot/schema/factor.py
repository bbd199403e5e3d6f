"""Factors: the named inputs of a build key or fingerprint, kept beside the digest so that a miss can be explained."""

from typing import Any

from aot.schema.codec import Document, encode
from aot.schema.digest import Digest


class Factor(Document, kw_only=True):
    """One named input. `text` is the value as people read it, cut where it is long; the digest covers all of it."""

    name: str
    digest: Digest
    text: str = ""

    @classmethod
    def of(cls, name: str, value: Any) -> "Factor":
        content = encode(value)
        return cls(name=name, digest=Digest.of(content), text=content.decode()[:200])


class FactorChange(Document, kw_only=True):
    """One factor that differs between two keys; `None` where one side lacks it."""

    name: str
    before: str | None
    after: str | None


class Fingerprint(Document, kw_only=True):
    """What a program is apart from its weights, and the parts it was made from."""

    digest: Digest
    factors: tuple[Factor, ...] = ()
