"""`tests/standing.py`: services of one application share its routes and nothing else."""

from pathlib import Path

import pytest

from aot.errors import NotFound
from registry.db.session import Sessions
from tests.builders import a_profile, a_spec
from tests.service import a_service


def test_a_later_service_has_a_store_and_a_database_of_its_own(tmp_path: Path) -> None:
    spec = a_spec()
    with a_service(tmp_path / "one") as one:
        one.register(a_profile())
        first = one.published(spec, tags=("latest",)).bundle
    with a_service(tmp_path / "two") as two:
        assert two.http.app is one.http.app
        place = {"namespace": spec.namespace, "name": spec.name, "target": "latest"}
        with pytest.raises(NotFound):
            two.call("resolve", **place)
        assert two.call("list_builds").builds == ()
        two.register(a_profile())
        assert [two.deps.store.stat(blob.digest) for blob in spec.blobs] == [None] * len(spec.blobs)
        assert two.published(spec).bundle == first
        assert all(two.deps.store.stat(blob.digest) == blob.size_bytes for blob in spec.blobs)


def test_services_at_the_same_time_have_an_application_each(tmp_path: Path) -> None:
    with a_service(tmp_path / "one") as one, a_service(tmp_path / "two") as two:
        assert one.http.app is not two.http.app
        one.register(a_profile())
        assert two.call("list_profiles").profiles == () != one.call("list_profiles").profiles


def test_each_service_closes_its_own_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Sessions] = []
    monkeypatch.setattr(Sessions, "close", lambda sessions: closed.append(sessions))
    for name in ("one", "two"):
        with a_service(tmp_path / name) as service:
            pass
        assert closed.pop() is service.deps.sessions and closed == []
