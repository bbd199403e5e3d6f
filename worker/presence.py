"""How the registry knows of this worker: its profiles, registered at start and again every few seconds."""

import contextlib
import logging
import math
import threading
import time
from datetime import datetime

from aot.client import RegistryClient
from aot.errors import AotError, Conflict, Forbidden, Unavailable
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.wire.workers import RegisterReply

log = logging.getLogger("worker")
PAUSE_SECONDS = 1.0
# A registry forgets a worker after three times AOT_SEEN_SECONDS, 90 s if that is left out.
PATIENCE_SECONDS = 300.0


class Presence:
    """Registers the worker; `keep` does so again and again from a thread of its own, as often as the registry says."""

    def __init__(self, client: RegistryClient, name: Name, profiles: tuple[Profile, ...]) -> None:
        self._client = client
        self._name = name
        self._profiles = profiles
        self._ended = threading.Event()

    def register(self) -> RegisterReply:
        """Return once the registry knows this worker. Waits while it cannot be reached; raises what it refuses.

        Where a profile is held by workers that give no sign of life any more, waits until the registry forgets them:
        of one that was killed nobody else says that it is gone.
        """
        last_seen: dict[Name, datetime] = {}
        until = math.inf
        while True:
            try:
                return self._client.register_worker(self._name, profiles=self._profiles)
            except Unavailable as error:
                log.warning("registry-away error=%s", error.message)
            except Conflict as error:
                seen = self._seen(error)
                is_alive = any(at > last_seen.get(name, at) for name, at in seen.items())
                if not error.details.get("workers") or is_alive or time.monotonic() > until:
                    raise
                if until == math.inf:
                    until = time.monotonic() + PATIENCE_SECONDS
                    ends = ",".join(f"{name}:{at:%H:%M:%S}Z" for name, at in seen.items())
                    log.warning("profile-held last_seen=%s error=%s hint=%s", ends, error.message, error.hint)
                last_seen = {**seen, **last_seen}
            time.sleep(PAUSE_SECONDS)

    def _seen(self, error: Conflict) -> dict[Name, datetime]:
        """When the workers that `error` names were last seen; nothing of them where that cannot be asked.

        A registry of an older version does not tell it, and the scope of a worker's token lists no workers there.
        """
        if told := error.details.get("seen_at"):
            return {Name(name): datetime.fromisoformat(at) for name, at in told.items()}
        holders = error.details.get("workers", ())
        with contextlib.suppress(Unavailable, Forbidden):
            return {one.name: one.seen_at for one in self._client.list_workers().workers if one.name in holders}
        return {}

    def keep(self, *, every: float) -> None:
        """Register again every `every` seconds until `end`."""
        threading.Thread(target=self._run, args=(every,), name="presence", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _run(self, every: float) -> None:
        while not self._ended.wait(every):
            try:
                self._client.register_worker(self._name, profiles=self._profiles)
            except Unavailable as error:
                log.warning("registry-away error=%s", error.message)
            except AotError as error:
                log.error("registration-refused code=%s error=%s", error.code, error.message)
            except Exception:  # without this thread the worker would be taken for dead
                log.exception("fault in=presence")
