"""What a registry makes true before it serves: one first token and one set of keys, however many replicas begin."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from aot.errors import Forbidden, InvalidConfig, Unauthenticated
from aot.schema.wire.workers import Scope
from aot.trust import SigningKey
from registry.clock import utc_now
from registry.db import fleet as fleet_rows
from registry.db.migrate import Standing, migrate, require_served
from registry.db.session import open_sessions
from registry.deps import Deps, build_deps
from registry.services import tokens
from registry.services.start import FIRST_TOKEN, GIVEN_TOKEN, prepare, write_probe_secret
from registry.settings import Settings
from tests.integration.test_registry_postgres import database_url  # noqa: F401
from tests.integration.test_registry_process import run
from tests.service import a_service

GIVEN, NEXT = "a-given-administrators-token", "the-next-administrators-token"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "signing.key"
    SigningKey.generate().save(path)
    return path


@pytest.fixture
def database(database_url: str, tmp_path: Path, key: Path) -> Iterator[dict[str, str]]:  # noqa: F811
    """What every replica is told."""
    told = {"AOT_DATABASE_URL": database_url, "AOT_SIGNING_KEYS": str(key)}
    deps = a_replica(tmp_path / "migrating", told)
    migrate(deps.sessions)
    deps.sessions.close()
    yield told


def a_replica(data_dir: Path, told: dict[str, str], **more: str) -> Deps:
    return build_deps(Settings.from_environ({"AOT_DATA_DIR": str(data_dir), **told, **more}))


def principal(secret: str, deps: Deps) -> tokens.Principal:
    with deps.sessions.reading() as session:
        return tokens.authenticate(secret, now=utc_now(), reader=session)


def test_of_several_that_migrate_at_once_one_does(tmp_path: Path, database_url: str) -> None:  # noqa: F811
    opened = [open_sessions(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = [schema.standing for schema in pool.map(migrate, opened)]
    assert found == [Standing.SAME] * 4
    for sessions in opened:
        sessions.close()


def test_a_registry_starts_on_a_database_that_a_newer_version_has_added_to(tmp_path: Path, database) -> None:
    deps = a_replica(tmp_path / "replica", database)
    for revision, serves in (("0998", True), ("0002", False), ("9999", False)):
        with deps.sessions.transaction() as session:
            session.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
        if serves:
            require_served(deps.sessions)
            prepare(deps)
            continue
        refused = run(tmp_path / "replica", "serve", **database)
        assert refused.returncode == 5
        assert ("registry migrate" in refused.stderr) == (revision == "0002")
        assert ("cannot serve" in refused.stderr) == (revision == "9999")


def test_of_eight_replicas_that_begin_at_once_one_makes_the_first_token(tmp_path: Path, database) -> None:
    replicas = [a_replica(tmp_path / f"replica-{number}", database) for number in range(8)]
    together = threading.Barrier(8)

    def begin(deps: Deps) -> None:
        together.wait()
        prepare(deps)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, replicas))
    files = [deps.settings.token_path for deps in replicas if deps.settings.token_path.exists()]
    assert len(files) == 1
    assert principal(files[0].read_text().strip(), replicas[0]).label == FIRST_TOKEN
    prepare(replicas[3])  # started again
    assert [deps.settings.token_path for deps in replicas if deps.settings.token_path.exists()] == files


def test_a_given_token_is_the_administrators_and_the_one_before_ends(tmp_path: Path, database) -> None:
    first, second = (a_replica(tmp_path / name, database, AOT_ADMIN_TOKEN=GIVEN) for name in ("a", "b"))
    prepare(first)
    prepare(second)
    found = principal(GIVEN, first)
    assert (found.label, found.scopes, found.namespaces) == (GIVEN_TOKEN, frozenset({Scope.ADMIN}), ())
    assert not first.settings.token_path.exists() and not second.settings.token_path.exists()
    prepare(a_replica(tmp_path / "a", database, AOT_ADMIN_TOKEN=NEXT + "\n"))
    assert principal(NEXT, first).has(Scope.ADMIN)
    with pytest.raises(Unauthenticated):
        principal(GIVEN, first)


def test_a_given_token_ends_when_a_registry_starts_without_it(tmp_path: Path, database) -> None:
    prepare(a_replica(tmp_path / "a", database, AOT_ADMIN_TOKEN=GIVEN))
    without = a_replica(tmp_path / "a", database)
    prepare(without)
    with pytest.raises(Unauthenticated):
        principal(GIVEN, without)
    assert principal(without.settings.token_path.read_text().strip(), without).has(Scope.ADMIN)


def test_a_given_token_that_could_do_less_before_is_the_administrators_now(tmp_path: Path, database) -> None:
    deps = a_replica(tmp_path / "a", database, AOT_ADMIN_TOKEN=GIVEN)
    with deps.sessions.transaction() as session:
        tokens.give(GIVEN, "reader", scopes=(Scope.READ,), now=utc_now(), session=session)
    prepare(deps)
    assert principal(GIVEN, deps).has(Scope.ADMIN)


def test_an_embedded_registry_keeps_its_token_file_beside_a_given_token(tmp_path: Path) -> None:
    deps = a_replica(tmp_path, {}, AOT_ADMIN_TOKEN=GIVEN)
    migrate(deps.sessions)
    prepare(deps)
    for secret in (GIVEN, deps.settings.token_path.read_text().strip()):
        assert principal(secret, deps).has(Scope.ADMIN)


def test_a_replica_with_a_key_of_its_own_does_not_start(tmp_path: Path, database, key: Path) -> None:
    prepare(a_replica(tmp_path / "first", database))
    own = tmp_path / "own.key"
    stranger = a_replica(tmp_path / "second", database, AOT_SIGNING_KEYS=str(own))
    with pytest.raises(InvalidConfig, match="none of these has signed here") as refusal:
        prepare(stranger)
    assert "same AOT_SIGNING_KEYS" in refusal.value.hint and str(own) in refusal.value.message
    # While a key is replaced every registry has both, and the new one may go on alone.
    prepare(a_replica(tmp_path / "first", database, AOT_SIGNING_KEYS=f"{key}:{own}"))
    prepare(stranger)


def test_a_lost_key_is_followed_by_one_that_an_operator_adopts(tmp_path: Path, database) -> None:
    prepare(a_replica(tmp_path / "first", database))
    told = database | {"AOT_SIGNING_KEYS": str(tmp_path / "own.key")}
    refused = run(tmp_path / "second", "serve", **told)
    assert (refused.returncode, "keys --adopt" in refused.stderr) == (2, True), refused.stderr
    adopted = run(tmp_path / "second", "keys", "--adopt", **told)
    assert (adopted.returncode, adopted.stderr) == (0, "")
    deps = a_replica(tmp_path / "second", told)
    assert adopted.stdout.strip() == str(deps.signing_keys[0].public)
    prepare(deps)
    with deps.sessions.reading() as session:
        assert len(fleet_rows.known_keys(session)) == 2


def test_the_health_checks_secret_asks_whether_it_is_ready_and_nothing_else(tmp_path: Path) -> None:
    with a_service(tmp_path) as service:
        assert service.deps.probe_secret == ""
        with pytest.raises(Unauthenticated):
            service.call("get_ready", token="")
        secret = write_probe_secret(service.deps)
        path = service.deps.settings.probe_path
        assert (path.read_text().strip(), path.stat().st_mode & 0o777) == (secret, 0o600)
        with pytest.raises(Unauthenticated):
            service.call("get_ready", token=secret)  # another process's
        service.http.app.state["deps"] = replace(service.deps, probe_secret=secret)
        assert service.call("get_ready", token=secret).ready
        for endpoint in ("list_builds", "list_workers", "search"):
            with pytest.raises(Forbidden):
                service.call(endpoint, token=secret)


@pytest.mark.parametrize("value", ["short", "with a space in the middle of it", "ünïcode-is-no-header-at-all-here"])
def test_a_given_token_that_could_be_guessed_or_not_be_sent_is_refused_unread(value: str) -> None:
    with pytest.raises(InvalidConfig, match="AOT_ADMIN_TOKEN") as refusal:
        Settings.from_environ({"AOT_ADMIN_TOKEN": value})
    assert value not in refusal.value.message
    assert GIVEN not in repr(Settings.from_environ({"AOT_ADMIN_TOKEN": GIVEN}))
