"""The campaign: servers from wheels, killed and started again while clients submit, workers compile and pods pull.

    python -m tests.faults                 # AOT_FAULT_SEED and SOAK_SECONDS choose seed and length

The plan of faults follows from the seed alone; when exactly each meets a request is the machine's.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aot.errors import AotError
from aot.trust import SigningKey, TrustedKeys
from tests.faults.auditor import Auditor
from tests.faults.backends import BUCKET, Backend, ObjectStore, Postgres, Valkey
from tests.faults.clients import Accepted, Client, Pod, Submitter, start_all
from tests.faults.fleet import REPLICAS, SWEEPERS, WORKERS, Fleet
from tests.faults.ledger import Ledger
from tests.faults.proxy import FaultProxy
from tests.faults.schedule import Fault, Strike, make_schedule

STORE_MODES = {fault for fault in Fault if fault.name.startswith("STORE_")} - {Fault.STORE_KILLED}
PHASE_SECONDS = 4.0
DRAIN_SECONDS = 120.0


@dataclass
class Campaign:
    """Everything that runs. `seconds` is how long faults are injected; setting up and draining come on top."""

    root: Path
    seed: int
    seconds: float
    ledger: Ledger = field(default_factory=Ledger)
    accepted: Accepted = field(default_factory=Accepted)

    def run(self) -> Ledger:
        with self._running():
            stop = start_all(self._clients())
            try:
                self._strike_all(make_schedule(self.seed, self.seconds))
            finally:
                stop()
            self._drain()
            Auditor(self.fleet, self.store, self.accepted, self.trusted).audit()
        return self.ledger

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        key = SigningKey.load_or_create(self.root / "signing.key")
        self.trusted = TrustedKeys.of([str(key.public)])
        with contextlib.ExitStack() as ends:
            self.database, self.broker, self.store = Postgres(self.root), Valkey(self.root), ObjectStore(self.root)
            for backend in (self.database, self.broker, self.store):
                ends.callback(backend.close)
                backend.start()
                backend.wait()
            self.store.client().create_bucket(Bucket=BUCKET)
            self.proxy = FaultProxy(self.store.port, seed=self.seed, ledger=self.ledger)
            ends.callback(self.proxy.close)
            self.fleet = Fleet(
                self.root, self.database.url, self.broker.url, store_url=self.proxy.url, ledger=self.ledger
            )
            ends.callback(self.fleet.close)
            self.fleet.start()
            yield

    def _clients(self) -> list[Client]:
        profile = self._profile()
        submitters = [
            Submitter(f"submitter-{number}", self.fleet, self.accepted, seed=self.seed, profile=profile)
            for number in range(2)
        ]
        pods = [
            Pod(f"pod-{number}", self.fleet, self.accepted, seed=self.seed, trusted=self.trusted) for number in range(2)
        ]
        return [*submitters, *pods]

    def _profile(self):
        """The profile that every worker of this machine has first."""
        deadline = time.monotonic() + 60
        while True:
            workers = [worker for worker in self.fleet.client(0).list_workers().workers if worker.profiles]
            if len(workers) == WORKERS:
                return workers[0].profiles[0]
            assert time.monotonic() < deadline, "the workers did not register"
            time.sleep(0.2)

    def _strike_all(self, strikes: tuple[Strike, ...]) -> None:
        begun = time.monotonic()
        going: list[threading.Thread] = []
        for strike in strikes:
            time.sleep(max(0.0, begun + strike.at - time.monotonic()))
            thread = threading.Thread(target=self._strike, args=(strike,), daemon=True)
            thread.start()
            going.append(thread)
        time.sleep(max(0.0, begun + self.seconds - time.monotonic()))
        for thread in going:
            thread.join(30)

    def _strike(self, strike: Strike) -> None:
        try:
            done = self._inject(strike)
        except Exception as error:
            self.ledger.violated(f"the campaign could not inject {strike.fault}: {type(error).__name__}: {error}")
            return
        name = f"{strike.fault}" + (f" in {strike.detail}" if strike.detail else "")
        if done:
            self.ledger.fault(name)
        else:
            self.ledger.saw(f"campaign: no worker came to be {name}")

    def _inject(self, strike: Strike) -> bool:
        match strike.fault:
            case Fault.BROKER_LOST:
                self._down(self.broker, strike.lasts)
            case Fault.DATABASE_KILLED:
                self._down(self.database, strike.lasts)
            case Fault.STORE_KILLED:
                self._down(self.store, strike.lasts)
            case Fault.REPLICA_KILLED:
                self._member_down(f"replica-{strike.which % REPLICAS}", strike.lasts)
            case Fault.SWEEPER_KILLED:
                self._member_down(f"sweeper-{strike.which % SWEEPERS}", strike.lasts)
            case Fault.WORKER_KILLED:
                return self._kill_in_phase(strike.detail)
            case Fault.WORKER_TOLD:
                self.fleet.members[f"worker-{strike.which % WORKERS}"].send(signal.SIGTERM)
            case Fault.WORKER_DISK:
                self._flagged(self.fleet.steering / "disk-full", strike.lasts)
            case Fault.CLOCK_AHEAD | Fault.CLOCK_BEHIND:
                self._turn_clock(strike)
            case fault if fault in STORE_MODES:
                self.proxy.mode = fault
                time.sleep(strike.lasts)
                if self.proxy.mode is fault:
                    self.proxy.mode = None
            case other:
                raise AssertionError(other)
        return True

    def _down(self, backend: Backend, seconds: float) -> None:
        backend.kill()
        time.sleep(seconds)
        backend.start()

    def _member_down(self, name: str, seconds: float) -> None:
        self.fleet.kill(name)
        time.sleep(seconds)
        self.fleet.release(name)

    def _kill_in_phase(self, phase: str) -> bool:
        """Kill a worker that is in `phase`. False where none came there in time."""
        reached = self.fleet.steering / "reached"
        before = len(reached.read_text().splitlines()) if reached.exists() else 0
        gate = self.fleet.steering / f"hold-{phase}"
        gate.touch()
        try:
            deadline = time.monotonic() + PHASE_SECONDS
            while time.monotonic() < deadline:
                lines = reached.read_text().splitlines()[before:] if reached.exists() else []
                there = {int(pid) for pid, at, _ in map(str.split, lines) if at == phase}
                for member in list(self.fleet.members.values()):
                    if member.process is not None and member.process.pid in there and member.process.poll() is None:
                        member.send(signal.SIGKILL)
                        return True
                time.sleep(0.05)
            return False
        finally:
            gate.unlink(missing_ok=True)

    def _flagged(self, path: Path, seconds: float) -> None:
        path.touch()
        time.sleep(seconds)
        path.unlink(missing_ok=True)

    def _turn_clock(self, strike: Strike) -> None:
        clock = self.fleet.clock(strike.which % REPLICAS)
        clock.write_text("3600" if strike.fault is Fault.CLOCK_AHEAD else "-3600")
        time.sleep(strike.lasts)
        clock.unlink()

    def _drain(self) -> None:
        """Wait until every accepted build has ended, or DRAIN_SECONDS."""
        begun = time.monotonic()
        left = set(self.accepted.builds)
        while left and time.monotonic() - begun < DRAIN_SECONDS:
            for build in sorted(left):
                with contextlib.suppress(AotError):
                    if self.fleet.client(0).get_build(build).state.finished:
                        left.discard(build)
            time.sleep(0.3)
        self.ledger.saw("campaign: seconds of draining", round(time.monotonic() - begun))
