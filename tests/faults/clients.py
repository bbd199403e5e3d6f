"""Submitters and pods of a campaign: real clients, each with a random replica and its own seed."""

import hashlib
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aot.cache import LocalCache
from aot.errors import AotError, BuildFinished, IntegrityFailed, NotFound, Unavailable
from aot.pipeline import pack_factory, submit_spec
from aot.pipeline.fetch import fetch_bundle
from aot.schema.digest import Digest
from aot.schema.names import Name, Reference, Tag
from aot.trust import TrustedKeys
from tests.builders import a_spec
from tests.faults.fleet import Fleet

NAMESPACES = ("default", "limited", "other")
# What the real compiler makes of it takes it a few seconds; the number makes each another program.
REAL_MODEL = """
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 32)

    def forward(self, x):
        return torch.relu(self.linear(x)) * {number}

def make():
    return {{"module": Small(), "args": (torch.randn(4, 16),)}}
"""


@dataclass
class Accepted:
    """What the registry has promised: builds that it answered a submission with, and how each is submitted again."""

    builds: dict[str, Reference] = field(default_factory=dict)
    again: dict[str, Callable[[], object]] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, build: str, reference: Reference) -> None:
        with self._lock:
            self.builds[build] = reference

    def note_cancelled(self, build: str) -> None:
        with self._lock:
            self.cancelled.add(build)

    def some(self) -> list[tuple[str, Reference]]:
        with self._lock:
            return list(self.builds.items())


class Client(threading.Thread):
    """Does `act` again and again until `stop`. Refusals are counted; any other exception is a violation."""

    def __init__(self, name: str, fleet: Fleet, *, seed: int, pause_seconds: float) -> None:
        super().__init__(name=name, daemon=True)
        self.fleet = fleet
        self.random = random.Random(f"{seed} {name}")
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def act(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        while not self._stopped.wait(self._pause_seconds * self.random.uniform(0.5, 1.5)):
            try:
                self.act()
            except Unavailable as error:
                self.fleet.ledger.saw(f"{self.kind}: told to try later ({error.code})")
            except IntegrityFailed as error:
                self.fleet.ledger.saw(f"{self.kind}: refused other bytes ({error.code})")
            except AotError as error:
                self.fleet.ledger.saw(f"{self.kind}: refused ({error.code})")
            except Exception as error:
                self.fleet.ledger.violated(f"{self.name} raised {type(error).__name__}: {error}")

    @property
    def kind(self) -> str:
        return self.name.rpartition("-")[0]

    def replica(self) -> int:
        return self.random.randrange(self.fleet.replicas)


class Submitter(Client):
    """Submits models, some again, and cancels some."""

    def __init__(self, name: str, fleet: Fleet, accepted: Accepted, *, seed: int, profile: Name) -> None:
        super().__init__(name, fleet, seed=seed, pause_seconds=fleet.pace.submit_every)
        self.accepted = accepted
        self.profile = profile
        self._count = 0

    def act(self) -> None:
        known = self.accepted.some()
        if known and self.random.random() < 0.08:
            self.cancel(self.random.choice(known)[0])
        else:
            self.submit()

    def submit(self) -> None:
        self._count += self.random.random() < 0.85  # else the same again, as a client does that lost the answer
        namespace = self.random.choice(NAMESPACES)
        model = f"{self.name}-{self._count}"
        tree = self.fleet.root / "sources" / namespace / model
        tree.mkdir(parents=True, exist_ok=True)
        fake = f"def make(): return {model!r}, {self.random.random()}\n"
        real = REAL_MODEL.format(number=self.random.random())
        (tree / "model.py").write_text(real if self.fleet.pace.real_compiler else fake)
        # Kept as it is: the registry may ask for it once more.
        place = self.fleet.root / "packed" / namespace / f"{model}-{self.random.randrange(1 << 40)}"
        packed = pack_factory(tree, "model:make", into=place)
        spec = a_spec(model, namespace=namespace, profile=self.profile, source=packed.source)
        priority = self.random.choice((0, 0, 5, -10))
        client = self.fleet.client(self.replica())
        reply = submit_spec(client, spec, packed, tags=(Tag("latest"),), priority=priority)
        self.accepted.note(reply.build.id, Reference(f"{namespace}/{model}:latest"))
        # By the first replica, as long as the fleet lives: the same spec, and so the same build.
        self.accepted.again[reply.build.id] = lambda: submit_spec(self.fleet.client(0), spec, packed)
        self.fleet.ledger.saw("submitter: accepted" if reply.created else "submitter: joined")

    def cancel(self, build: str) -> None:
        try:
            self.fleet.client(self.replica()).cancel(build, reason="changed its mind")
        except BuildFinished:
            self.fleet.ledger.saw("submitter: too late to cancel")
            return
        self.accepted.note_cancelled(build)
        self.fleet.ledger.saw("submitter: cancelled")


class Pod(Client):
    """Fetches bundles, and hashes everything that it was handed once more by itself."""

    def __init__(self, name: str, fleet: Fleet, accepted: Accepted, *, seed: int, trusted: TrustedKeys) -> None:
        super().__init__(name, fleet, seed=seed, pause_seconds=0.2)
        self.accepted = accepted
        self.trusted = trusted
        self._count = 0

    def act(self) -> None:
        known = self.accepted.some()
        if not known:
            return
        _, reference = self.random.choice(known)
        self._count += 1
        place = self.fleet.root / self.name / str(self._count)
        try:
            self.fetch(reference, place)
        except NotFound:
            self.fleet.ledger.saw("pod: nothing there yet")
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def fetch(self, reference: Reference, place: Path) -> None:
        stored = fetch_bundle(
            self.fleet.client(self.replica()),
            reference,
            into=place / "bundle",
            cache=LocalCache(place / "cache"),
            trusted=self.trusted,
        )
        for fault in faults_in(stored.directory, stored.digest):
            self.fleet.ledger.violated(f"{self.name} was handed {reference}: {fault}")
        self.fleet.ledger.saw("pod: bundles fetched, verified and hashed again")


def faults_in(directory: Path, digest: Digest) -> list[str]:
    """What is wrong with a bundle on disk, by other code than the product's."""

    def sha256(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    found = []
    if sha256(directory / "manifest.json") != digest.hex:
        found.append("a manifest of another digest")
    blobs = list((directory / "blobs" / "sha256").iterdir())
    found += [f"other bytes for {path.name}" for path in blobs if sha256(path) != path.name]
    return found if blobs else [*found, "no blobs"]


def start_all(clients: list[Client]) -> Callable[[], None]:
    """Start them; the value stops them and waits."""
    for client in clients:
        client.start()

    def stop() -> None:
        for client in clients:
            client.stop()
        for client in clients:
            client.join(60)

    return stop
