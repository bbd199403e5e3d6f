"""RabbitMQ as the broker: tickets, late ack and prefetch, `check`, and whole processes while it hangs or dies.

Its heartbeat is a second, and where a test says so its patience with consumers too (`tests.rabbitmq`): what comes after
minutes or half an hour elsewhere comes soon.
"""

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery

from aot.broker import BUILD_TASK, celery_settings
from aot.errors import QueueUnavailable
from aot.pipeline import submit_spec
from aot.schema.state import BuildState
from aot.schema.wire.builds import BuildView, Ticket
from registry.queue import CeleryQueue, celery_queue
from registry.services import check, check_broker
from registry.services.check import Finding, Verdict
from registry.settings import Settings
from tests.deployment import Deployment, end_softly, kill_hard, require_given_back, wait_for
from tests.rabbitmq import RabbitMQ
from tests.unit.test_broker import QUEUE, taken, until, workers
from tests.unit.test_queue import Consumer, require_two_alone
from worker.consumer import REFUSED_SECONDS

CUT_OFF = "has timed out waiting for delivery acknowledgement"


@pytest.fixture
def queue(rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[CeleryQueue]:
    queue = CeleryQueue(rabbitmq.url, data_dir=tmp_path)
    yield queue
    queue.close()


# Tickets


@pytest.mark.parametrize("first", ["registry", "worker"])
def test_a_ticket_arrives_whoever_declares_its_queue_first(
    rabbitmq: RabbitMQ, queue: CeleryQueue, tmp_path: Path, first: str
) -> None:
    name = f"{QUEUE}.{first}"
    consumer = Consumer(rabbitmq.url, tmp_path, queue=name) if first == "worker" else None
    queue.send("build.other", Ticket(build="0"))
    queue.send(name, Ticket(build="1"))
    queue.send(name, Ticket(build="2"))
    consumer = consumer or Consumer(rabbitmq.url, tmp_path, queue=name)
    require_two_alone(consumer)


def test_a_worker_sends_no_heartbeats_and_has_the_kernel_look_after_its_connection(
    rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    app = Celery("worker", set_as_current=False)
    app.conf.update(celery_settings(rabbitmq.url, data_dir=tmp_path))
    with app.connection_for_read(heartbeat=app.conf.broker_heartbeat) as connection:
        assert (connection.connection.server_heartbeat, connection.connection.heartbeat) == (1, 0)
        sock = connection.connection.sock
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 120


def test_a_broker_that_hangs_is_named_soon_and_is_the_same_afterwards(
    rabbitmq: RabbitMQ, queue: CeleryQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery_queue, "ANSWER_SECONDS", 0.5)
    hasty, name = CeleryQueue(rabbitmq.url, data_dir=tmp_path), f"{QUEUE}.hangs"
    hasty.send(name, Ticket(build="1"))
    with rabbitmq.hanging():
        begun = time.monotonic()
        with pytest.raises(QueueUnavailable, match="build 2"):
            hasty.send(name, Ticket(build="2"))
        assert time.monotonic() - begun < 5
    hasty.send(name, Ticket(build="3"))
    consumer = Consumer(rabbitmq.url, tmp_path, queue=name)
    assert [consumer.take()["ticket"].build for _ in range(3)] == ["1", "2", "3"], "it was in the kernel's hands"
    consumer.close()
    hasty.close()


def test_tls_is_for_a_trusted_certificate_of_the_name_in_the_url_alone(
    rabbitmq: RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(host: str) -> None:
        queue = CeleryQueue(rabbitmq.url_with(scheme="amqps", host=host), data_dir=tmp_path)
        try:
            queue.send(f"{QUEUE}.tls", Ticket(build="1"))
        finally:
            queue.close()

    with pytest.raises(QueueUnavailable, match="self-signed certificate"):
        send("localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(rabbitmq.authority))
    with pytest.raises(QueueUnavailable, match="IP address mismatch"):
        send("127.0.0.1")
    send("localhost")
    consumer = Consumer(rabbitmq.url_with(scheme="amqps", host="localhost"), tmp_path, queue=f"{QUEUE}.tls")
    assert consumer.take()["ticket"] == Ticket(build="1")
    consumer.close()


# One worker and the next


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    with workers(tmp_path) as begin:
        yield begin


def test_a_busy_worker_keeps_its_message_for_longer_than_heartbeats_and_a_killed_one_leaves_it(
    rabbitmq: RabbitMQ,
    queue: CeleryQueue,
    start: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(rabbitmq.authority))
    name, (tls, plain) = f"{QUEUE}.busy", (rabbitmq.url_with(scheme="amqps", host="localhost"), rabbitmq.url)
    (tmp_path / "hold").touch()
    queue.send(name, Ticket(build="1"))
    queue.send(name, Ticket(build="2"))
    first = start("first", tls, name)
    until(lambda: taken(tmp_path) == ["first 1"])
    start("second", plain, name)
    until(lambda: taken(tmp_path) == ["first 1", "second 2"])
    time.sleep(3)  # the broker's heartbeat is a second, and two that are missed end a connection
    assert counts(rabbitmq, name) == {"ready": 0, "unacknowledged": 2, "consumers": 2}

    first.send_signal(signal.SIGKILL)
    first.wait(10)
    until(lambda: counts(rabbitmq, name) == {"ready": 1, "unacknowledged": 1, "consumers": 1})
    (tmp_path / "hold").unlink()
    until(lambda: taken(tmp_path) == ["first 1", "second 2", "second 1"])
    until(lambda: counts(rabbitmq, name) == {"ready": 0, "unacknowledged": 0, "consumers": 1})


def test_a_worker_that_is_cut_off_with_the_message_that_it_found_at_its_start_listens_again(
    rabbitmq: RabbitMQ, queue: CeleryQueue, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    name, told = f"{QUEUE}.found", rabbitmq.log.read_text().count(CUT_OFF)
    (tmp_path / "hold").touch()
    queue.send(name, Ticket(build="1"))
    with rabbitmq.consumer_timeout(1):
        start("worker", rabbitmq.url, name)
        until(lambda: rabbitmq.log.read_text().count(CUT_OFF) > told)
        (tmp_path / "hold").unlink()
        until(lambda: taken(tmp_path).count("worker 1") > 1)
    queue.send(name, Ticket(build="2"))
    until(lambda: "worker 2" in taken(tmp_path))


def test_a_worker_that_is_refused_asks_now_and_then_and_works_once_it_is_let_in(
    rabbitmq: RabbitMQ, queue: CeleryQueue, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    name, log = f"{QUEUE}.refused", tmp_path / "worker.log"
    queue.send(name, Ticket(build="1"))
    worker = start("worker", rabbitmq.url.replace("//aot:", "//newcomer:"), name)
    begun = time.monotonic()
    until(lambda: "ACCESS_REFUSED" in log.read_text())
    time.sleep(1)
    asked, seconds = log.read_text().count("Cannot connect"), time.monotonic() - begun
    assert 1 <= asked <= 1 + seconds / REFUSED_SECONDS and worker.poll() is None
    rabbitmq.call("rabbit_auth_backend_internal", "add_user", '[<<"newcomer">>, <<"p@ss/w:rd">>, <<"tests">>]')
    rights = '[<<"newcomer">>, <<"team/builds">>, <<".*">>, <<".*">>, <<".*">>, <<"tests">>]'
    rabbitmq.call("rabbit_auth_backend_internal", "set_permissions", rights)
    until(lambda: taken(tmp_path) == ["worker 1"])


def counts(node: RabbitMQ, queue: str) -> dict[str, int]:
    """What the broker says of its queue of this name."""
    kinds = ("ready", "unacknowledged")
    wanted = "[name, messages_ready, messages_unacknowledged, consumers]"
    vhost = '<<"team/builds">>'
    said = node.call("rabbit_amqqueue", "info_all", f"[{vhost}, {wanted}]")
    [row] = [row for row in said.split("[{name,") if f'<<"{queue}">>' in row]
    found = {kind: int(row.split(f"{{messages_{kind},")[1].split("}")[0]) for kind in kinds}
    return found | {"consumers": int(row.split("{consumers,")[1].split("}")[0])}


# check


def findings(tmp_path: Path, url: str) -> dict[str, Finding]:
    settings = Settings.from_environ({"AOT_DATA_DIR": str(tmp_path), "AOT_BROKER_URL": url})
    return {finding.name: finding for finding in check._guarded("broker", check._broker, settings, check.utc_now)}


def test_check_finds_a_good_broker_good_and_leaves_nothing_there(
    rabbitmq: RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings(tmp_path, rabbitmq.url)
    assert found["broker"].verdict is Verdict.OK and "p%40ss" not in found["broker"].found, found
    assert found["broker visibility"].verdict is Verdict.WEAK and "consumer_timeout" in found["broker visibility"].hint
    monkeypatch.setenv("SSL_CERT_FILE", str(rabbitmq.authority))
    assert findings(tmp_path, rabbitmq.url_with(scheme="amqps", host="localhost"))["broker"].verdict is Verdict.OK
    left = rabbitmq.call("rabbit_exchange", "list") + rabbitmq.call("rabbit_amqqueue", "list")
    assert "amq.direct" in left and "aot.check" not in left


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"password": "secret"}, "ACCESS_REFUSED"),
        ({"vhost": "elsewhere"}, "NOT_ALLOWED"),
        ({"scheme": "amqps", "host": "localhost"}, "certificate"),
    ],
    ids=["password", "virtual host", "certificate"],
)
def test_check_says_what_a_broker_refuses(
    rabbitmq: RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str], said: str
) -> None:
    finding = findings(tmp_path, rabbitmq.url_with(**wrong))["broker"]
    assert finding.verdict is Verdict.WRONG and said in finding.found and "AOT_BROKER_URL" in finding.hint, finding
    assert "secret" not in finding.found
    assert ("refused" in finding.found) is (said != "certificate")


def test_check_names_a_right_that_the_user_lacks(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    def allow(configure: str) -> None:
        rights = f'[<<"aot">>, <<"team/builds">>, <<"{configure}">>, <<".*">>, <<".*">>, <<"tests">>]'
        rabbitmq.call("rabbit_auth_backend_internal", "set_permissions", rights)

    allow("^build")
    try:
        finding = findings(tmp_path, rabbitmq.url)["broker"]
    finally:
        allow(".*")
    assert finding.verdict is Verdict.WRONG and "aot.check" in finding.found and "configure" in finding.hint, finding


@pytest.mark.parametrize("url", ["amqp://u:secret@127.0.0.1:9/v", "amqps://u:secret@127.0.0.1:9/v"])
def test_check_says_that_nobody_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(check_broker, "WAIT_SECONDS", 0.5)
    finding = findings(tmp_path, url)["broker"]
    assert finding.verdict is Verdict.WRONG and "did not answer" in finding.found and "127.0.0.1" in finding.found
    assert "secret" not in finding.found


# Processes


@pytest.fixture(scope="module")
def place(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Registry and workers on a broker that leaves a message with its consumer for a second."""
    folder = tmp_path_factory.mktemp("place")
    with rabbitmq.consumer_timeout(1), Deployment(folder, lease_seconds=2, broker_url=rabbitmq.url) as place:
        yield place
        for log in folder.glob("*.log"):
            assert "inequivalent arg" not in log.read_text(), "registry and worker declare the same queue alike"


@pytest.fixture(scope="module")
def crew(place: Deployment) -> Callable[[int], list[subprocess.Popen[bytes]]]:
    """So many living workers and no more. They cost seconds to start: a test goes on with those that others left."""
    started: list[subprocess.Popen[bytes]] = []

    def of(number: int) -> list[subprocess.Popen[bytes]]:
        alive = [worker for worker in started if worker.poll() is None]
        for worker in alive[number:]:
            end_softly(worker)
        while len(alive) < number:
            alive.append(place.start_worker(f"w{len(started)}"))
            started.append(alive[-1])
        return alive[:number]

    return of


Crew = Callable[[int], list[subprocess.Popen[bytes]]]


def published(place: Deployment, build: BuildView, *, attempts: int) -> None:
    view = place.wait_for_state(build.id, BuildState.PUBLISHED, seconds=60)
    assert (view.attempt, place.bundles(build.name)) == (attempts, 1)


def builder_of(place: Deployment, build: BuildView) -> int:
    wait_for(lambda: place.reached(build.id), what="the build")
    return place.reached(build.id)[0][0]


def test_builds_are_published_the_interactive_one_first(place: Deployment, crew: Crew) -> None:
    [worker] = crew(1)
    with place.hold("compiling"):
        first = place.submit("first")
        place.wait_for_phase(first.id, "compiling", pid=worker.pid)
        bulk = submit_spec(place.client, *place.spec("bulk"), priority=-10).build
        interactive = place.submit("interactive")
    for build in (first, bulk, interactive):
        published(place, build, attempts=1)
    rows = [line.split() for line in (place.steering / "reached").read_text().splitlines()]
    assert [build for _, phase, build in rows if phase == "compiling"] == [first.id, interactive.id, bulk.id]


def put_garbage(queue: str, url: str, tmp_path: Path) -> None:
    """Messages that no sender of ours would write, in the queue of this name."""
    app = Celery("garbage", set_as_current=False)
    app.conf.update(celery_settings(url, data_dir=tmp_path))
    ours = {"task": BUILD_TASK, "id": "1"}
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        for body, kind, headers in (
            (b"not json {", "application/json", ours),
            (b"\xff\xfe\x00", "application/json", ours),
            (b"5", "application/json", {}),
            (b"[[5, 6], {}, {}]", "application/json", ours),
            (b"{}", "application/json", {"task": "os.system", "id": "1"}),
            (b"cos\nsystem\n", "application/x-python-serialize", ours),
            (b"", "", {}),
        ):
            message = channel.prepare_message(body, content_type=kind, content_encoding="utf-8", headers=headers)
            channel.basic_publish(message, exchange="", routing_key=queue)


# The broker says it again until it is heard. Answered as often, it ends the connection instead of the channel.
@pytest.mark.parametrize("longer", [0.0, 1.2], ids=["once", "several times"])
def test_a_consumer_that_is_cut_off_during_a_long_build_connects_anew_and_nothing_is_built_twice(
    rabbitmq: RabbitMQ, place: Deployment, crew: Crew, longer: float
) -> None:
    workers = crew(2)
    told = rabbitmq.log.read_text().count(CUT_OFF)
    with place.hold("compiling"):
        build = place.submit(f"long-{longer}")
        pid = builder_of(place, build)
        wait_for(lambda: rabbitmq.log.read_text().count(CUT_OFF) > told, what="the end of the broker's patience")
        time.sleep(longer)
    published(place, build, attempts=1)
    assert {pid for pid, _ in place.reached(build.id)} == {pid}, "the message came again, and nobody built again"
    [builder] = [worker for worker in workers if worker.pid == pid]
    name = place.name_of(builder)
    wait_for(lambda: "Connection to broker lost" in place.log_of(name), what="a new connection")
    assert builder.poll() is None


def test_garbage_in_the_queue_does_not_end_the_consumer(
    rabbitmq: RabbitMQ, place: Deployment, crew: Crew, tmp_path: Path
) -> None:
    [worker] = crew(1)
    for queue in place.log_of(place.name_of(worker)).split("queues=")[1].split()[0].split(","):
        put_garbage(queue, rabbitmq.url, tmp_path)
    published(place, place.submit("after-garbage"), attempts=1)
    assert worker.poll() is None


def test_a_worker_killed_during_a_build_is_followed_by_another(place: Deployment, crew: Crew) -> None:
    workers = crew(2)
    with place.hold("compiling"):
        build = place.submit("orphan")
        pid = builder_of(place, build)
        [victim], [heir] = ([one for one in workers if (one.pid == pid) is killed] for killed in (True, False))
        kill_hard(victim)
    published(place, build, attempts=2)
    assert (heir.pid, "publishing") in place.reached(build.id)


def test_a_broker_that_is_killed_and_comes_back_with_nothing_loses_no_build(
    rabbitmq: RabbitMQ, place: Deployment, crew: Crew, queue: CeleryQueue, tmp_path: Path
) -> None:
    [worker] = crew(1)
    queue.send(f"{QUEUE}.lost", Ticket(build="0"))
    with place.hold("compiling"):
        build = place.submit("during")
        place.wait_for_phase(build.id, "compiling", pid=worker.pid)
        waiting = place.submit("waiting")
        rabbitmq.kill()
        unsent = place.submit("while-it-is-away")
    rabbitmq.start()
    rabbitmq.wait()
    # The same sender, whose connection was the dead broker's: it connects anew, and declares the queue again.
    queue.send(f"{QUEUE}.lost", Ticket(build="1"))
    consumer = Consumer(rabbitmq.url, tmp_path, queue=f"{QUEUE}.lost")
    assert consumer.take()["ticket"] == Ticket(build="1")
    consumer.close()
    for view in (build, waiting, unsent):
        published(place, view, attempts=1)
    assert worker.poll() is None
    require_given_back(place, worker)
