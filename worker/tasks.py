"""The one Celery task. A message only says "look at build N": lost, late, duplicate and garbled ones are harmless."""

import logging
from typing import Any

from celery import Celery

from aot.broker import BUILD_TASK
from aot.errors import AotError, Unavailable
from aot.schema.codec import decode
from aot.schema.wire.builds import Ticket
from worker.run import Bench, run_build

log = logging.getLogger("worker")


def add_task(app: Celery, bench: Bench) -> None:
    """Register the task on `app`, working at `bench`."""

    @app.task(name=BUILD_TASK, ignore_result=True, typing=False)
    def build(*args: Any, **kwargs: Any) -> None:
        # Any signature is accepted: an exception before this line would be Celery's to handle, and a message
        # that cannot be read must not come back for ever.
        look(args, bench)


def look(args: tuple[Any, ...], bench: Bench) -> None:
    """Act on one message. Never raises for what a message, a build or the registry can do."""
    try:
        ticket = decode(args[0], Ticket, what="ticket")
    except (AotError, LookupError, TypeError, ValueError) as error:
        log.warning("bad-message error=%s", error)
        return
    try:
        run_build(bench)
    except Unavailable as error:
        # Nothing was claimed; the sweeper sends the ticket again.
        log.warning("registry-away build=%s error=%s", ticket.build, error.message)
    except AotError as error:
        log.error("claim-refused build=%s code=%s error=%s", ticket.build, error.code, error.message)
    except Exception:
        log.exception("fault build=%s", ticket.build)
