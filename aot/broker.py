"""Celery's settings, one function for both ends: the registry sends, the worker consumes.

Pure, and without Celery: neither side may import the other. A message only says "look at build N" (design.md,
section 4), so nothing here tries to make messages safe; lost ones are sent again by the sweeper.
"""

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aot.errors import InvalidConfig

BUILD_TASK = "aot.build"
# Above the longest compile: a message that is still being worked on must not be handed out again.
VISIBILITY_SECONDS = 24 * 3600
CONNECT_SECONDS = 5.0
_SCHEMES = ("filesystem", "redis", "rediss", "sentinel", "amqp", "amqps", "memory")
_AMQP = ("amqp", "amqps")
_FILESYSTEM = "filesystem://"


def celery_settings(broker_url: str, *, data_dir: Path) -> dict[str, Any]:
    """Return Celery's configuration for `broker_url`; `filesystem://` or empty for the embedded default.

    The directories of the filesystem transport (`data_dir/queue`, or the URL's path) are for `make_folders` to make.
    Raises InvalidConfig for a broker that is not supported.
    """
    url = broker_url or _FILESYSTEM
    scheme = urlsplit(url).scheme
    if scheme not in _SCHEMES:
        raise InvalidConfig(
            f"AOT_BROKER_URL begins with {scheme or 'nothing'}://",
            hint="leave it empty for the embedded queue, or write redis://host:6379/0 or amqp://host//",
        )
    return {
        "broker_url": _FILESYSTEM if scheme == "filesystem" else url,
        "broker_transport_options": _transport_options(scheme, url, data_dir),
        "broker_connection_timeout": CONNECT_SECONDS,
        "broker_connection_retry_on_startup": True,
        # A worker answers nothing while it builds: RabbitMQ would take it for dead after two heartbeats, and hand its
        # message to the next. The kernel notices hosts that are gone (SO_KEEPALIVE), also during a build.
        "broker_heartbeat": 0,
        # The database decides: no results, no events, no orders from worker to worker.
        "task_ignore_result": True,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "enable_utc": True,
        **_certificates(scheme, url),
    }


def is_amqp(settings: dict[str, Any]) -> bool:
    """Whether these settings lead to RabbitMQ."""
    return urlsplit(settings["broker_url"]).scheme in _AMQP


def sure_publishing(seconds: float) -> dict[str, Any]:
    """py-amqp's options: a message that did not reach RabbitMQ, or that it does not answer in time, is an error.

    Otherwise what is written to a broker that is gone is lost unseen, and one that hangs, or has stopped reading
    because its disk or memory is full, is waited for without end, by requests too.
    """
    return {"confirm_publish": True, "read_timeout": seconds, "write_timeout": seconds}


def folders_of(settings: dict[str, Any]) -> tuple[Path, ...]:
    """The directories that the filesystem transport needs; none for other transports."""
    options = settings["broker_transport_options"]
    names = ("data_folder_in", "control_folder", "processed_folder")
    return tuple(Path(options[name]) for name in names if name in options)


def make_folders(settings: dict[str, Any]) -> None:
    """Make them. Raises InvalidConfig when they cannot be."""
    for folder in folders_of(settings):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfig(
                f"could not make the queue's directory {folder}: {error.strerror or error}",
                hint="set AOT_DATA_DIR to a directory that this process may write",
            ) from error


def _certificates(scheme: str, url: str) -> dict[str, Any]:
    """What it takes that the broker's certificate is of a known authority, and for the name that the URL has."""
    match scheme:
        case "amqps":  # the authority is looked at in any case, the name only where it is told
            first, *_ = url.split(";")  # of several addresses, all have a certificate for the first one's name
            return {"broker_use_ssl": {"server_hostname": urlsplit(first).hostname}}
        case "rediss":  # kombu takes any certificate unless it is told; a URL's own `ssl_...` take the place of these
            return {"broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}}
    return {}


def _transport_options(scheme: str, url: str, data_dir: Path) -> dict[str, Any]:
    match scheme:
        case "filesystem":
            root = Path(url.removeprefix(_FILESYSTEM) or data_dir / "queue").absolute()
            messages = str(root / "messages")
            return {
                "data_folder_in": messages,
                "data_folder_out": messages,
                "control_folder": str(root / "control"),
                # Kept in this directory instead of /tmp: the move that takes a message is a rename then, and
                # only one consumer can win it.
                "processed_folder": str(root / "taken"),
                "store_processed": True,
            }
        case "redis" | "rediss" | "sentinel":
            return {
                "visibility_timeout": VISIBILITY_SECONDS,
                # Every look for abandoned messages is a real one, not every tenth.
                "unacked_restore_throttle": 1,
                "socket_connect_timeout": CONNECT_SECONDS,
                "socket_keepalive": True,
            }
    return {}
