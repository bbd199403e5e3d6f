"""The campaign: everything killed and started again while clients submit, workers compile and pods pull.

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
from tests.faults.clients import Accepted, Client, Pod, Submitter, start_all
from tests.faults.fleet import SWEEPERS, Fleet
from tests.faults.ledger import Ledger
from tests.faults.schedule import FAKE, Fault, Pace, Strike, make_schedule
from tests.faults.stacks import STACKS, STORE_MODES

BRING_AGAIN = "submit it again"  # registry/services/unreadable.py


@dataclass
class Campaign:
    """Everything that runs, on one of STACKS.

    `seconds` is how long faults are injected; setting up and draining come on top.
    """

    root: Path
    seed: int
    seconds: float
    on: str = "servers"
    pace: Pace = FAKE
    ledger: Ledger = field(default_factory=Ledger)
    accepted: Accepted = field(default_factory=Accepted)

    def run(self) -> Ledger:
        with self._running():
            stop = start_all(self._clients())
            try:
                self._strike_all(
                    make_schedule(self.seed, self.seconds, faults=self.stack.faults, every=self.pace.strike_every)
                )
            finally:
                stop()
            self._drain()
            Auditor(self.fleet, self.stack, self.accepted, self.trusted).audit()
        return self.ledger

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        key = SigningKey.load_or_create(self.root / "signing.key")
        self.trusted = TrustedKeys.of([str(key.public)])
        self.stack = STACKS[self.on](self.root, seed=self.seed, ledger=self.ledger)
        with contextlib.ExitStack() as ends:
            ends.callback(self.stack.close)
            self.stack.start()
            self.fleet = Fleet(self.root, self.stack, self.ledger, self.pace)
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
            if len(workers) == self.pace.workers:
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
            thread.join(30 + self.pace.phase_within)

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
            case Fault.BROKER_LOST | Fault.DATABASE_KILLED | Fault.STORE_KILLED | Fault.REGISTRY_DISK:
                self.stack.strike(strike.fault, strike.lasts)
            case Fault.REPLICA_KILLED:
                self._member_down(f"replica-{strike.which % self.fleet.replicas}", strike.lasts)
            case Fault.SWEEPER_KILLED:
                self._member_down(f"sweeper-{strike.which % SWEEPERS}", strike.lasts)
            case Fault.WORKER_KILLED:
                return self._kill_in_phase(strike.detail)
            case Fault.WORKER_TOLD:
                self.fleet.members[f"worker-{strike.which % self.pace.workers}"].send(signal.SIGTERM)
            case Fault.WORKER_DISK:
                self._flagged(self.fleet.steering / "disk-full", strike.lasts)
            case Fault.CLOCK_AHEAD | Fault.CLOCK_BEHIND:
                self._turn_clock(strike)
            case fault if fault in STORE_MODES:
                self.stack.proxy.mode = fault
                time.sleep(strike.lasts)
                if self.stack.proxy.mode is fault:
                    self.stack.proxy.mode = None
            case other:
                raise AssertionError(other)
        return True

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
            deadline = time.monotonic() + self.pace.phase_within
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
        clock = self.stack.clock(f"replica-{strike.which % self.fleet.replicas}")
        clock.write_text("3600" if strike.fault is Fault.CLOCK_AHEAD else "-3600")
        time.sleep(strike.lasts)
        clock.unlink(missing_ok=True)

    def _drain(self) -> None:
        """Wait until every accepted build has ended, as long as one ends in time after the last.

        Of a build whose source the store has lost, whoever submitted it is told to bring it again, and does.
        """
        begun = last_end = time.monotonic()
        left = set(self.accepted.builds)
        while left and time.monotonic() - last_end < self.pace.drain:
            for build in sorted(left):
                with contextlib.suppress(AotError):
                    view = self.fleet.client(0).get_build(build)
                    if view.state.finished:
                        left.discard(build)
                        last_end = time.monotonic()
                    elif BRING_AGAIN in view.waiting:
                        self.accepted.again[build]()
                        self.ledger.saw("submitter: brought a source again")
            time.sleep(0.3)
        self.ledger.saw("campaign: seconds of draining", round(time.monotonic() - begun))
