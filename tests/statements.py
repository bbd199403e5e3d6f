"""What a registry sends to its database while something happens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

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
