"""Sessions and transactions. One commit, at the edge; the database's errors are translated here and nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from aot.errors import InvalidConfig, StorageUnavailable

BUSY_SECONDS = 30.0
log = structlog.get_logger()


class Sessions:
    """Opens sessions on one database.

    Readers and writers of SQLite do not block each other (WAL); writers take turns, waiting up to BUSY_SECONDS.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.writing_engine = engine.execution_options(writes=True)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One consistent view; nothing is committed. Raises StorageUnavailable."""
        with translated(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Commit when the block ends, roll back when it raises. Raises StorageUnavailable."""
        with translated(), Session(self.writing_engine, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        self.engine.dispose()


def open_sessions(url: str) -> Sessions:
    """Raises InvalidConfig for a URL that no driver understands."""
    try:
        engine = create_engine(url, pool_pre_ping=True, pool_size=16, max_overflow=32)
    except (ArgumentError, ImportError) as error:
        raise InvalidConfig(
            f"AOT_DATABASE_URL is not a database URL: {error}",
            hint="write sqlite:////path/to/file or postgresql+psycopg://user@host/database",
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _open_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return Sessions(engine)


def _open_sqlite(connection: Any, _record: Any) -> None:
    # The driver would begin transactions by its own rules; `_begin_sqlite` does.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Any) -> None:
    # A writer takes the lock at once: one that read first could find its view out of date and fail without waiting.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def translated() -> Iterator[None]:
    """Turn what says "the database cannot answer now" into StorageUnavailable. Other errors are bugs, and pass."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        log.error("database-unavailable", reason=str(reason))  # not in the answer: it may name hosts and paths
        raise StorageUnavailable(
            "the database did not answer", hint="try again; the registry's log says more"
        ) from error


def add_if_absent(row: Any, session: Session) -> bool:
    """Insert `row`, and return whether it was new: False where a unique index holds an equal one already."""
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return False
    return True
