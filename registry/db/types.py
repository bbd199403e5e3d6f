"""Column types: values inside, text in the column, the same on SQLite and PostgreSQL."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, LargeBinary, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from aot.schema.codec import decode, encode

Bytes = LargeBinary


class UtcTime(TypeDecorator[datetime]):
    """An aware UTC time. SQLite has no time zones: there it is written without one, and read back as UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        assert value.tzinfo is not None, "times are aware"
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Plain(TypeDecorator[str]):
    """Text from outside. PostgreSQL refuses NUL, so it is replaced: in rows, and in what they are compared with."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else plain(value)


def plain(text: str) -> str:
    """The text as a column keeps it."""
    return str.__str__(text).replace("\0", "\ufffd")


HEAD_CHARACTERS = 128


class Head(FunctionElement[str]):
    """The beginning of a text, as far as an index takes it, in the order of its code points whatever the locale.

    An index of it serves every prefix. Statement and index must spell it in the same words, hence no parameters.
    """

    type = Plain()
    inherit_cache = True


@compiles(Head, "sqlite")
def _head_of_sqlite(element: Head, compiler: Any, **options: Any) -> str:
    return f"substr({compiler.process(element.clauses, **options)}, 1, {HEAD_CHARACTERS})"


@compiles(Head, "postgresql")
def _head_of_postgresql(element: Head, compiler: Any, **options: Any) -> str:
    return f'{_head_of_sqlite(element, compiler, **options)} COLLATE "C"'


class Joined(FunctionElement[str]):
    """The texts of a group with commas between them, in no order; NULL for none.

    SQLAlchemy's own `aggregate_strings` writes its separator into the statement anew at every execution.
    """

    type = Text()
    inherit_cache = True


@compiles(Joined, "sqlite")
def _joined_of_sqlite(element: Joined, compiler: Any, **options: Any) -> str:
    return f"group_concat({compiler.process(element.clauses, **options)}, ',')"


@compiles(Joined, "postgresql")
def _joined_of_postgresql(element: Joined, compiler: Any, **options: Any) -> str:
    return f"string_agg({compiler.process(element.clauses, **options)}, ',')"


class Unindexed(FunctionElement[Any]):
    """A column as it is, which SQLite's planner leaves the indexes of: it counts no rows and takes the first it finds.

    PostgreSQL counts them, and is left alone.
    """

    inherit_cache = True


@compiles(Unindexed)
def _as_it_is(element: Unindexed, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(Unindexed, "sqlite")
def _unindexed_of_sqlite(element: Unindexed, compiler: Any, **options: Any) -> str:
    return f"+{_as_it_is(element, compiler, **options)}"


def after_prefix(prefix: str) -> str | None:
    """Return the first text after all those that begin with `prefix`; None where there is none."""
    while prefix:
        code = ord(prefix[-1]) + 1
        if code <= 0x10FFFF:
            return prefix[:-1] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)  # a surrogate is no character
        prefix = prefix[:-1]
    return None


class Word(TypeDecorator[Any]):
    """A value that is written as one string: a `Text` (Digest, Name …) or a StrEnum. Rows are trusted: not parsed."""

    impl = String
    cache_ok = True

    def __init__(self, kind: Callable[[str], Any]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        # Drivers choose by exact type; a subclass of str is not str to all of them.
        return None if value is None else str.__str__(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else self.kind(value)

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        return self


class Json(TypeDecorator[Any]):
    """A msgspec value in its canonical JSON, decoded on reading.

    As text, not in the database's own JSON type: PostgreSQL would reorder it, and refuses a NUL that a log may hold.
    """

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else decode(value, self.kind)
