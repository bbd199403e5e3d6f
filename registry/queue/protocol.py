"""The seam between the registry and the broker. Called after the commit, never before."""

from typing import Protocol

from aot.schema.wire.builds import Ticket


class Queue(Protocol):
    def send(self, queue: str, ticket: Ticket) -> None:
        """Tell the workers of `queue` to look at a build. Returns soon, whatever the broker does.

        Raises QueueUnavailable: the build is not lost by it, the sweeper sends its ticket again.
        """
