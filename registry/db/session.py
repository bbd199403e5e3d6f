"""Sessions and transactions. One commit, at the edge; the database's errors are translated here and nowhere else."""

import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog
from sqlalchemy import ColumnElement, Connection, Engine, create_engine, event, func, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import InvalidatePoolError as NotConnected
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from aot.errors import InvalidConfig, StorageUnavailable

# Connections of one process; docs/deploy.md tells their sum, since PostgreSQL takes 100 of all unless told otherwise.
# A glance waits for another one's single statement: that is sooner done than a connection is opened.
POOL = {"pool_size": 16, "max_overflow": 32}
GLANCING_POOL = {"pool_size": 12, "max_overflow": 0}
BUSY_SECONDS = 30.0
# A glance asks whether its connection still lives only after this: the question is a round trip of its own.
QUIET_SECONDS = 1.0
# As SQLite and PostgreSQL say it.
DISK_FULL = ("database or disk is full", "No space left on device")
# As PostgreSQL says that it has ended a transaction for the sake of others: serialization failure, deadlock.
ROLLED_BACK = frozenset({"40001", "40P01"})
T = TypeVar("T")
log = structlog.get_logger()


class Sessions:
    """Opens sessions on one database.

    Readers and writers of SQLite do not block each other (WAL); writers take turns, waiting up to BUSY_SECONDS. Those
    of one process wait for each other here: SQLite itself looks for its lock once in a while, and whoever looks at the
    wrong moments waits for seconds.
    """

    def __init__(self, engine: Engine, glancing_engine: Engine) -> None:
        self.engine = engine
        self.writing_engine = engine.execution_options(writes=True)
        self.glancing_engine = glancing_engine
        self._writer = threading.Lock() if engine.dialect.name == "sqlite" else None

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One consistent view; nothing is committed. Raises StorageUnavailable."""
        with translated(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def glancing(self) -> Iterator[Connection]:
        """For what is read in one statement (`registry.db.hot`): several would each see the moment of their own.

        A connection that was lost within QUIET_SECONDS is noticed by the statement: StorageUnavailable, and a retry.
        """
        with translated(), self.glancing_engine.connect() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Commit when the block ends, roll back when it raises. Raises StorageUnavailable."""
        with (
            translated(),
            self._turn(),
            Session(self.writing_engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._writer is None:
            yield
            return
        if not self._writer.acquire(timeout=BUSY_SECONDS):
            raise StorageUnavailable(
                f"the database was busy for {BUSY_SECONDS:.0f} s", hint="try again; the registry's log says more"
            )
        try:
            yield
        finally:
            self._writer.release()

    def ask_time(self) -> datetime:
        """The database's own time. Raises StorageUnavailable."""
        with self.reading() as session:
            now: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
        return now.astimezone(UTC)

    @property
    def shared(self) -> bool:
        """True where registries on other hosts may use this database too."""
        return self.engine.dialect.name != "sqlite"

    def close(self) -> None:
        self.engine.dispose()
        self.glancing_engine.dispose()


def open_sessions(url: str) -> Sessions:
    """Raises InvalidConfig for a URL that no driver understands."""
    try:
        engine = create_engine(url, pool_pre_ping=True, **POOL)
        # A transaction around one statement costs two more round trips, and tells nothing more.
        alone: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True}
        glancing = create_engine(url, pool_reset_on_return=None, **GLANCING_POOL, **alone)
    except (ArgumentError, ImportError) as error:
        raise InvalidConfig(
            f"AOT_DATABASE_URL is not a database URL: {error}",
            hint="write sqlite:////path/to/file or postgresql+psycopg://user@host/database",
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _open_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        event.listen(glancing, "connect", _open_sqlite)
    else:  # a file is not lost
        _ask_when_quiet(glancing)
    return Sessions(engine, glancing)


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


def _ask_when_quiet(engine: Engine) -> None:
    """What `pool_pre_ping` does at every checkout, only after QUIET_SECONDS: the pool then connects anew."""
    dialect = engine.dialect

    def ask(connection: Any, record: Any, _fairy: Any) -> None:
        used_at = record.info.get("used_at")
        if used_at is None or time.monotonic() - used_at < QUIET_SECONDS:
            return
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            raise NotConnected from error

    def note(_connection: Any, record: Any) -> None:
        record.info["used_at"] = time.monotonic()

    event.listen(engine, "checkout", ask)
    event.listen(engine, "checkin", note)


@contextmanager
def translated() -> Iterator[None]:
    """Turn what says "the database cannot answer now" into StorageUnavailable. Other errors are bugs, and pass."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        log.error("database-unavailable", reason=str(reason))  # not in the answer: it may name hosts and paths
        if any(words in str(reason) for words in DISK_FULL):
            raise StorageUnavailable(
                "the database's disk is full; nothing was changed",
                hint="free space where the database lies; the request can be sent again then",
            ) from error
        if _is_rolled_back(error):
            raise StorageUnavailable(
                "others were at the same rows, and the database let them go first; nothing was changed",
                hint="send the request again in a few seconds",
            ) from error
        raise StorageUnavailable(
            "the database did not answer", hint="try again; the registry's log says more"
        ) from error


def tried_again(act: Callable[[], T], *, tries: int = 2) -> T:
    """Return what `act` does, which may be done again: also where the database ends its transaction for others' sake.

    Everybody here takes rows in one order. A version before this one, beside which it runs during an upgrade, may have
    another, and what two orders do to each other is over when one of the two begins anew. Raises what `act` raises at
    the last of `tries`; between them passes the time that PostgreSQL takes to look for deadlocks.
    """
    for _ in range(tries - 1):
        try:
            return act()
        except StorageUnavailable as error:
            if not _is_rolled_back(error.__cause__):
                raise
            log.info("tried-again", reason=error.message)
    return act()


def _is_rolled_back(error: BaseException | None) -> bool:
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in ROLLED_BACK


def hold_turn(connection: Connection, name: str) -> None:
    """Wait until nobody else is at `name`; the turn ends with the transaction. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_turn_key(name))))


def try_turn(connection: Connection, name: str) -> bool:
    """Whether nobody else is at `name`; then the turn is this transaction's, as `hold_turn` gives it."""
    if connection.dialect.name != "postgresql":
        return True
    return bool(connection.scalar(select(func.pg_try_advisory_xact_lock(_turn_key(name)))))


def _turn_key(name: str) -> int:
    return zlib.crc32(f"aot-registry {name}".encode())


def add_all_if_absent(
    model: Any,
    rows: Sequence[Mapping[str, Any]],
    session: Session,
    *,
    fill: str | None = None,
    where: ColumnElement[bool] | None = None,
) -> None:
    """Insert every one of `rows` that no unique index holds already, in one go: thousands, as a large push has them.

    With `fill` those that are there are locked, and this column is filled in `where` that is true.
    """
    if not rows:
        return
    dialect = {"sqlite": sqlite_insert, "postgresql": postgresql_insert}
    insert = dialect[session.get_bind().dialect.name](model.__table__)
    if fill is None:
        statement = insert.on_conflict_do_nothing()
    else:
        key = list(model.__table__.primary_key)
        statement = insert.on_conflict_do_update(index_elements=key, set_={fill: insert.excluded[fill]}, where=where)
    session.flush()
    session.connection().execute(statement, [dict(row) for row in rows])


def change_all(statement: Any, parameters: Sequence[Mapping[str, Any]], session: Session) -> None:
    """Run a statement on a table once for each of `parameters`; what the session holds is read anew when it is used.

    The same by way of the mapped class would compare each one with every row that the session holds: a minute for
    three thousand.
    """
    if parameters:
        session.flush()
        session.connection().execute(statement, [dict(one) for one in parameters])
        session.expire_all()


def add_if_absent(row: Any, session: Session) -> bool:
    """Insert `row`, and return whether it was new: False where a unique index holds an equal one already."""
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return False
    return True
