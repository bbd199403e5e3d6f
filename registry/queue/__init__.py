"""How a worker hears of a build: one protocol, Celery behind it, a recording one for tests."""

from registry.queue.celery_queue import CeleryQueue
from registry.queue.protocol import Queue
from registry.queue.recording import RecordingQueue

__all__ = ["CeleryQueue", "Queue", "RecordingQueue"]
