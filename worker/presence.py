"""How the registry knows of this worker: its profiles, registered at start and again every few seconds."""

import logging
import threading
import time

from aot.client import RegistryClient
from aot.errors import AotError, Unavailable
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.wire.workers import RegisterReply

log = logging.getLogger("worker")
PAUSE_SECONDS = 1.0


class Presence:
    """Registers the worker; `keep` does so again and again from a thread of its own, as often as the registry says."""

    def __init__(self, client: RegistryClient, name: Name, profiles: tuple[Profile, ...]) -> None:
        self._client = client
        self._name = name
        self._profiles = profiles
        self._ended = threading.Event()

    def register(self) -> RegisterReply:
        """Return once the registry knows this worker. Waits while it cannot be reached; raises what it refuses."""
        while True:
            try:
                return self._client.register_worker(self._name, profiles=self._profiles)
            except Unavailable as error:
                log.warning("registry-away error=%s", error.message)
            time.sleep(PAUSE_SECONDS)

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
