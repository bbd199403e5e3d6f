"""What a registry stands on in a campaign: servers from wheels, or nothing but its own data directory.

servers   PostgreSQL, Valkey, an S3 server behind a proxy that misbehaves; two replicas
embedded  SQLite, the directory store, files as messages; one replica, whose links lead through that proxy
"""

import contextlib
import shutil
import time
from pathlib import Path
from typing import Protocol

from tests.faults.backends import ACCESS, BUCKET, SECRET, Backend, ObjectStore, Postgres, Valkey, free_port
from tests.faults.ledger import Ledger
from tests.faults.proxy import FaultProxy
from tests.faults.schedule import Fault

STORE_MODES = frozenset({fault for fault in Fault if fault.name.startswith("STORE_")} - {Fault.STORE_KILLED})
OF_SERVERS = frozenset({Fault.DATABASE_KILLED, Fault.STORE_KILLED})


class Stack(Protocol):
    name: str
    faults: frozenset[Fault]
    ports: tuple[int, ...]
    """Where each replica listens."""
    proxy: FaultProxy

    def start(self) -> None: ...

    def close(self) -> None: ...

    def environ(self, member: str, *, direct: bool = False) -> dict[str, str]:
        """What `replica-N`, a sweeper or the auditor gets; `direct`: its bytes go past the proxy."""

    def broker_environ(self) -> dict[str, str]:
        """What a worker gets of it."""

    def clock(self, member: str) -> Path:
        """The file that turns the clock of that process."""

    def strike(self, fault: Fault, seconds: float) -> None:
        """One of the stack's own faults, for so many seconds."""

    def read(self, hex_digest: str) -> bytes | None: ...

    def digests(self) -> set[str]:
        """Of everything that lies where blobs are, in hex."""


class Servers:
    name = "servers"
    faults = frozenset(Fault) - {Fault.REGISTRY_DISK}

    def __init__(self, root: Path, *, seed: int, ledger: Ledger) -> None:
        self.root = root
        self.ports = (free_port(), free_port())
        self._seed, self._ledger = seed, ledger
        self._ends = contextlib.ExitStack()

    def start(self) -> None:
        self.database, self.broker, self.store = Postgres(self.root), Valkey(self.root), ObjectStore(self.root)
        for backend in (self.database, self.broker, self.store):
            self._ends.callback(backend.close)
            backend.start()
            backend.wait()
        self.store.client().create_bucket(Bucket=BUCKET)
        self.proxy = FaultProxy(self.store.port, seed=self._seed, ledger=self._ledger)
        self._ends.callback(self.proxy.close)

    def close(self) -> None:
        self._ends.close()

    def environ(self, member: str, *, direct: bool = False) -> dict[str, str]:
        endpoint = f"http://127.0.0.1:{self.store.port}" if direct else self.proxy.url
        environ = {
            **self.broker_environ(),
            "AOT_DATA_DIR": str(self.root / member),
            "AOT_DATABASE_URL": self.database.url,
            # About half of what workers upload is larger, and goes in parts.
            "AOT_BLOB_URL": f"s3://{BUCKET}/aot?endpoint={endpoint}&region=us-east-1&largest_put=30000",
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        if member.startswith("replica"):
            environ["AOT_PUBLIC_URL"] = f"http://127.0.0.1:{self.ports[int(member.rpartition('-')[2])]}"
        return environ

    def broker_environ(self) -> dict[str, str]:
        return {"AOT_BROKER_URL": self.broker.url}

    def clock(self, member: str) -> Path:
        return self.root / f"clock-of-{member}"

    def strike(self, fault: Fault, seconds: float) -> None:
        backends: dict[Fault, Backend] = {
            Fault.BROKER_LOST: self.broker,
            Fault.DATABASE_KILLED: self.database,
            Fault.STORE_KILLED: self.store,
        }
        backend = backends[fault]
        backend.kill()
        time.sleep(seconds)
        backend.start()

    def read(self, hex_digest: str) -> bytes | None:
        client = self.store.client()
        try:
            key = f"aot/sha256/{hex_digest[:2]}/{hex_digest[2:]}"
            return bytes(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        except client.exceptions.ClientError:
            return None

    def digests(self) -> set[str]:
        prefix = "aot/sha256/"
        pages = self.store.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        keys = {found["Key"] for page in pages for found in page.get("Contents", ())}
        return {key.removeprefix(prefix).replace("/", "") for key in keys}


class Embedded:
    """Every process of the registry has one data directory and, as on one host, one clock."""

    name = "embedded"
    faults = frozenset(Fault) - OF_SERVERS

    def __init__(self, root: Path, *, seed: int, ledger: Ledger) -> None:
        self.root = root
        self.ports = (free_port(),)
        self.data_dir, self.queue = root / "registry", root / "queue"
        self._seed, self._ledger = seed, ledger

    def start(self) -> None:
        self.proxy = FaultProxy(self.ports[0], seed=self._seed, ledger=self._ledger, blobs_below="/blobs/")

    def close(self) -> None:
        self.proxy.close()

    def environ(self, member: str, *, direct: bool = False) -> dict[str, str]:
        public = f"http://127.0.0.1:{self.ports[0]}" if direct else self.proxy.url
        return {**self.broker_environ(), "AOT_DATA_DIR": str(self.data_dir), "AOT_PUBLIC_URL": public}

    def broker_environ(self) -> dict[str, str]:
        return {"AOT_BROKER_URL": f"filesystem://{self.queue}"}

    def clock(self, member: str) -> Path:
        return self.root / "clock"

    def strike(self, fault: Fault, seconds: float) -> None:
        match fault:
            case Fault.BROKER_LOST:
                shutil.rmtree(self.queue / "messages", ignore_errors=True)
                time.sleep(seconds)
                (self.queue / "messages").mkdir(exist_ok=True)
            case Fault.REGISTRY_DISK:
                full = self.clock("").with_name("registry-disk-full")
                full.touch()
                time.sleep(seconds)
                full.unlink(missing_ok=True)
            case other:
                raise AssertionError(other)

    def read(self, hex_digest: str) -> bytes | None:
        path = self.data_dir / "blobs" / hex_digest[:2] / hex_digest[2:]
        return path.read_bytes() if path.exists() else None

    def digests(self) -> set[str]:
        return {
            path.parent.name + path.name
            for path in (self.data_dir / "blobs").glob("??/*")
            if len(path.parent.name + path.name) == 64
        }


STACKS = {stack.name: stack for stack in (Servers, Embedded)}
