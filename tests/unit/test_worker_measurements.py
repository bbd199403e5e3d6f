"""Two workers of one profile: what the first has measured, the second does not measure again."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from aot.bundle.hashing import blob_of
from aot.compile.tuned import MOST_BYTES, Measured, TuningStore
from aot.errors import RegistryUnreachable
from aot.pipeline import Question, Staged
from aot.pipeline.measurements import upload_measurements
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.names import Name
from aot.schema.recipe import Mode, Recipe
from aot.schema.spec import FactorySource
from aot.schema.state import BuildState
from aot.schema.wire.builds import BuildLog
from aot.schema.wire.workers import Scope
from aot.source import OpenedSource
from registry.db.models import BlobRow
from tests.builders import a_manifest, a_profile, a_spec
from tests.fake_backend import FakeBackend, a_packed_source, stage
from tests.service import Service, a_service
from tests.transport import client_of
from worker.run import Bench, Ended, run_build

CPU = a_profile()


@dataclass
class TuningBackend(FakeBackend):
    """Tunes products by name: measures those that the store does not know, and keeps them as a compile does."""

    products: tuple[str, ...] = ()
    measured: list[tuple[str, ...]] = field(default_factory=list)

    def build(self, question: Question, source: OpenedSource, *, scratch: Path, **options: Any) -> Staged:
        staged = super().build(question, source, scratch=scratch, **options)
        store = TuningStore(options["shared_caches"], question.profile, question.spec.namespace)
        known = store.read()
        new = tuple(name for name in self.products if name not in known.timings.get("mm", {}))
        self.measured.append(new)
        left = known.joined(Measured(timings={"mm": {name: {"highest": {"aten": 0.5}} for name in new}}))
        path = scratch / "tuning.json"
        path.write_bytes(encode(store.add(encode(left))))
        return replace(staged, measured=path)


@dataclass
class Stand:
    service: Service
    directory: Path
    source: FactorySource
    backend: TuningBackend
    built: int = 0

    def build(self, worker: str, *products: str, namespace: str = "default", mode: Mode = Mode.MAX_AUTOTUNE) -> str:
        """Submit a model of its own and build it on `worker`, whose disk is its own; return the build."""
        self.built += 1
        self.backend.products = products
        self.service.register(CPU, worker=worker)
        self.service.clock.advance(1)
        name = f"model-{self.built}"
        spec = a_spec(name, namespace=namespace, source=self.source, recipe=Recipe(mode=mode))
        build: str = self.service.submit(spec).build.id
        bench = Bench(
            name=Name(worker),
            client=client_of(self.service, token=self.service.token(Scope.CLAIM)),
            profiles=(CPU,),
            scratch=self.directory / worker / "scratch",
            shared_caches=self.directory / worker / "toolchain",
            sandbox=None,
            trust_sources=frozenset({"default", "others"}),
            stopping=threading.Event(),
        )
        assert run_build(bench) is Ended.PUBLISHED
        return build

    def log(self, build: str) -> str:
        log: BuildLog = self.service.call("get_build_log", build=build)
        return "\n".join(line.text for line in log.lines)

    def tamper(self, content: bytes) -> None:
        """Write over what the registry keeps of what was measured."""
        with self.service.deps.sessions.reading() as session:
            digests = session.scalars(select(BlobRow.digest)).all()
        (measured,) = [digest for digest in digests if self.bytes_of(digest).startswith(b'{"timings"')]
        self.service.overwrite(measured, content)

    def bytes_of(self, digest: Digest) -> bytes:
        with self.service.deps.store.open(digest) as stream:
            return stream.read()


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    backend = TuningBackend()
    monkeypatch.setattr("worker.run.build_bundle", backend.build)
    with a_service(tmp_path / "registry") as service:
        yield Stand(service, tmp_path, a_packed_source(tmp_path / "source"), backend)


def test_a_second_worker_measures_only_what_the_first_has_not(stand: Stand) -> None:
    stand.build("worker-1", "64x64", "128x64")
    build = stand.build("worker-2", "64x64", "128x64", "96x64")
    assert stand.backend.measured == [("64x64", "128x64"), ("96x64",)]
    assert "tuning begins with 2 measurements from the registry" in stand.log(build)


def test_what_a_second_worker_adds_reaches_the_first_and_a_third(stand: Stand) -> None:
    stand.build("worker-1", "64x64")
    stand.build("worker-2", "96x64")
    stand.build("worker-1", "96x64")
    stand.build("worker-3", "64x64", "96x64")
    assert stand.backend.measured == [("64x64",), ("96x64",), (), ()]


def test_another_namespace_measures_for_itself(stand: Stand) -> None:
    stand.build("worker-1", "64x64")
    stand.build("worker-2", "64x64", namespace="others")
    assert stand.backend.measured == [("64x64",), ("64x64",)]


@pytest.mark.embedded("the next upload writes over what is there; elsewhere the registry takes it out first")
@pytest.mark.parametrize(
    "content", [b'{"timings": {"mm": 3}}', b"x" * 40, b""], ids=["other bytes", "garbage", "nothing"]
)
def test_measurements_that_were_tampered_with_are_not_used(stand: Stand, content: bytes) -> None:
    stand.build("worker-1", "64x64")
    stand.tamper(content)
    build = stand.build("worker-2", "64x64")
    assert stand.backend.measured[1] == ("64x64",)
    assert "tuning begins afresh" in stand.log(build)
    assert stand.service.call("get_build", build=build).state is BuildState.PUBLISHED


def test_what_a_child_left_and_no_reader_takes_is_not_seeded(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the right digest, from a worker that does not look at what it publishes."""

    def careless(question: Question, source: OpenedSource, *, scratch: Path, **options: Any) -> Staged:
        staged = stage(question, scratch)
        path = scratch / "tuning.json"
        path.write_bytes(b'{"configurations": {"../../etc/x.best_config": "{}"}}')
        return replace(staged, measured=path)

    with monkeypatch.context() as patch:
        patch.setattr("worker.run.build_bundle", careless)
        stand.build("worker-1", "64x64")
    build = stand.build("worker-2", "64x64")
    assert "could not be used: a configuration lies at" in stand.log(build)
    assert stand.backend.measured == [("64x64",)]


def test_a_build_goes_on_where_measurements_cannot_be_had(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise RegistryUnreachable("the store answered nothing")

    stand.build("worker-1", "64x64")
    monkeypatch.setattr("aot.pipeline.measurements.download", gone)
    build = stand.build("worker-2", "64x64")
    assert stand.backend.measured[1] == ("64x64",)
    assert "could not be used: the store answered nothing" in stand.log(build)


def test_a_bundle_is_published_without_measurements_that_cannot_be_sent(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.pipeline.measurements.blob_of", lambda path: (_ for _ in ()).throw(OSError("bad sector")))
    stand.build("worker-1", "64x64")
    monkeypatch.setattr("aot.pipeline.measurements.blob_of", blob_of)
    build = stand.build("worker-2", "64x64")
    assert stand.backend.measured == [("64x64",), ("64x64",)]
    assert "registry" not in stand.log(build)


@pytest.mark.parametrize("size_bytes", [0, MOST_BYTES + 1])
def test_measurements_that_the_registry_would_refuse_are_not_sent(
    stand: Stand, tmp_path: Path, size_bytes: int
) -> None:
    """It would refuse the proven bundle with them."""
    path = tmp_path / "tuning.json"
    with path.open("wb") as file:
        file.truncate(size_bytes)
    told: list[Any] = []
    staged = SimpleNamespace(measured=path, manifest=a_manifest())
    client: Any = client_of(stand.service, token=stand.service.token(Scope.CLAIM))
    assert upload_measurements(client, staged, on_event=told.append) is None  # type: ignore[arg-type]
    [event] = told
    assert f"measurements of {size_bytes} bytes" in event["line"]


def test_a_registry_that_keeps_no_measurements_is_sent_none(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one refuses a request with a field that it does not know."""
    from aot.client import RegistryClient

    sent: list[Any] = []
    publish, claim = RegistryClient.publish, RegistryClient.claim

    def older(self: RegistryClient, *args: Any, **options: Any) -> Any:
        reply = claim(self, *args, **options)
        return replace_claim(reply)

    def noted(self: RegistryClient, build: str, manifest: str, *, measurements: Any = None) -> Any:
        sent.append(measurements)
        return publish(self, build, manifest, measurements=measurements)

    monkeypatch.setattr(RegistryClient, "claim", older)
    monkeypatch.setattr(RegistryClient, "publish", noted)
    stand.build("worker-1", "64x64")
    assert sent == [None]


def replace_claim(reply: Any) -> Any:
    from msgspec.structs import replace as changed

    return changed(reply, claim=changed(reply.claim, keeps_measurements=False))
