"""The worker's consumer by itself: what it does between a refusal of the broker and the next attempt."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker import state
from celery.worker.consumer import Consumer

from worker import consumer
from worker.consumer import PatientConsumer


def refused(seconds: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """How many seconds a consumer spends on a broker that refuses it, where it is to wait for `seconds`."""
    monkeypatch.setattr(consumer, "REFUSED_SECONDS", seconds)
    patient: Any = PatientConsumer.__new__(PatientConsumer)
    patient.conninfo = SimpleNamespace(as_uri=lambda: "amqp://broker")
    begun = time.monotonic()
    patient.on_connection_error_before_connected(PermissionError("ACCESS_REFUSED"))
    return time.monotonic() - begun


def test_a_broker_that_refuses_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(0.3, monkeypatch) >= 0.3


def test_a_worker_that_is_told_to_end_meanwhile_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "should_stop", 0)  # as SIGTERM sets it
    with pytest.raises(WorkerShutdown):
        refused(5.0, monkeypatch)


def connected(hub: object, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[dict[str, Any]]]:
    """A consumer's connection, and how it was asked for what is there."""
    asked: list[dict[str, Any]] = []
    connection = SimpleNamespace(drain_events=lambda **options: asked.append(options))
    monkeypatch.setattr(Consumer, "connect", lambda self: connection)
    patient: Any = PatientConsumer.__new__(PatientConsumer)
    patient.hub, patient.connection_errors = hub, (OSError,)
    return patient.connect(), asked


def test_a_broker_that_does_not_call_is_looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, asked = connected(None, monkeypatch)
    connection.drain_events(timeout=2.0)  # as Celery's loop does
    assert asked == [{"timeout": consumer.LOOK_SECONDS}]


def test_and_no_more_once_the_worker_was_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery's loop looks once more on its way out, and what it takes then waits for the sweep."""
    connection, asked = connected(None, monkeypatch)
    monkeypatch.setattr(state, "should_stop", 0)
    with pytest.raises(WorkerShutdown):
        connection.drain_events(timeout=2.0)
    assert asked == []


def test_one_that_calls_is_waited_for_as_celery_does(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, asked = connected(object(), monkeypatch)
    connection.drain_events(timeout=2.0)
    assert asked == [{"timeout": 2.0}]
