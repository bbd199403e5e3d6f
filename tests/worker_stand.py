"""A worker at its bench, a registry, and one build: what tests of `run_build` begin with."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aot.client import RegistryClient
from aot.client.refusals import through
from aot.errors import AotError
from aot.schema.digest import Digest
from aot.schema.names import Name, Tag
from aot.schema.wire.blobs import Link
from aot.schema.wire.builds import BuildView, CancelRequest
from aot.schema.wire.workers import Scope
from tests.builders import a_profile, a_spec, altered
from tests.fake_backend import FakeBackend, Work, a_packed_source
from tests.service import Service, a_service
from tests.transport import AppTransport, client_of
from worker.run import Bench, Ended, run_build


@dataclass
class Stand:
    """A worker at its bench, a registry, and one submitted build."""

    service: Service
    bench: Bench
    transport: AppTransport
    backend: FakeBackend
    build: str
    spec: Any

    def run(self, act: Callable[[Work], None] = lambda work: None) -> Ended:
        self.backend.act = act
        return run_build(self.bench)

    def view(self) -> BuildView:
        return self.service.call("get_build", build=self.build)

    def cancel(self) -> None:
        self.service.call("cancel", CancelRequest(reason="changed my mind"), build=self.build)

    def away(self, seconds: float) -> None:
        """The registry cannot be reached for a while."""
        self.transport.gone = True
        threading.Timer(seconds, lambda: setattr(self.transport, "gone", False)).start()

    def leads_to_bytes(self, url: str) -> bool:
        """Whether it is a link, of the registry's own store or of another."""
        return "/blobs/" in url or self.service.http.leads_away(url)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    backend = FakeBackend()
    monkeypatch.setattr("worker.run.build_bundle", backend.build)
    with a_service(tmp_path / "registry") as service:
        service.register(a_profile())
        client = client_of(service, token=service.token(Scope.CLAIM))
        assert isinstance(client.transport, AppTransport)
        bench = a_bench(client, tmp_path)
        spec = a_spec(source=a_packed_source(tmp_path / "source"))
        build = service.submit(spec, tags=(Tag("latest"),)).build.id
        yield Stand(service, bench, client.transport, backend, build, spec)


def a_bench(client: RegistryClient, directory: Path) -> Bench:
    return Bench(
        name=Name("worker-1"),
        client=client,
        profiles=(a_profile(),),
        scratch=directory / "scratch",
        shared_caches=directory / "toolchain",
        sandbox=None,
        trust_sources=frozenset({"default"}),
        stopping=threading.Event(),
    )


def of_link(error: AotError) -> AotError:
    """The same as the client raises it where a link led to it."""
    link = Link(digest=Digest.of(b"source"), size_bytes=6, url="http://store/source", method="GET")
    with contextlib.suppress(type(error)), through(link):
        raise error
    return error


def fail_with(error: BaseException) -> Callable[[Work], None]:
    def act(work: Work) -> None:
        raise error

    return act


def shorten_lease(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a second, as the worker counts it."""
    claim = stand.bench.client.claim

    def short(*args: Any, **options: Any) -> Any:
        reply = claim(*args, **options)
        return altered(reply, claim=altered(reply.claim, lease_seconds=1.0))

    monkeypatch.setattr(stand.bench.client, "claim", short)


def next_turn(stand: Stand) -> None:
    stand.service.clock.advance(61)  # a worker is not handed what it gave back just now
    stand.service.register(a_profile())
