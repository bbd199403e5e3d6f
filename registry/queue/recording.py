"""A queue that keeps what it was sent, for tests that drain it themselves."""

from aot.errors import QueueUnavailable
from aot.schema.wire.builds import Ticket


class RecordingQueue:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Ticket]] = []
        self.unavailable = False

    def send(self, queue: str, ticket: Ticket) -> None:
        if self.unavailable:
            raise QueueUnavailable("the queue was told to refuse", hint="set `unavailable` to False")
        self.sent.append((queue, ticket))

    def take(self) -> list[tuple[str, Ticket]]:
        """Everything sent since the last time, oldest first."""
        sent, self.sent = self.sent, []
        return sent
