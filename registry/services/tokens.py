"""Tokens: who calls, and what they may do. The registry keeps the SHA-256 of each secret, never the secret."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from aot.errors import Forbidden, InvalidInput, Unauthenticated
from aot.schema.names import Namespace
from aot.schema.wire.workers import Scope, TokenReply, TokenRequest
from registry.db import hot
from registry.db import tokens as rows
from registry.db.models import TokenRow

PREFIX = "aot_"  # lets secret scanners recognise one


@dataclass(frozen=True)
class Principal:
    """The bearer of a token. `namespaces` empty: all. `build` and `attempt` are set on a claim's token alone.

    `expires_at`: when the token does; None: never.
    """

    label: str
    scopes: frozenset[Scope]
    namespaces: tuple[Namespace, ...] = ()
    build: str | None = None
    attempt: int | None = None
    expires_at: datetime | None = None

    def has(self, scope: Scope) -> bool:
        """`admin` includes all scopes but `build`, which is the right to one attempt and not a rank."""
        return scope in self.scopes or (Scope.ADMIN in self.scopes and scope is not Scope.BUILD)

    def sees(self, namespace: Namespace) -> bool:
        return not self.namespaces or namespace in self.namespaces

    def may(self, scope: Scope, namespace: Namespace) -> bool:
        return self.has(scope) and self.sees(namespace)

    def require(self, scope: Scope, namespace: Namespace | None = None) -> None:
        """Raises Forbidden. What it says depends on the token and the question alone, never on what exists."""
        if not self.has(scope):
            raise Forbidden(
                f"this needs a token with the scope {scope}, found {', '.join(sorted(self.scopes))}",
                hint="ask an administrator of the registry for another token",
            )
        if namespace is not None and not self.sees(namespace):
            raise Forbidden(
                f"the token is not for the namespace {namespace}",
                hint="ask an administrator of the registry for another token",
            )


PROBE = Principal("this process's health check", frozenset())
"""Any valid token may ask whether the registry is ready, and this one may do no more."""


def issue(
    label: str,
    *,
    scopes: tuple[Scope, ...],
    namespaces: tuple[Namespace, ...] = (),
    expires_at: datetime | None = None,
    build: str | None = None,
    attempt: int | None = None,
    now: datetime,
    session: Session,
) -> str:
    """Return a new secret. It is shown here once and cannot be read again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    row = TokenRow(
        hash=hash_of(secret),
        label=label,
        scopes=scopes,
        namespaces=namespaces,
        build=build,
        attempt=attempt,
        created_at=now,
        expires_at=expires_at,
    )
    rows.add_token(row, session)
    return secret


def give(secret: str, label: str, *, scopes: tuple[Scope, ...], now: datetime, session: Session) -> None:
    """Make true that `secret`, which was chosen elsewhere, is the one token of this label; one given before it ends."""
    digest = hash_of(secret)
    rows.delete_labelled(label, session, but=digest)
    row = rows.find_token(digest, session)
    if row is None:
        row = TokenRow(hash=digest, created_at=now)
    row.label, row.scopes, row.namespaces, row.expires_at = label, scopes, (), None
    rows.add_token(row, session)


def end(label: str, *, session: Session) -> None:
    """Make true that there is no token of this label."""
    rows.delete_labelled(label, session)


def authenticate(secret: str, *, now: datetime, reader: hot.Reader) -> Principal:
    """Raises Unauthenticated for a secret that is unknown or has expired, without saying which."""
    digest = hash_of(secret)
    row = hot.find_token(digest, reader)
    # The look-up compares hashes, of which a caller learns nothing by timing; the comparison here is constant-time.
    if row is None or not hmac.compare_digest(row.hash, digest) or (row.expires_at and row.expires_at <= now):
        raise Unauthenticated("the bearer token is unknown or has expired", hint="set AOT_TOKEN to a valid token")
    return Principal(row.label, frozenset(row.scopes), row.namespaces, row.build, row.attempt, row.expires_at)


def is_known(secret: str, *, session: Session) -> bool:
    return rows.find_token(hash_of(secret), session) is not None


def has_label(label: str, *, session: Session) -> bool:
    return rows.has_label(label, session)


def is_probe(secret: str, own: str) -> bool:
    """Whether `secret` is the one of this process's own health check, `own`; empty: it has none."""
    return bool(own) and hmac.compare_digest(hash_of(secret), hash_of(own))


def create(request: TokenRequest, *, by: Principal, now: datetime, session: Session) -> TokenReply:
    """Return a token that may do no more than `by`. Raises InvalidInput, Forbidden."""
    if not request.scopes or Scope.BUILD in request.scopes:
        raise InvalidInput(
            "a token needs scopes, and `build` is not one to ask for",
            hint="a claim hands out the token of its build",
        )
    seconds = request.expires_in_seconds
    if seconds is not None and not 0 < seconds <= 100 * 365 * 86400:
        raise InvalidInput(f"a token cannot expire in {seconds} seconds", hint="give a positive number of seconds")
    if by.namespaces and not (request.namespaces and set(request.namespaces) <= set(by.namespaces)):
        raise Forbidden(
            "the token would reach namespaces that its creator does not",
            hint=f"ask for namespaces among {', '.join(by.namespaces)}",
        )
    expires_at = None if seconds is None else now + timedelta(seconds=seconds)
    secret = issue(
        request.label,
        scopes=request.scopes,
        namespaces=request.namespaces,
        expires_at=expires_at,
        now=now,
        session=session,
    )
    return TokenReply(token=secret, expires_at=expires_at)


def hash_of(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()
