"""The one canonical encoding: JSON, keys sorted, defaults left out, no white space.

Identity depends on it: a manifest's digest is the digest of the bytes that `encode` returns. Readers keep the bytes
they received and never re-encode to compare.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from aot.errors import InvalidInput, MalformedDocument
from aot.schema.text import Text

T = TypeVar("T")


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what is stored or sent to the registry: unknown fields are refused.

    msgspec does not inherit `kw_only`, so every subclass says it itself.
    """


class Response(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of what the registry answers: a client ignores fields that it does not know."""


class FormatProbe(Document, kw_only=True, forbid_unknown_fields=False):
    """Just enough of a document to see whether the rest can be read."""

    format: int


def always(value: Any) -> Any:
    """A field's default that is written out even so: a format version must be in the bytes."""
    # omit_defaults leaves out what equals a plain default, never what a factory made.
    return msgspec.field(default_factory=lambda: value)


def encode(value: Any) -> bytes:
    """Return the canonical bytes of `value`."""
    return _ENCODER.encode(value)


def encode_pretty(value: Any) -> bytes:
    """Return the same document indented, for files that people review; a final newline included."""
    return msgspec.json.format(encode(value), indent=2) + b"\n"


def decode(content: bytes | str, kind: type[T], *, what: str = "") -> T:
    """Return the `kind` that `content` spells. Raises MalformedDocument, its `details["path"]` saying where."""
    try:
        return _decoder(kind).decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error, what or _name_of(kind)) from error


def convert(value: Any, kind: type[T], *, what: str = "") -> T:
    """Like `decode`, from plain dicts and lists (a parsed TOML file, a SQL JSON column)."""
    try:
        return msgspec.convert(value, kind, dec_hook=parse_text)
    except msgspec.ValidationError as error:
        raise malformed(error, what or _name_of(kind)) from error


def to_builtins(value: Any) -> Any:
    """Return `value` as dicts, lists and strings."""
    return msgspec.to_builtins(value, enc_hook=str)


def malformed(error: Exception, what: str) -> MalformedDocument:
    message, _, path = str(error).partition(" - at `")
    where = path.rstrip("`") or "$"
    return MalformedDocument(
        f"the {what} does not decode at {where}: {message}",
        hint="check that both sides run compatible versions and that the document is complete",
        details={"path": where},
    )


def parse_text(kind: type, value: Any) -> Any:
    """msgspec's hook for the types that are written as one string."""
    if isinstance(kind, type) and issubclass(kind, Text):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        try:
            return kind.parse(value)
        except InvalidInput as error:
            # A ValueError makes msgspec add the path inside the document.
            raise ValueError(error.message) from error
    raise NotImplementedError(f"{kind} cannot be decoded")


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=parse_text)


def _name_of(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)).lower()


_enc_hook: Callable[[Any], str] = str
_ENCODER = msgspec.json.Encoder(enc_hook=_enc_hook, order="sorted")
