"""What a registry sends to its database while something happens, and how that is carried out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event

from tests.service import Service


@contextmanager
def statements(service: Service) -> Iterator[list[tuple[str, Any]]]:
    """Every statement that is sent in the block, with its parameters; not that a transaction begins."""
    sent: list[tuple[str, Any]] = []

    def note(*given: Any) -> None:
        if not given[2].startswith("BEGIN"):
            sent.append(given[2:4])

    engines = (service.deps.sessions.engine, service.deps.sessions.glancing_engine)
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)


def plan_of(statement: str, parameters: Any, connection: Connection) -> list[str]:
    """The lines of the database's plan.

    On PostgreSQL, reading a table as a whole is made dear for the rest of the transaction: a small one would be read
    so, whatever its indexes.
    """
    explain = "EXPLAIN QUERY PLAN"
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN"
    return [str(row[-1]) for row in connection.exec_driver_sql(f"{explain} {statement}", parameters)]
