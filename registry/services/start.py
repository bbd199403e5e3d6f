"""What a registry makes true of its database before it serves: that its keys are those of the others, and that somebody
can administer it.

Replicas with a fresh data directory each may start at the same moment; they take turns here, by a lock of the database.
"""

import os
import secrets
from pathlib import Path

import structlog
from sqlalchemy.orm import Session

from aot.errors import InvalidConfig
from aot.schema.wire.workers import Scope
from registry.db import fleet as fleet_rows
from registry.db.session import hold_turn
from registry.deps import Deps
from registry.services import tokens

FIRST_TOKEN = "first administrator"
GIVEN_TOKEN = "administrator by AOT_ADMIN_TOKEN"
log = structlog.get_logger()


def prepare(deps: Deps) -> None:
    """Raises InvalidConfig for keys that none of the bundles here is signed with, and StorageUnavailable."""
    with deps.sessions.transaction() as session:
        hold_turn(session.connection(), "start")
        _require_shared_keys(deps, session)
        adopt_keys(deps, session)
        if deps.settings.admin_token:
            tokens.give(
                deps.settings.admin_token, GIVEN_TOKEN, scopes=(Scope.ADMIN,), now=deps.clock(), session=session
            )
        else:
            tokens.end(GIVEN_TOKEN, session=session)
        if deps.settings.embedded or not deps.settings.admin_token:
            _ensure_first_token(deps, session)


def adopt_keys(deps: Deps, session: Session) -> None:
    """Make true that the database knows this registry's keys as ones that sign here."""
    for key in deps.signing_keys:
        fleet_rows.remember_key(str(key.public), now=deps.clock(), session=session)


def write_probe_secret(deps: Deps) -> str:
    """Write a new secret for this process's own health check (0600), and return it. It ends with the process."""
    secret = tokens.PREFIX + secrets.token_urlsafe(32)
    _write_private(deps.settings.probe_path, secret + "\n")
    return secret


def _require_shared_keys(deps: Deps, session: Session) -> None:
    """A replica with a key of its own would publish what no pod trusts: it must have one in common with the others."""
    own = [str(key.public) for key in deps.signing_keys]
    known = fleet_rows.known_keys(session)
    if not known or set(own) & set(known):
        return
    if deps.settings.embedded:
        log.warning("signing-key-new", keys=own, before=known)
        return
    paths = ", ".join(map(str, deps.settings.signing_keys))
    raise InvalidConfig(
        f"this registry would sign with {', '.join(own)} ({paths}), and none of these has signed here: "
        f"the last was {known[-1]}",
        hint="give every replica the same AOT_SIGNING_KEYS, the old and the new one while a key is replaced; "
        "where the old one is lost: `python -m registry keys --adopt`",
    )


def _ensure_first_token(deps: Deps, session: Session) -> None:
    """Make sure that somebody has an administrator's token: in the data directory's token file (0600).

    An embedded registry keeps it there in any case. Of replicas on one database, the first that comes gets it, and the
    others none.
    """
    path = deps.settings.token_path
    if path.exists() and tokens.is_known(path.read_text().strip(), session=session):
        return
    if not deps.settings.embedded and tokens.has_label(FIRST_TOKEN, session=session):
        log.info("first-token-exists", more="python -m registry token create LABEL --scope admin")
        return
    secret = tokens.issue(FIRST_TOKEN, scopes=(Scope.ADMIN,), now=deps.clock(), session=session)
    # Inside the transaction: a token that could not be written down is not kept either.
    _write_private(path, secret + "\n")


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
