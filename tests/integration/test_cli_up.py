"""`aot up` for real: registry, sweeper and worker of one directory, ended in every way a service is ended."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aot.client.connect import open_client
from aot.schema.names import Name
from tests.builders import a_profile
from tests.commands import COMMAND, Ran, clean_environ, end

START_SECONDS = 120.0
STOP_SECONDS = 15.0
PARTS = {"registry serve", "registry sweep", "worker"}


@dataclass
class Up:
    """A running `aot up`, and what it printed."""

    process: "subprocess.Popen[str]"
    data: Path
    exports: dict[str, str]

    def parts(self) -> dict[str, int]:
        """The processes that it started, by name."""
        found = {}
        for pid in children_of(self.process.pid):
            words = command_of(pid).split()
            found[" ".join(words[words.index("-m") + 1 :][:2])] = pid
        return found

    def ended(self, *, seconds: float = STOP_SECONDS) -> Ran:
        return end(self.process, seconds=seconds)


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def descendants_of(pid: int) -> list[int]:
    found = children_of(pid)
    return found + [below for child in found for below in descendants_of(child)]


def wait_until_gone(pids: list[int], *, seconds: float = STOP_SECONDS) -> list[int]:
    """Those that are still alive after the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(is_alive, pids)):
        time.sleep(0.05)
    return [pid for pid in pids if is_alive(pid)]


def environ_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return dict(entry.split("=", 1) for entry in entries)


def start_up(data: Path, *options: str, **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "up", "--data", str(data), "--port", "0", *options],
        env=clean_environ(data.parent, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def an_up(data: Path, *options: str, **variables: str) -> Iterator[Up]:
    """A service that has printed its lines; whatever is left of it at the end is killed."""
    process = start_up(data, *options, **variables)
    up = Up(process, data, {})
    try:
        assert process.stdout is not None
        for line in process.stdout:
            name, _, value = line.strip().removeprefix("export ").partition("=")
            up.exports[name] = value
            if name == "AOT_TRUSTED_KEYS":
                break
        else:
            raise AssertionError(end(process))
        yield up
    finally:
        left = [process.pid, *descendants_of(process.pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def test_it_prints_what_to_set_and_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with an_up(tmp_path / "data") as up:
        assert set(up.exports) == {"AOT_URL", "AOT_TOKEN_FILE", "AOT_TRUSTED_KEYS"}
        assert up.exports["AOT_URL"].startswith("http://127.0.0.1:")
        assert set(up.parts()) == PARTS
        for name in ("token", "worker-token"):
            assert stat.S_IMODE((up.data / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(up.data.stat().st_mode) == 0o700
        environ = {**clean_environ(tmp_path), **up.exports}
        listed = subprocess.run([*COMMAND, "ls", "--json"], env=environ, capture_output=True, text=True, check=True)
        assert listed.stdout == '{"bundles":[]}\n'
        client = open_client(up.exports["AOT_URL"], (up.data / "token").read_text().strip())
        assert [view.live_workers for view in client.list_profiles().profiles], "a build finds its profile at once"

        pids = descendants_of(up.process.pid)
        up.process.send_signal(signal.SIGINT)
        ran = up.ended()
        assert (ran.code, ran.out) == (0, "")
        assert ran.err.splitlines() == [
            f"serving {up.data} at {up.exports['AOT_URL']}; logs in {up.data / 'logs'}; Ctrl-C ends it",
            "stopping",
        ]
        assert wait_until_gone(pids, seconds=1) == []


def test_as_json_it_prints_one_document_of_what_to_set(tmp_path: Path) -> None:
    process = start_up(tmp_path / "data", "--no-worker", "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert end(process, seconds=STOP_SECONDS).code == 0
    exports = json.loads(line)
    assert set(exports) == {"AOT_URL", "AOT_TOKEN_FILE", "AOT_TRUSTED_KEYS"}
    assert exports["AOT_TOKEN_FILE"] == str(tmp_path / "data" / "token")


def test_restarted_it_has_the_same_keys_tokens_and_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    profile = a_profile("remembered", capability="cpu:x86-64")

    def secrets() -> list[str]:
        return [(data / name).read_text() for name in ("token", "worker-token", "signing.key")]

    with an_up(data) as up:
        before, keys = secrets(), up.exports["AOT_TRUSTED_KEYS"]
        client = open_client(up.exports["AOT_URL"], before[0].strip())
        client.register_worker(Name("another"), profiles=(profile,))
        up.process.send_signal(signal.SIGTERM)
        assert up.ended().code == 0
    with an_up(data) as up:
        assert (secrets(), up.exports["AOT_TRUSTED_KEYS"]) == (before, keys)
        known = open_client(up.exports["AOT_URL"], before[0].strip()).list_profiles().profiles
        assert profile in [view.profile for view in known]


def test_its_worker_does_not_see_what_is_the_registrys(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'other.sqlite3'}"
    secrets = {"AOT_DATABASE_URL": database, "AWS_SECRET_ACCESS_KEY": "secret"}
    with an_up(tmp_path / "data", **secrets) as up:
        seen = {name: environ_of(pid) for name, pid in up.parts().items()}
        assert secrets.items() <= seen["registry serve"].items()
        assert not secrets.keys() & seen["worker"].keys()
        assert seen["worker"]["AOT_TRUST_SOURCES"] == "default"


def test_bound_to_an_address_that_others_reach_it_warns_and_trusts_nobody(tmp_path: Path) -> None:
    with an_up(tmp_path / "data", "--host", "0.0.0.0") as up:
        assert "AOT_TRUST_SOURCES" not in environ_of(up.parts()["worker"])
        up.process.send_signal(signal.SIGINT)
        assert up.ended().err.splitlines()[0] == (
            "bound to 0.0.0.0, which other machines may reach: tokens travel unencrypted, put TLS in front"
        )


def test_a_second_one_on_the_directory_is_refused(tmp_path: Path) -> None:
    with an_up(tmp_path / "data", "--no-worker") as up:
        assert set(up.parts()) == {"registry serve", "registry sweep"}
        ran = end(start_up(tmp_path / "data"))
        assert (ran.code, ran.out) == (5, "")
        assert ran.err == (
            f"error: {up.data} is served already, by process {up.process.pid}\n"
            "  try: stop it, or choose another directory with --data\n"
        )
        assert up.process.poll() is None and all(map(is_alive, up.parts().values()))


def test_killed_hard_it_takes_its_parts_along_and_leaves_the_directory_free(tmp_path: Path) -> None:
    with an_up(tmp_path / "data") as up:
        pids = descendants_of(up.process.pid)
        assert len(pids) >= 3
        up.process.kill()
        up.process.wait()
        assert wait_until_gone(pids) == []
    with an_up(tmp_path / "data", "--no-worker") as again:
        assert again.process.poll() is None


@pytest.mark.parametrize("name", ["registry serve", "worker"])
def test_a_part_that_dies_ends_the_service_and_is_reported_with_its_log(tmp_path: Path, name: str) -> None:
    with an_up(tmp_path / "data") as up:
        pids = descendants_of(up.process.pid)
        os.kill(up.parts()[name], signal.SIGKILL)
        ran = up.ended()
        short = name.split()[0]
        assert ran.code == 5
        assert f"error: the {short} was killed by SIGKILL" in ran.err
        assert f"try: its log is {up.data / 'logs' / f'{short}.log'}" in ran.err
        assert wait_until_gone(pids, seconds=1) == []


def test_a_part_that_does_not_start_is_reported_with_its_own_words(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "signing.key").write_text("no key")
    (data / "signing.key").chmod(0o600)
    ran = end(start_up(data))
    assert (ran.code, ran.out) == (5, "")
    assert "error: the registry ended with code 2" in ran.err
    assert "holds no Ed25519 private key" in ran.err


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = end(start_up(tmp_path / "data", "--port", str(port)))
    assert (ran.code, ran.out) == (5, "")
    assert f"error: port {port} of 127.0.0.1 is in use" in ran.err
    assert "choose another with --port" in ran.err
    assert not (tmp_path / "data" / "registry.sqlite3").exists()


def test_an_address_of_another_machine_is_told(tmp_path: Path) -> None:
    ran = end(start_up(tmp_path / "data", "--host", "192.0.2.1"))
    assert (ran.code, "192.0.2.1:0 cannot be bound" in ran.err) == (2, True)


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = end(start_up(tmp_path / "file" / "data"))
    assert (ran.code, ran.out) == (2, "")
    assert str(tmp_path / "file" / "data") in ran.err and "  try: " in ran.err


@pytest.mark.parametrize("delay", [0.2, 0.8, 1.6, 2.6])
def test_ctrl_c_while_it_starts_leaves_nothing(tmp_path: Path, delay: float) -> None:
    process = start_up(tmp_path / "data")
    time.sleep(delay)
    pids = descendants_of(process.pid)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    ran = end(process, seconds=STOP_SECONDS + 5)
    assert ran.code in (0, 130), ran
    assert wait_until_gone(pids, seconds=1) == []
