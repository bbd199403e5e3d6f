"""Celery's consumer, made to outlive what brokers do.

Celery ends the whole worker when a transport cannot read a message (kombu decodes it outside of Celery's own error
handling), and when a broker closes the channel, as RabbitMQ does to a consumer that has not acknowledged for half an
hour. Both cost a new connection here. The message is gone by then, or comes again: either is harmless.

A message that the transport reads and Celery cannot is another matter: a new connection would put it back, ahead of
the others where a transport sorts by time, and no build would ever be reached. It is acknowledged, as Celery does with
messages that it recognises as broken.

And a broker that went away while a build ran: Celery logs that the message could not be acknowledged, goes on with the
dead connection, and never takes another message, because the one that is not acknowledged fills its window. Here it
costs a new connection.
"""

from collections.abc import Callable
from typing import Any

from celery.worker.consumer import Consumer

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
