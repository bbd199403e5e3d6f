"""Whether the service runs, whether it can work, and which keys sign."""

from collections.abc import Callable

from aot import __version__
from aot.errors import AotError, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.wire.workers import HealthReply, KeysReply, ReadyReply
from registry.api.routing import endpoint
from registry.db.migrate import at_head
from registry.deps import Deps
from registry.services.tokens import Principal

OK = "ok"


@endpoint("get_health")
def get_health(caller: Principal) -> HealthReply:
    """Say that the process answers."""
    return HealthReply(status=OK, version=__version__)


@endpoint("get_ready")
def get_ready(deps: Deps, caller: Principal) -> ReadyReply:
    """Say that database and blob store answer; otherwise 503, with every check in the error's details."""
    checks = {
        "database": _outcome(lambda: None if at_head(deps.sessions) else "it lacks migrations"),
        "blobs": _outcome(lambda: _ask_store(deps)),
    }
    if any(found != OK for found in checks.values()):
        raise StorageUnavailable(
            "the registry is not ready: " + "; ".join(f"{name}: {found}" for name, found in checks.items()),
            hint="see the registry's log",
            details={"checks": checks},
        )
    return ReadyReply(ready=True, checks=checks)


@endpoint("get_keys")
def get_keys(deps: Deps, caller: Principal) -> KeysReply:
    """List the public keys that sign now; a retired one must not be trusted on.

    They are no trust root: compare them with those you were given.
    """
    return KeysReply(keys=tuple(str(key.public) for key in deps.signing_keys))


def _outcome(check: Callable[[], str | None]) -> str:
    try:
        return check() or OK
    except AotError as error:
        return error.message


def _ask_store(deps: Deps) -> None:
    deps.store.stat(Digest.of(b""))


ROUTES = (get_health, get_ready, get_keys)
