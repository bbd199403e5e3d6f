"""When the registry is asked for captures that are pending: never where that could only be waited for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.capture.prepare import Prepared, prepare
from aot.cli.pending import pending_lines
from aot.config import Config
from aot.errors import AotError, Forbidden, RegistryUnreachable, StorageUnavailable, TagNotFound
from aot.schema.digest import Digest
from aot.schema.names import Reference
from tests.builders import an_environment

NOTHING = Prepared(Reference.parse("trainer:v1"), an_environment(), reasons=("why",))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(cache_dir=tmp_path, data_dir=tmp_path, url="http://registry.invalid")


def asked(prepared: Prepared, config: Config, monkeypatch: pytest.MonkeyPatch, error: AotError | None = None) -> bool:
    """Whether the registry was asked; it raises `error`."""
    seen = []

    class Client:
        def search(self, **_: Any) -> None:
            seen.append("search")
            raise error or Forbidden("not for this token")

    monkeypatch.setattr("aot.cli.pending.open_client", lambda *_, **__: Client())
    assert pending_lines(prepared, config) == []
    return bool(seen)


def test_it_is_asked_where_it_has_just_answered(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(NOTHING, config, monkeypatch)
    assert asked(replace(NOTHING, failure=TagNotFound("no tag")), config, monkeypatch, RegistryUnreachable("away"))


@pytest.mark.parametrize(
    "changes",
    [
        {"failure": RegistryUnreachable("away")},
        {"failure": StorageUnavailable("away")},
        {"failure": Forbidden("not for this token")},
        {"stale": True},
        {"bundle": Digest.of(b"restored")},
    ],
)
def test_it_is_not_asked_where_it_has_not(
    changes: dict[str, Any], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not asked(replace(NOTHING, **changes), config, monkeypatch)


def test_nor_where_there_is_none_to_ask(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not asked(NOTHING, replace(config, offline=True), monkeypatch)
    assert not asked(NOTHING, replace(config, url=None), monkeypatch)


def test_what_ended_the_restoring_is_kept(config: Config) -> None:
    found = prepare(NOTHING.reference, config=replace(config, offline=True), environ={})
    assert found.failure is not None and found.reasons == (found.failure.as_line,)
