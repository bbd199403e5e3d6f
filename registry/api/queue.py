"""Tickets leave after the commit; one that cannot be sent is not an error of the request."""

import structlog

from aot.errors import QueueUnavailable
from aot.schema.wire.builds import Ticket
from registry.deps import Deps

log = structlog.get_logger()


def send(ticket: Ticket | None, queue: str, deps: Deps) -> None:
    """Tell the workers, where there is something to tell. The build is committed: the sweeper sends again."""
    if ticket is None:
        return
    try:
        deps.queue.send(queue, ticket)
    except QueueUnavailable as error:
        log.warning("ticket-not-sent", build=ticket.build, queue=queue, reason=error.message)
