"""Messages, settings and the registration: what reaches a worker from outside."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from aot.errors import Conflict, InvalidConfig, Unauthenticated
from aot.schema.codec import encode
from aot.schema.names import Name
from aot.schema.state import BuildState
from aot.schema.wire.builds import Ticket
from aot.schema.wire.workers import Scope
from tests.builders import a_profile, a_spec, a_toolchain
from tests.fake_backend import FakeBackend, a_packed_source
from tests.service import Service, a_service
from tests.transport import client_of
from tests.worker_stand import a_bench
from worker.presence import Presence
from worker.run import Bench
from worker.settings import Settings
from worker.tasks import add_task, look

GIVEN = {"AOT_URL": "http://registry:8750", "AOT_TOKEN": "secret-token"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path / "registry") as service:
        service.register(a_profile())
        yield service


@pytest.fixture
def bench(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("worker.run.build_bundle", FakeBackend().build)
    return a_bench(client_of(service, token=service.token(Scope.CLAIM)), tmp_path)


def submitted(service: Service, tmp_path: Path) -> str:
    return service.submit(a_spec(source=a_packed_source(tmp_path / "source"))).build.id


GARBLED: list[tuple[Any, ...]] = [
    (),
    (None,),
    (5,),
    ("",),
    ("not json",),
    ("[]",),
    ("{}",),
    ('{"build": 5}',),
    ('{"build": "b", "unknown": 1}',),
    ("\ud800",),
    ({"build": "b"},),
]


@pytest.mark.parametrize("args", GARBLED, ids=repr)
def test_a_garbled_message_is_dropped(
    args: tuple[Any, ...], bench: Bench, service: Service, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    build = submitted(service, tmp_path)
    with caplog.at_level(logging.WARNING, "worker"):
        look(args, bench)
    assert caplog.records[-1].message.startswith("bad-message")
    assert service.call("get_build", build=build).state is BuildState.QUEUED


def test_the_task_takes_any_signature(bench: Bench, service: Service, tmp_path: Path) -> None:
    app = Celery("test", set_as_current=False)
    add_task(app, bench)
    task = app.tasks["aot.build"]
    for args, kwargs in (((), {}), ((), {"build": "x"}), ((1, 2, 3), {"a": 1})):
        assert task.apply(args=args, kwargs=kwargs).state == "SUCCESS"
    build = submitted(service, tmp_path)
    assert task.apply(args=(encode(Ticket(build=build)).decode(),)).state == "SUCCESS"
    assert service.call("get_build", build=build).state is BuildState.PUBLISHED


def test_a_message_about_no_build_or_a_finished_one_is_harmless(bench: Bench, service: Service, tmp_path: Path) -> None:
    build = submitted(service, tmp_path)
    for ticket in ("no-such-build", build, build, "../../builds"):
        look((encode(Ticket(build=ticket)).decode(),), bench)
    view = service.call("get_build", build=build)
    assert (view.state, view.attempt) == (BuildState.PUBLISHED, 1)


def test_a_registry_that_is_away_leaves_the_build_to_the_sweeper(
    bench: Bench, service: Service, tmp_path: Path
) -> None:
    build = submitted(service, tmp_path)
    bench.client.transport.gone = True  # type: ignore[attr-defined]
    look((encode(Ticket(build=build)).decode(),), bench)
    bench.client.transport.gone = False  # type: ignore[attr-defined]
    service.clock.advance(61)
    service.queue.take()
    service.sweep()
    assert [ticket.build for _, ticket in service.queue.take()] == [build]


def test_a_claim_that_is_refused_does_not_end_the_worker(
    bench: Bench, service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build = submitted(service, tmp_path)
    unknown = Bench(**{**vars(bench), "client": client_of(service, token="no-such-token")})
    look((encode(Ticket(build=build)).decode(),), unknown)
    assert "claim-refused" in caplog.records[-1].message and "unauthenticated" in caplog.records[-1].message


def test_settings_are_the_clients_and_the_workers_own() -> None:
    settings = Settings.from_environ(
        {
            **GIVEN,
            "HOME": "/home/somebody",
            "AOT_WORKER_NAME": "gpu-1",
            "AOT_PROFILE": "h100",
            "AOT_TRUST_SOURCES": "default, research",
            "AOT_BROKER_URL": "redis://user:password@host/0",
        }
    )
    assert settings == Settings(
        url="http://registry:8750",
        token="secret-token",
        broker_url="redis://user:password@host/0",
        data_dir=Path("/home/somebody/.local/share/aot"),
        name=Name("gpu-1"),
        profile=Name("h100"),
        trust_sources=frozenset({"default", "research"}),
    )
    assert "secret-token" not in repr(settings) and "password" not in repr(settings)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"AOT_URL": ""}, "AOT_URL"),
        ({"AOT_TOKEN": ""}, "AOT_TOKEN"),
        ({"AOT_URL": "registry"}, "AOT_URL"),
        ({"AOT_WORKER_NAME": "Not A Name"}, "AOT_WORKER_NAME"),
        ({"AOT_TRUST_SOURCES": "Not!"}, "AOT_TRUST_SOURCES"),
        ({"AOT_PROFILE": "a/b"}, "AOT_PROFILE"),
    ],
)
def test_a_setting_that_is_missing_or_wrong_is_named(change: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        Settings.from_environ(GIVEN | change)
    assert caught.value.details["variable"] == named


@pytest.mark.parametrize("host", ["Build-Host.example", "-", "größe", "x" * 300])
def test_a_worker_without_a_name_is_called_after_its_host(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    name = Settings.from_environ(GIVEN).name
    assert Name.parse(name) == name
    assert not Settings.from_environ(GIVEN).is_named


def test_a_worker_registers_again_as_often_as_the_registry_says(service: Service) -> None:
    client = client_of(service)
    presence = Presence(client, Name("w"), (a_profile(),))
    assert presence.register().seen_every_seconds == 30
    before = len(client.transport.sent)  # type: ignore[attr-defined]
    presence.keep(every=0.05)
    until = time.monotonic() + 20.0  # what waits for a core may be late
    while len(client.transport.sent) - before < 5 and time.monotonic() < until:  # type: ignore[attr-defined]
        time.sleep(0.02)
    presence.end()
    assert len(client.transport.sent) - before >= 5  # type: ignore[attr-defined]
    time.sleep(0.2)
    after = len(client.transport.sent)  # type: ignore[attr-defined]
    time.sleep(0.2)
    assert len(client.transport.sent) == after  # type: ignore[attr-defined]


def test_a_worker_waits_for_a_registry_at_its_start(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.presence.PAUSE_SECONDS", 0.05)
    client = client_of(service)
    client.transport.gone = True  # type: ignore[attr-defined]
    threading.Timer(0.4, lambda: setattr(client.transport, "gone", False)).start()
    assert Presence(client, Name("w"), (a_profile(),)).register().queues


def test_a_registry_that_forgets_or_goes_away_is_registered_with_again(service: Service) -> None:
    client = client_of(service)
    presence = Presence(client, Name("w"), (a_profile(),))
    presence.keep(every=0.05)
    client.transport.gone = True  # type: ignore[attr-defined]
    time.sleep(0.2)
    client.transport.gone = False  # type: ignore[attr-defined]
    deadline = time.monotonic() + 5
    while "w" not in [worker.name for worker in client.list_workers().workers]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    presence.end()


def test_what_the_registry_refuses_at_the_start_ends_the_worker(service: Service) -> None:
    with pytest.raises(Unauthenticated):
        Presence(client_of(service, token="wrong"), Name("w"), (a_profile(),)).register()


OTHER = a_profile(toolchain=a_toolchain(torch="2.12.0+cpu"))


@dataclass
class Pauses:
    """Time passes at the registry, and not here, while a worker waits. `act` is called at each pause."""

    service: Service
    act: Callable[[int], None] = lambda number: None
    count: int = 0

    def sleep(self, seconds: float) -> None:
        self.count += 1
        self.service.clock.advance(10)
        self.act(self.count)
        assert self.count < 1000


@pytest.fixture
def pauses(service: Service, monkeypatch: pytest.MonkeyPatch) -> Pauses:
    pauses = Pauses(service)
    monkeypatch.setattr(
        "worker.presence.time", SimpleNamespace(sleep=pauses.sleep, monotonic=lambda: pauses.count * 10.0)
    )
    return pauses


def test_a_profile_of_a_worker_that_was_killed_is_had_once_it_is_forgotten(
    service: Service, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    assert Presence(client_of(service), Name("w"), (OTHER,)).register().queues
    assert pauses.count == 10  # 90 seconds after it was last seen
    (told,) = [record.getMessage() for record in caplog.records if "profile-held" in record.getMessage()]
    assert "last_seen=worker-1:" in told and "held by worker-1 with torch" in told
    assert "forgotten 90 seconds after it was last seen" in told


def test_a_profile_of_a_worker_that_lives_ends_the_other_as_soon_as_that_is_seen(
    service: Service, pauses: Pauses
) -> None:
    def register(number: int) -> None:
        if number % 3 == 0:
            service.register(a_profile(), worker="worker-1")

    pauses.act = register
    with pytest.raises(Conflict, match="worker-1"):
        Presence(client_of(service), Name("w"), (OTHER,)).register()
    assert pauses.count == 3


def test_the_token_of_a_worker_may_not_list_workers_and_need_not(service: Service, pauses: Pauses) -> None:
    client = client_of(service, token=service.token(Scope.CLAIM))

    def register(number: int) -> None:
        if number == 3:
            service.register(a_profile(), worker="worker-1")

    pauses.act = register
    with pytest.raises(Conflict, match="worker-1"):
        Presence(client, Name("w"), (OTHER,)).register()
    assert pauses.count == 3
    pauses.act = lambda number: None
    assert Presence(client, Name("w"), (OTHER,)).register().queues


def test_a_registry_of_before_tells_such_a_token_nothing_and_is_waited_for(
    service: Service, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = property(lambda self: {"workers": ["worker-1"]}, lambda self, told: None)
    monkeypatch.setattr(Conflict, "details", old, raising=False)
    client = client_of(service, token=service.token(Scope.CLAIM))
    assert Presence(client, Name("w"), (OTHER,)).register().queues


def test_a_registry_that_goes_away_meanwhile_says_nothing_of_a_worker(service: Service, pauses: Pauses) -> None:
    client = client_of(service)

    def away(number: int) -> None:
        client.transport.gone = 2 <= number < 5  # type: ignore[attr-defined]

    pauses.act = away
    assert Presence(client, Name("w"), (OTHER,)).register().queues


def test_nobody_waits_for_ever(service: Service, pauses: Pauses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses.service.clock, "advance", lambda seconds: None)
    with pytest.raises(Conflict, match="worker-1"):
        Presence(client_of(service), Name("w"), (OTHER,)).register()
    assert 30 <= pauses.count <= 32  # PATIENCE_SECONDS


def test_a_worker_that_was_restarted_under_its_name_is_had_at_once(service: Service, pauses: Pauses) -> None:
    assert Presence(client_of(service), Name("worker-1"), (OTHER,)).register().queues
    assert pauses.count == 0
