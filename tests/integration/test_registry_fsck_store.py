"""fsck before a store that is not the registry's own: it must not take every bundle out of selection."""

from pathlib import Path

import pytest

from aot.errors import StorageUnavailable
from aot.trust import TrustedKeys
from registry.services import fsck as fsck_module
from registry.services.fsck import fsck
from tests.builders import a_profile
from tests.integration.test_registry_process import run
from tests.integration.test_registry_retention import a_bundle
from tests.service import Service, a_service

NOBODY = TrustedKeys.of(())
on_a_disk = pytest.mark.embedded("a disk that is not mounted: an object store is there or answers nothing")


@pytest.fixture
def service(tmp_path: Path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        for number in range(11):  # a file and a source each
            a_bundle(service, f"m{number}", tags=("prod",))
        yield service


def unmount(service: Service) -> Path:
    root = service.deps.store.root
    away = root.with_name("away")
    root.rename(away)
    root.mkdir()
    return away


def is_whole(service: Service) -> bool:
    return all(not service.call("get_bundle", digest=one.digest).withdrawn_reason for one in bundles(service))


def bundles(service: Service):
    return service.call("search").bundles


@on_a_disk
def test_a_store_without_any_of_the_first_blobs_is_the_wrong_one(service: Service, tmp_path: Path) -> None:
    away = unmount(service)
    with pytest.raises(StorageUnavailable, match="lacks the first 20 blobs"):
        fsck(service.deps, trusted=NOBODY)
    assert is_whole(service)
    answer = run(tmp_path, "fsck")
    assert answer.returncode == 5 and "--force" in answer.stderr
    service.deps.store.root.rename(tmp_path / "empty")
    away.rename(service.deps.store.root)
    assert fsck(service.deps, trusted=NOBODY).sound


@on_a_disk
def test_where_they_are_really_gone_the_operator_says_so(service: Service, tmp_path: Path) -> None:
    unmount(service)
    assert run(tmp_path, "fsck", "--force").returncode == 6
    assert all(service.call("get_bundle", digest=one.digest).withdrawn_reason for one in bundles(service))


def test_one_blob_that_can_be_read_makes_the_others_missing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsck_module, "MOST_MISSING", 3)
    with service.deps.sessions.reading() as session:
        blobs = fsck_module.rows.stored_blobs(session, after=None, limit=100)
    assert len(blobs) == 22
    for blob in (*blobs[:2], *blobs[3:9]):
        service.deps.store.delete(blob.digest)
    found = fsck(service.deps, trusted=NOBODY)
    assert set(found.damaged_blobs) == {blob.digest for blob in (*blobs[:2], *blobs[3:9])}
