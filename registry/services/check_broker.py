"""Probe of the broker: a message through a queue of its own and back, and settings that would lose messages."""

import queue as queues
import secrets
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from kombu import Connection
from kombu.exceptions import OperationalError

from aot.broker import celery_settings, folders_of, is_amqp, make_folders, sure_publishing
from registry.settings import Settings

Step = tuple[str, bool | None, str, str]
WAIT_SECONDS = 5.0
NOT_ALLOWED = 530  # AMQP: no such virtual host, or not for this user
REFUSED_HINT = (
    "check user, password and (RabbitMQ) virtual host in AOT_BROKER_URL; the user must be allowed to configure, "
    "write and read there"
)
AWAY_HINT = "check AOT_BROKER_URL and the broker"
# RabbitMQ's consumer_timeout where nobody has set another. AMQP does not tell it.
RABBITMQ_HOLDS = timedelta(minutes=30)


def probe(settings: Settings) -> Iterator[Step]:
    """Name, whether it is right (None: it works at a cost), what was found, what to set.

    Raises InvalidConfig for a URL that none can be.
    """
    celery = celery_settings(settings.broker_url, data_dir=settings.data_dir)
    make_folders(celery)
    if folders_of(celery):
        yield "broker", True, "the embedded queue of files", ""
        return
    options: dict[str, Any] = dict(celery["broker_transport_options"])
    yield from _visibility(celery["broker_url"], options, settings)
    with _connection(celery, options) as connection:
        where = connection.as_uri()  # without its password
        try:
            connection.ensure_connection(max_retries=1, interval_start=0.2, timeout=WAIT_SECONDS)
            yield _round_trip(connection, where)
        except connection.channel_errors as error:
            # RabbitMQ's 403 is one, also at the login.
            yield "broker", False, f"{where} refused: {error}", REFUSED_HINT
            return
        except (OperationalError, OSError, *connection.connection_errors) as error:
            refused = getattr(error, "reply_code", None) == NOT_ALLOWED
            said = "refused" if refused else "did not answer"
            yield "broker", False, f"{where} {said}: {error}", REFUSED_HINT if refused else AWAY_HINT
            return
        if connection.transport.driver_type == "redis":
            yield from _eviction(connection)


def _connection(celery: dict[str, Any], options: dict[str, Any]) -> Connection:
    more: dict[str, Any] = (
        sure_publishing(WAIT_SECONDS)
        if is_amqp(celery)
        else {"socket_connect_timeout": WAIT_SECONDS, "socket_timeout": WAIT_SECONDS, "max_retries": 1}
    )
    return Connection(
        celery["broker_url"],
        transport_options=options | more,
        connect_timeout=WAIT_SECONDS,
        ssl=celery.get("broker_use_ssl", False),
    )


def _round_trip(connection: Connection, where: str) -> Step:
    sent = secrets.token_hex(8)
    name = f"aot.check.{sent}"
    # RabbitMQ keeps an exchange beside the queue; both go with their last user, also where this process is killed.
    ends = {"auto_delete": True, "durable": False}
    with connection.SimpleQueue(name, queue_opts={**ends, "exclusive": True}, exchange_opts=ends) as queue:
        queue.put(sent)
        try:
            message = queue.get(timeout=WAIT_SECONDS)
        except queues.Empty:
            return "broker", False, f"{where} took a message and did not give it back", "look at the broker's log"
        message.ack()
    queue.queue.delete()  # after its consumer: RabbitMQ would tell a consumer that its queue is gone
    if message.payload != sent:
        return "broker", False, f"{where} gave back another message than it took", "see what lies between: a proxy?"
    return "broker", True, f"{where}: a message went through and came back", ""


def _visibility(url: str, options: dict[str, Any], settings: Settings) -> Iterator[Step]:
    """How long the broker leaves a message with the worker that took it: an attempt may last that long."""
    if url.startswith(("amqp://", "amqps://")):
        yield _rabbitmq_holds(settings)
    seconds = options.get("visibility_timeout")
    if seconds is None:
        return
    visible = timedelta(seconds=seconds)
    yield (
        "broker visibility",
        visible >= settings.attempt_lives,
        f"a message that is worked on stays hidden for {visible}, an attempt lives {settings.attempt_lives}",
        "" if visible >= settings.attempt_lives else f"set AOT_ATTEMPT_SECONDS to at most {seconds}",
    )


def _rabbitmq_holds(settings: Settings) -> Step:
    """Nothing is lost: the worker connects anew, and the message wakes whoever takes it next (`worker.consumer`)."""
    lives = settings.attempt_lives
    found = f"RabbitMQ ends a consumer that holds a message for {RABBITMQ_HOLDS}, unless it is set otherwise; an "
    if lives <= RABBITMQ_HOLDS:
        return "broker visibility", True, f"{found}attempt lives {lives}", ""
    milliseconds = round(lives.total_seconds() * 1000)
    hint = f"set consumer_timeout = {milliseconds} in rabbitmq.conf; else workers connect anew during long builds"
    return "broker visibility", None, f"{found}attempt may live {lives}, and the broker does not tell", hint


def _eviction(connection: Connection) -> Iterator[Step]:
    """Redis that may evict keys drops queues; managed ones may refuse to tell."""
    try:
        found = connection.default_channel.client.config_get("maxmemory-policy")
    except Exception:
        return
    policy = found.get("maxmemory-policy") or found.get(b"maxmemory-policy")
    if policy is None:
        return
    policy = policy.decode() if isinstance(policy, bytes) else str(policy)
    good = policy == "noeviction"
    hint = "" if good else "set maxmemory-policy to noeviction: others drop queues when memory runs out"
    yield "broker eviction", good, f"maxmemory-policy is {policy}", hint
