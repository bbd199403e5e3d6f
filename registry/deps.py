"""The object graph: everything that handlers and the sweeper use, built once."""

from dataclasses import dataclass, field

from aot.schema.digest import Digest
from aot.trust import SigningKey
from registry.clock import Clock, SharedClock, utc_now
from registry.db.session import Sessions, open_sessions
from registry.queue import CeleryQueue, Queue
from registry.services.callers import Callers
from registry.services.hashing import Hashing
from registry.services.suspects import Suspects
from registry.services.uses import Uses
from registry.settings import Settings
from registry.storage import BlobStore, open_store
from registry.storage.records import KeepsRecords, RecordStore

BEGINNING = ("", "")


@dataclass
class Explained:
    """How far the sweeper of this process has said of queued builds why they wait: profile and id of the last."""

    after: tuple[str, str] = BEGINNING


@dataclass
class Condemned:
    """How far a pass of retention that had no more time has looked for blobs that no bundle needs: the last one.

    `again`: bundles are gone since, so that there may be more before it.
    """

    after: Digest | None = None
    again: bool = False


@dataclass(frozen=True)
class Deps:
    settings: Settings
    sessions: Sessions
    store: BlobStore
    records: RecordStore
    queue: Queue
    signing_keys: tuple[SigningKey, ...]
    clock: Clock = utc_now
    uses: Uses = field(default_factory=Uses)
    callers: Callers = field(default_factory=Callers)
    explained: Explained = field(default_factory=Explained)
    condemned: Condemned = field(default_factory=Condemned)
    hashing: Hashing = field(default_factory=Hashing)
    suspects: Suspects = field(default_factory=Suspects)
    probe_secret: str = field(default="", repr=False)  # of this process's own health check


def build_deps(settings: Settings) -> Deps:
    """Open database, blob store and queue as the settings name them; a signing key that is missing is made.

    Raises InvalidConfig, and StorageUnavailable where the blob store does not answer.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = open_store(settings.blob_url, data_dir=settings.data_dir, public_url=settings.public_url)
    assert isinstance(store, KeepsRecords), "every store that a URL can name keeps records"
    sessions = open_sessions(settings.database_url)
    return Deps(
        settings=settings,
        sessions=sessions,
        store=store,
        records=store.records(),
        queue=CeleryQueue(settings.broker_url, data_dir=settings.data_dir),
        signing_keys=tuple(SigningKey.load_or_create(path) for path in settings.signing_keys),
        clock=SharedClock(sessions.ask_time) if sessions.shared else utc_now,
    )
