"""Namespaces, names, tags and references: `[namespace/]name[:tag or @digest]`."""

import re
from typing import Self

from aot.errors import InvalidName
from aot.schema.digest import Digest
from aot.schema.text import Text

DEFAULT_NAMESPACE = "default"
DEFAULT_TAG = "latest"
_SHAPE = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9])?")
_TAG_SHAPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class Namespace(Text):
    """The tenant: lower-case letters, digits, `.`, `_` and `-`; 100 characters at most."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(_matched(text, _SHAPE, what="namespace"))


class Name(Text):
    """A model's name inside its namespace, spelled like a namespace."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(_matched(text, _SHAPE, what="name"))


class Tag(Text):
    """A movable name for a bundle, unique beside its model's name."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(_matched(text, _TAG_SHAPE, what="tag"))


class Reference(Text):
    """`namespace/name:tag` or `namespace/name@sha256:…`, always complete once parsed."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Fill in the namespace `default` and the tag `latest` where they are left out. Raises InvalidName."""
        head, at, digest = text.partition("@")
        path, colon, tag = head.partition(":")
        namespace, slash, name = path.rpartition("/")
        if at and colon:
            raise InvalidName(f"{text!r} has both a tag and a digest", hint="keep one: name:tag or name@sha256:…")
        space = Namespace.parse(namespace) if slash else DEFAULT_NAMESPACE
        target = f"@{Digest.parse(digest)}" if at else f":{Tag.parse(tag) if colon else DEFAULT_TAG}"
        return cls(f"{space}/{Name.parse(name)}{target}")

    @property
    def namespace(self) -> Namespace:
        return Namespace(self.partition("/")[0])

    @property
    def name(self) -> Name:
        return Name(re.split("[:@]", self.partition("/")[2], maxsplit=1)[0])

    @property
    def tag(self) -> Tag | None:
        return None if "@" in self else Tag(self.rpartition(":")[2])

    @property
    def digest(self) -> Digest | None:
        return Digest(self.partition("@")[2]) if "@" in self else None

    def pinned_to(self, digest: Digest) -> "Reference":
        """The same model, named by digest."""
        return Reference(f"{self.namespace}/{self.name}@{digest}")


def _matched(text: str, shape: re.Pattern[str], *, what: str) -> str:
    if not shape.fullmatch(text):
        raise InvalidName(
            f"wanted a {what}, found {text[:120]!r}",
            hint="use lower-case letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return text
