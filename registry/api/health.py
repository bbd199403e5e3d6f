"""Whether the service runs, whether it can work, and which keys sign."""

from collections.abc import Callable

from aot import __version__
from aot.errors import AotError, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.wire.workers import HealthReply, KeysReply, ReadyReply
from registry.api.routing import endpoint
from registry.db.migrate import Standing, find_schema, require
from registry.deps import Deps
from registry.services.tokens import Principal

OK = "ok"


@endpoint("get_health")
def get_health(caller: Principal) -> HealthReply:
    """Say that the process answers."""
    return HealthReply(status=OK, version=__version__)


@endpoint("get_ready")
def get_ready(deps: Deps, caller: Principal) -> ReadyReply:
    """Say that database and blob store answer; otherwise 503, with every check in the error's details.

    A check that passed is "ok", with a colon and a remark where there is one: a database that a newer version has
    migrated is served.
    """
    checks = {
        "database": _outcome(lambda: _ask_database(deps)),
        "blobs": _outcome(lambda: _ask_store(deps)),
    }
    if not all(found == OK or found.startswith(f"{OK}: ") for found in checks.values()):
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
        return "; ".join(filter(None, (error.message, error.hint)))


def _ask_database(deps: Deps) -> str | None:
    schema = find_schema(deps.sessions)
    require(schema)
    return f"{OK}: it {schema.text}" if schema.standing is Standing.NEWER else None


def _ask_store(deps: Deps) -> None:
    deps.store.stat(Digest.of(b""))


ROUTES = (get_health, get_ready, get_keys)
