"""Celery's consumer, made to outlive what brokers do.

Celery ends the whole worker when a transport cannot read a message (kombu decodes it outside of Celery's own error
handling), and when a broker closes the channel, as RabbitMQ does to a consumer that has not acknowledged for half an
hour. Both cost a new connection here. The message is gone by then, or comes again: either is harmless. Where a message
waited as the worker started, Celery drops the news of the closed channel, and would listen to nobody from then on.

A message that the transport reads and Celery cannot is another matter: a new connection would put it back, ahead of
the others where a transport sorts by time, and no build would ever be reached. It is acknowledged, as Celery does with
messages that it recognises as broken.

And a broker that went away while a build ran: Celery logs that the message could not be acknowledged, goes on with the
dead connection, and never takes another message, because the one that is not acknowledged fills its window. Here it
costs a new connection.

And brokers that are looked into, as a directory is: Celery looks once a second, and again for two seconds when it has
been told to end, at a message that it then takes with it.
"""

import time
from collections.abc import Callable
from typing import Any

from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

# A user, a password or a right that RabbitMQ does not know yet.
REFUSED_SECONDS = 2.0
# Between two looks at a broker that does not call: builds wait for it, and so does who ends a worker.
LOOK_SECONDS = 0.2
# What decoding a message raises that is no JSON, or JSON of another shape.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)


class PatientConsumer(Consumer):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection_errors = (*self.connection_errors, *self.channel_errors, *UNREADABLE)
        self._lost: Exception | None = None

    def create_task_handler(self, **options: Any) -> Callable[[Any], Any]:
        """Celery's handler of one message, which also takes those that it cannot read off the queue."""
        handle = super().create_task_handler(**options)

        def on_task_received(message: Any) -> Any:
            message.ack_log_error = self._or_reconnect(message.ack)
            message.reject_log_error = self._or_reconnect(message.reject)
            try:
                return handle(message)
            except UNREADABLE as error:
                # The task itself never raises: what arrives here was raised while reading the message.
                return self.on_decode_error(message, error)

        return on_task_received

    def connect(self) -> Any:
        """Celery's connection, whose errors are heard: the loop begins with one look at RabbitMQ that drops them."""
        connection = super().connect()
        drain = connection.drain_events
        # The loop of brokers that do not call drops no error.
        connection.drain_events = self._heard(drain) if self.hub else _looked_for(drain)
        return connection

    def _heard(self, drain: Callable[..., Any]) -> Callable[..., Any]:
        def drain_events(**options: Any) -> Any:
            try:
                return drain(**options)
            except self.connection_errors as error:
                # A time-out only says that there is nothing; errors of the operating system are raised there as well.
                if not isinstance(error, TimeoutError) and getattr(error, "errno", None) is None:
                    self.call_soon(_raise, error)
                raise

        return drain_events

    def on_connection_error_before_connected(self, error: Exception) -> None:
        """Celery's, which tries again at once: it waits for brokers that are away, not for those that refuse."""
        super().on_connection_error_before_connected(error)
        until = time.monotonic() + REFUSED_SECONDS
        while time.monotonic() < until:
            maybe_shutdown()
            time.sleep(0.1)

    def perform_pending_operations(self) -> None:
        """Celery's, for loops in which an error of such an operation would only be logged."""
        super().perform_pending_operations()
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def _or_reconnect(self, settle: Callable[..., None]) -> Callable[..., None]:
        """`settle` the message, and raise where the broker cannot be told: the consumer then connects anew."""

        def settle_or_raise(logger: Any, errors: Any, **options: Any) -> None:
            try:
                settle(**options)
            except errors as error:
                logger.warning("message-not-settled error=%s", error)
                if not self.hub:
                    self._lost = error
                raise

        return settle_or_raise


def _looked_for(drain: Callable[..., Any]) -> Callable[..., Any]:
    def drain_events(**_: Any) -> Any:
        maybe_shutdown()
        return drain(timeout=LOOK_SECONDS)

    return drain_events


def _raise(error: Exception) -> None:
    raise error
