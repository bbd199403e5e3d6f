"""Celery's consumer, made to outlive what brokers do.

Celery ends the whole worker when a transport cannot read a message (kombu decodes it outside of Celery's own error
handling), and when a broker closes the channel, as RabbitMQ does to a consumer that has not acknowledged for half an
hour. Both cost a new connection here. The message is gone by then, or comes again: either is harmless.

A message that the transport reads and Celery cannot is another matter: a new connection would put it back, ahead of
the others where a transport sorts by time, and no build would ever be reached. It is acknowledged, as Celery does with
messages that it recognises as broken.
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

    def create_task_handler(self, **options: Any) -> Callable[[Any], Any]:
        """Celery's handler of one message, which also takes those that it cannot read off the queue."""
        handle = super().create_task_handler(**options)

        def on_task_received(message: Any) -> Any:
            try:
                return handle(message)
            except UNREADABLE as error:
                # The task itself never raises: what arrives here was raised while reading the message.
                return self.on_decode_error(message, error)

        return on_task_received
