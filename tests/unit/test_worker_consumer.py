"""The worker's consumer by itself: what it does between a refusal of the broker and the next attempt."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker import state

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
