"""A bundle of thousands of blobs: opening and confirming its uploads takes as many statements as one of a few."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState
from registry.db.blobs import AT_ONCE
from registry.db.models import BlobRow, NamespaceBlobRow
from registry.services import blobs
from tests.service import Service, a_service
from tests.statements import statements

DEFAULT = Namespace("default")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        yield service


def uploaded(service: Service, count: int, *, word: str) -> tuple[list[str], list[str]]:
    """Open, put and confirm so many blobs, and return the statements of opening and of confirming."""
    deps, contents = service.deps, [f"{word} {index}".encode() for index in range(count)]
    wanted = [Blob(digest=Digest.of(content), size_bytes=len(content)) for content in contents]
    now = service.clock()
    arrived = blobs.observe(wanted, deps.store, sessions=deps.sessions, namespace=DEFAULT)
    with statements(service) as opening, deps.sessions.transaction() as session:
        missing = blobs.open_uploads(wanted, namespace=DEFAULT, arrived=arrived, now=now, session=session)
    assert missing == tuple(wanted)
    for blob, content in zip(wanted, contents, strict=True):
        service.overwrite(blob.digest, content)
    arrived = blobs.observe(wanted, deps.store, sessions=deps.sessions, namespace=DEFAULT)
    with statements(service) as confirming, deps.sessions.transaction() as session:
        blobs.confirm(wanted, namespace=DEFAULT, arrived=arrived, now=now, session=session)
    with deps.sessions.reading() as session:
        for blob in wanted:
            row, view = session.get(BlobRow, blob.digest), session.get(NamespaceBlobRow, (DEFAULT, blob.digest))
            assert row is not None and view is not None
            assert (row.state, row.size_bytes) == (BlobState.STORED, blob.size_bytes)
            assert row.stored_at is not None and view.stored_at is not None
    return [sql for sql, _ in opening], [sql for sql, _ in confirming]


def test_statements_grow_with_neither_opened_nor_confirmed_blobs(service: Service) -> None:
    uploaded(service, 1, word="the first of a namespace")
    few, many = uploaded(service, 3, word="few"), uploaded(service, AT_ONCE, word="many")
    assert [len(statements) for statements in many] == [len(statements) for statements in few]
    assert sum(statement.startswith("UPDATE namespace_blobs") for statement in many[0]) == 1, (
        "each view is touched once"
    )


def test_what_is_there_keeps_its_row(service: Service) -> None:
    uploaded(service, 2, word="twice")
    deps, content = service.deps, b"twice 0"
    wanted = [Blob(digest=Digest.of(content), size_bytes=len(content))]
    arrived = blobs.observe(wanted, deps.store, sessions=deps.sessions, namespace=DEFAULT)
    service.clock.advance(60)
    with deps.sessions.transaction() as session:
        before = session.get(BlobRow, wanted[0].digest)
        assert before is not None
        first = (before.created_at, before.stored_at)
        assert (
            blobs.open_uploads(wanted, namespace=DEFAULT, arrived=arrived, now=service.clock(), session=session) == ()
        )
        blobs.confirm(wanted, namespace=DEFAULT, arrived=arrived, now=service.clock(), session=session)
    with deps.sessions.reading() as session:
        row, view = session.get(BlobRow, wanted[0].digest), session.get(NamespaceBlobRow, (DEFAULT, wanted[0].digest))
        assert row is not None and view is not None
        assert (row.created_at, row.stored_at) == first
        assert view.opened_at == service.clock(), "retention counts from the last time that it was asked for"
