"""Check: does everything that the settings name work, and if not, what is to be set? Changes nothing that stays.

Each probe does what the registry will do: the database is asked for its schema and its time, a message goes through the
broker and back, and a blob of random bytes goes through signed links and is removed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import text

from aot.errors import AotError
from aot.trust import SigningKey
from registry.clock import Clock, utc_now
from registry.db.migrate import Schema, Standing, find_schema
from registry.db.session import open_sessions
from registry.services import check_broker, check_store
from registry.settings import Settings
from registry.storage import open_store

# Signatures of S3 are refused beyond 15 minutes; leases and links are wrong by as much as the clocks are.
MOST_SKEW = timedelta(seconds=30)


class Verdict(StrEnum):
    OK = "ok"
    WEAK = "weak"  # works, with a cost that is said
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """What was found of one thing, and what to set where it is not right."""

    name: str
    verdict: Verdict
    found: str
    hint: str = ""


def check(settings: Settings, *, clock: Clock = utc_now) -> tuple[Finding, ...]:
    """Every finding, whatever fails on the way. Raises nothing that a backend can cause."""
    return tuple(
        finding
        for name, probe in (
            ("signing keys", _keys),
            ("database", _database),
            ("broker", _broker),
            ("blob store", _store),
        )
        for finding in _guarded(name, probe, settings, clock)
    )


Probe = Callable[[Settings, Clock], Iterator[Finding]]


def _guarded(name: str, probe: Probe, settings: Settings, clock: Clock) -> Iterator[Finding]:
    try:
        yield from probe(settings, clock)
    except AotError as error:
        yield Finding(name, Verdict.WRONG, error.message, error.hint)
    except Exception as error:  # a driver's own: the other probes are still wanted
        yield Finding(name, Verdict.WRONG, f"{type(error).__name__}: {error}", "see the message")


def _keys(settings: Settings, clock: Clock) -> Iterator[Finding]:
    for path in settings.signing_keys:
        if not path.exists():
            verdict = Verdict.OK if settings.embedded else Verdict.WRONG
            hint = "" if settings.embedded else "give every replica the same file in AOT_SIGNING_KEYS"
            yield Finding("signing keys", verdict, f"{path} does not exist: `serve` would make one", hint)
            continue
        yield Finding("signing keys", Verdict.OK, f"{path}: {SigningKey.load(path).public}")


def _database(settings: Settings, clock: Clock) -> Iterator[Finding]:
    if settings.embedded:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    sessions = open_sessions(settings.database_url)
    try:
        yield _migrations(find_schema(sessions), embedded=settings.embedded)
        if sessions.engine.dialect.name == "sqlite":
            return  # its clock is this host's
        with sessions.reading() as session:
            before = clock()
            now: datetime = session.execute(text("SELECT clock_timestamp()")).scalar_one()
        yield skew("database clock", now - (before + (clock() - before) / 2))
    finally:
        sessions.close()


def _migrations(schema: Schema, *, embedded: bool) -> Finding:
    found = f"it {schema.text}"
    if schema.serves:
        return Finding("database", Verdict.OK, found)
    if embedded and schema.standing is Standing.OLDER:
        return Finding("database", Verdict.OK, f"{found}: `serve` migrates by itself")
    return Finding("database", Verdict.WRONG, found, schema.hint)


def _broker(settings: Settings, clock: Clock) -> Iterator[Finding]:
    for name, good, found, hint in check_broker.probe(settings):
        yield Finding(name, _verdict(good), found, hint)


def _store(settings: Settings, clock: Clock) -> Iterator[Finding]:
    store = open_store(settings.blob_url, data_dir=settings.data_dir, public_url=settings.public_url)
    if store.enforces_checksum:
        yield Finding("blob store checksums", Verdict.OK, "uploads of other bytes are refused")
    else:
        yield Finding(
            "blob store checksums",
            Verdict.WEAK,
            "the store accepts bytes of another SHA-256 than announced",
            "nothing to set: the sweeper hashes every upload, which costs one read of it; keep one running",
        )
    for step in check_store.probe(store, clock=clock):
        if isinstance(step, timedelta):
            yield skew("blob store clock", step)
        else:
            name, good, found, hint = step
            yield Finding(f"blob store {name}", _verdict(good), found, hint)


def _verdict(good: bool | None) -> Verdict:
    return Verdict.OK if good else Verdict.WEAK if good is None else Verdict.WRONG


def skew(name: str, ahead: timedelta) -> Finding:
    """`ahead`: how much later it is there than here."""
    seconds = ahead.total_seconds()
    found = f"{abs(seconds):.1f} s {'ahead of' if seconds >= 0 else 'behind'} this host"
    if abs(ahead) <= MOST_SKEW:
        return Finding(name, Verdict.OK, found)
    return Finding(name, Verdict.WRONG, found, "set the clocks of both hosts by NTP")
