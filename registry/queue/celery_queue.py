"""The Celery producer. It knows no task: it sends a name, a queue and a ticket."""

from pathlib import Path
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from aot.broker import BUILD_TASK, celery_settings, folders_of, is_amqp, make_folders, sure_publishing
from aot.errors import QueueUnavailable
from aot.schema.codec import encode
from aot.schema.wire.builds import Ticket

# Long enough for a broker on the other side of a region, short enough for a request that waits for it.
SEND_SECONDS = 5.0
# The same for each answer of RabbitMQ: one that hangs costs three of these, two of them to take leave.
ANSWER_SECONDS = 3.0


class CeleryQueue:
    """Sends tickets to the broker at `broker_url`; empty: the embedded queue in `data_dir`. Safe between threads."""

    def __init__(self, broker_url: str, *, data_dir: Path) -> None:
        settings = celery_settings(broker_url, data_dir=data_dir)
        make_folders(settings)
        self._embedded = bool(folders_of(settings))
        self._app = Celery("aot-registry", set_as_current=False)
        self._app.conf.update(_for_sending(settings, embedded=self._embedded))
        self._may_be_stale = is_amqp(settings)  # Redis' client notices by itself

    def send(self, queue: str, ticket: Ticket) -> None:
        try:
            try:
                self._send(queue, ticket)
            except OperationalError as error:
                # A connection that was kept, maybe, of a broker that was restarted since. What has timed out, on the
                # other hand, would last as long again.
                if not self._may_be_stale or isinstance(error.__cause__, TimeoutError):
                    raise
                self._send(queue, ticket)
        except Exception as error:
            # Every transport has errors of its own, and kombu does not wrap all of them.
            raise QueueUnavailable(
                f"could not send build {ticket.build} to {queue}: {error}",
                hint="check AOT_BROKER_URL and the broker; the sweeper sends it again",
            ) from error

    def close(self) -> None:
        self._app.close()

    def _send(self, queue: str, ticket: Ticket) -> None:
        options: dict[str, Any] = {"retry": False, "ignore_result": True, "confirm_timeout": ANSWER_SECONDS}
        if self._embedded:
            # Files need no declaration: they carry the queue's name. Other brokers drop what has no queue yet.
            options["declare"] = []
        self._app.send_task(BUILD_TASK, args=[encode(ticket).decode()], queue=queue, **options)


def _for_sending(settings: dict[str, Any], *, embedded: bool) -> dict[str, Any]:
    if embedded:
        # A transport of our own class instead of the URL's.
        return {**settings, "broker_url": "localhost", "broker_transport": "registry.queue.files:Transport"}
    options = settings["broker_transport_options"]
    if is_amqp(settings):
        once = {"max_retries": settings["broker_url"].count(";")}  # each address once
        return {**settings, "broker_transport_options": {**options, **sure_publishing(ANSWER_SECONDS), **once}}
    if "socket_connect_timeout" not in options:
        return settings
    # A consumer waits for messages longer than this; a producer has no reason to wait.
    return {**settings, "broker_transport_options": {**options, "socket_timeout": SEND_SECONDS, "max_retries": 1}}
