"""Celery's consumer, made to outlive what brokers do.

Celery ends the whole worker when a transport cannot read a message (kombu decodes it outside of Celery's own error
handling), and when a broker closes the channel, as RabbitMQ does to a consumer that has not acknowledged for half an
hour. Both cost a new connection here. The message is gone by then, or comes again: either is harmless.
"""

from typing import Any

from celery.worker.consumer import Consumer

# What decoding a message raises that is no JSON, or JSON of another shape.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)


class PatientConsumer(Consumer):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection_errors = (*self.connection_errors, *self.channel_errors, *UNREADABLE)
