"""`python -m registry` as processes: the token file, one server a directory, sweep, migrate, token create, signals."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aot.errors import NotFound, StorageUnavailable
from registry.__main__ import create_token, end_token, fsck, list_tokens, migrate, reindex, retain
from registry.settings import Settings
from tests.stack import environ_of

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environ(data_dir: Path, **extra: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "AOT_DATA_DIR": str(data_dir), **environ_of(data_dir), **extra}


def run(data_dir: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "registry", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environ(data_dir, **extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def serving(data_dir: Path, port: int, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    with (data_dir / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "registry", "serve"],
            cwd=ROOT,
            env=environ(data_dir, AOT_PORT=str(port)),
            stderr=log,
        )
    try:
        wait_until_ready(process, data_dir, port)
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], data_dir: Path, port: int) -> None:
    for _ in range(300):
        assert process.poll() is None, (data_dir / "serve.log").read_text()
        try:
            get(port, "/v1/health", (data_dir / "token").read_text().strip())
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    raise AssertionError((data_dir / "serve.log").read_text())


def get(port: int, path: str, token: str) -> dict:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


def test_a_server_makes_its_directory_and_stops_on_a_signal(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port) as process:
        token = (tmp_path / "token").read_text().strip()
        for name in ("token", "signing.key", "links.secret"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert get(port, "/v1/ready", token) == {"ready": True, "checks": {"database": "ok", "blobs": "ok"}}
        [key] = get(port, "/v1/keys", token)["keys"]

        second = run(tmp_path, "serve", AOT_PORT=str(free_port()))
        assert second.returncode == 5
        assert "is served already, by process" in second.stderr and "Traceback" not in second.stderr

        made = run(tmp_path, "token", "create", "ci", "--scope", "read", "--namespace", "ours")
        assert made.returncode == 0, made.stderr
        assert get(port, "/v1/builds", made.stdout.strip()) == {"builds": []}
        assert token not in (tmp_path / "serve.log").read_text()

        assert run(tmp_path, "token", "end", "ci").returncode == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(port, "/v1/builds", made.stdout.strip())

        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert "Traceback" not in (tmp_path / "serve.log").read_text()

    # The second start finds everything there: the same token, the same key.
    with serving(tmp_path, port) as process:
        assert (tmp_path / "token").read_text().strip() == token
        assert get(port, "/v1/keys", token)["keys"] == [key]
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


@contextmanager
def sweeping(data_dir: Path, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """The sweeper, between passes that are an hour apart; `before`: the command that starts it."""
    assert run(data_dir, "migrate").returncode == 0
    log = data_dir / "sweep.log"
    with log.open("wb") as file:
        command = [*before, sys.executable, "-m", "registry", "sweep", "--every", "3600"]
        process = subprocess.Popen(command, cwd=ROOT, env=environ(data_dir), stderr=file)
    try:
        for _ in range(300):
            if "sweeping" in log.read_text():
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_sweeper_ends_at_once_when_told(tmp_path: Path, number: int) -> None:
    with sweeping(tmp_path) as process:
        time.sleep(0.5)
        process.send_signal(number)
        assert process.wait(timeout=5) == 0
    assert '"event": "stopped"' in (tmp_path / "sweep.log").read_text()


def as_first_process() -> tuple[str, ...]:
    """How to start a command as the first process of a container is: it ignores what it does not handle."""
    bwrap = shutil.which("bwrap")
    words = (bwrap or "", "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--as-pid-1")
    if not bwrap or subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no process namespace can be made here")
    return words


@pytest.mark.parametrize("command", ["sweep", "serve"])
def test_the_first_process_of_a_container_ends_when_told(tmp_path: Path, command: str) -> None:
    port = free_port()
    with (
        sweeping(tmp_path, *as_first_process())
        if command == "sweep"
        else serving(tmp_path, port, *as_first_process()) as process
    ):
        [inner] = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(inner, signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_a_token_file_of_another_database_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("aot_stale\n")
    port = free_port()
    with serving(tmp_path, port):
        assert get(port, "/v1/health", (tmp_path / "token").read_text().strip())["status"] == "ok"
    assert (tmp_path / "token").read_text() != "aot_stale\n"


def test_migrate_and_sweep_run_once(tmp_path: Path) -> None:
    assert run(tmp_path, "migrate").returncode == 0
    swept = run(tmp_path, "sweep", "--once")
    assert swept.returncode == 0, swept.stderr
    assert swept.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "extra", "said"),
    [
        (("serve",), {"AOT_LEASE_SECONDS": "soon"}, "AOT_LEASE_SECONDS"),
        (("serve",), {"AOT_DATABASE_URL": "nonsense"}, "AOT_DATABASE_URL"),
        (("serve",), {"AOT_BROKER_URL": "carrier-pigeon://"}, "AOT_BROKER_URL"),
        (("serve",), {"AOT_BLOB_URL": "ftp://x"}, "AOT_BLOB_URL"),
    ],
)
def test_wrong_settings_end_it_with_the_variable_s_name(tmp_path: Path, arguments, extra, said: str) -> None:
    ended = run(tmp_path, *arguments, **extra)
    assert ended.returncode == 2
    assert said in ended.stderr and "Traceback" not in ended.stderr


def test_a_signing_key_that_others_can_read_ends_it(tmp_path: Path) -> None:
    from aot.trust import SigningKey

    SigningKey.generate().save(tmp_path / "signing.key")
    (tmp_path / "signing.key").chmod(0o644)
    ended = run(tmp_path, "serve")
    assert (ended.returncode, "may be used by others" in ended.stderr) == (2, True)


def test_keys_prints_what_to_trust_from_the_key_files_alone(tmp_path: Path) -> None:
    from aot.trust import SigningKey, TrustedKeys

    paths = [tmp_path / "old.key", tmp_path / "new.key"]
    keys = [SigningKey.generate() for _ in paths]
    for key, path in zip(keys, paths, strict=True):
        key.save(path)
    away = f"postgresql+psycopg://x@127.0.0.1:{free_port()}/x"
    ended = run(tmp_path, "keys", AOT_SIGNING_KEYS=":".join(map(str, paths)), AOT_DATABASE_URL=away)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert tuple(TrustedKeys.parse(ended.stdout)) == tuple(key.public for key in keys)
    paths[1].chmod(0o644)
    assert run(tmp_path, "keys", AOT_SIGNING_KEYS=str(paths[1])).returncode == 2


def test_a_database_that_does_not_answer_ends_it_as_unavailable(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://x@127.0.0.1:{free_port()}/x"
    ended = run(tmp_path, "sweep", "--once", AOT_DATABASE_URL=url)
    assert ended.returncode == 5
    assert ended.stderr.rstrip().endswith("the registry's log says more")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (fsck, {"trust": [], "force": False}),
        (retain, {"dry_run": True}),
        (reindex, {"trust": [], "unsigned": False}),
        (create_token, {"label": "ci", "scope": ["read"], "namespace": [], "expires_in": None}),
        (list_tokens, {}),
        (end_token, {"label": "ci"}),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_housekeeping_where_no_registry_is_says_so_and_makes_none(
    command: Callable[[Namespace, Settings], object], options: dict[str, object], there: bool, tmp_path: Path
) -> None:
    place = tmp_path / "mistyped"
    if there:
        place.mkdir()
    settings = Settings.from_environ({"AOT_DATA_DIR": str(place)})
    with pytest.raises(StorageUnavailable) as caught:
        command(Namespace(**options), settings)
    assert "migrate" in caught.value.hint
    assert place.exists() == there and (not there or list(place.iterdir()) == [])


def test_tokens_are_listed_without_secrets_and_ended_by_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.from_environ({"AOT_DATA_DIR": str(tmp_path)})
    migrate(Namespace(revision="head"), settings)
    options = Namespace(label="ci", scope=["read", "submit"], namespace=["ours"], expires_in=None)
    for _ in range(2):
        create_token(options, settings)
    secrets = capsys.readouterr().out.split()
    list_tokens(Namespace(), settings)
    out = capsys.readouterr().out
    assert [(one["label"], one["scopes"], one["namespaces"]) for one in json.loads(out)] == [
        ("ci", ["read", "submit"], ["ours"])
    ] * 2
    assert not any(secret in out for secret in secrets)
    end_token(Namespace(label="ci"), settings)
    list_tokens(Namespace(), settings)
    assert json.loads(capsys.readouterr().out) == []
    with pytest.raises(NotFound, match="no token ci"):
        end_token(Namespace(label="ci"), settings)
