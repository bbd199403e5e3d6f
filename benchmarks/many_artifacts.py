"""Databases with as many artifacts as one likes: one bundle is published by the services, then cloned by SQL.

The clones have other digests and names and the same contents. They have whatever columns the schema has.
"""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, text

from aot.schema.wire.workers import Scope
from registry.db.models import Row
from tests.builders import a_profile, a_spec
from tests.service import a_service

ARTIFACTS, FILES = 10, 2  # of one bundle; of one artifact


def fill(url: str, bundles: int) -> str:
    """Migrate the empty database, put so many live bundles in it, each under a tag; return a token that reads."""
    with tempfile.TemporaryDirectory() as data, a_service(Path(data), database_url=url) as service:
        service.register(a_profile())
        template = service.published(a_spec()).bundle
        service.call("tag", _tagging(template), namespace="default", name="mini", tag="latest")
        event.listen(service.deps.sessions.engine, "connect", _add_md5)
        service.deps.sessions.engine.dispose()
        with service.deps.sessions.transaction() as session:
            multiply(session.connection(), template, bundles)
        return service.token(Scope.READ)


def digest_of(number: int) -> str:
    return "sha256:" + _md5(f"a{number}") + _md5(f"b{number}")


def multiply(connection: Connection, template: str, bundles: int) -> None:
    postgres = connection.dialect.name == "postgresql"
    if postgres:
        connection.execute(text("SET LOCAL session_replication_role = replica"))  # keys are right by construction
    counted = f"WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < {bundles - 1})"
    numbers = f"generate_series(0, {bundles - 1}) AS n(i)" if postgres else f"({counted} SELECT i FROM s) n"
    files = "(" + " UNION ALL ".join(f"SELECT {number} AS j" for number in range(ARTIFACTS * FILES)) + ") m"
    digest, name = "'sha256:' || md5('a' || i) || md5('b' || i)", "'model-' || i"
    blob = "'sha256:' || md5('c' || j) || md5('d' || j)"
    own = {"bundle": digest}
    clone(connection, "blobs", {"digest": blob}, files, where="t.digest = (SELECT min(digest) FROM blobs)")
    where = f"t.digest = '{template}'"
    clone(connection, "bundles", {"digest": digest, "name": name, "build": "NULL"}, numbers, where=where)
    where = f"t.bundle = '{template}'"
    clone(connection, "tags", {**own, "name": name}, numbers, where=where)
    first = f"{where} AND t.position = 0"
    each = f"{numbers}, {files}"
    clone(connection, "artifacts", {**own, "position": "j"}, each, where=f"{first} AND j < {ARTIFACTS}")
    parts = {**own, "position": "j", "artifact": f"j / {FILES}", "digest": blob}
    clone(connection, "artifact_blobs", parts, each, where=first)


def clone(connection: Connection, table: str, changed: dict[str, str], series: str, *, where: str) -> None:
    """Insert for every row of `series` a copy of the one row of `table` that `where` names, some columns changed."""
    columns = [column.name for column in Row.metadata.tables[table].columns]
    values = ", ".join(changed.get(column, f"t.{column}") for column in columns)
    connection.execute(
        text(f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} t, {series} WHERE {where}")
    )


def _tagging(bundle: Any) -> Any:
    from aot.schema.wire.bundles import TagRequest

    return TagRequest(bundle=bundle)


def _md5(value: object) -> str:
    return hashlib.md5(str(value).encode()).hexdigest()


def _add_md5(connection: Any, _record: Any) -> None:
    if hasattr(connection, "create_function"):  # SQLite, which has none
        connection.create_function("md5", 1, _md5, deterministic=True)
