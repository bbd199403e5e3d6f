"""Which fault happens when: the whole plan of a campaign, made of one seed before anything starts."""

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from aot.schema.report import Phase


class Fault(StrEnum):
    BROKER_LOST = "broker killed, everything in it lost"
    DATABASE_KILLED = "database killed"
    STORE_KILLED = "object store killed"
    REPLICA_KILLED = "registry replica killed"
    SWEEPER_KILLED = "sweeper killed"
    WORKER_KILLED = "worker killed"  # `detail`: the phase
    WORKER_TOLD = "worker told to end"
    WORKER_DISK = "worker's disk full"
    REGISTRY_DISK = "registry's disk full"
    CLOCK_AHEAD = "clock of a replica an hour ahead"
    CLOCK_BEHIND = "clock of a replica an hour behind"
    STORE_500 = "object store answers 500"
    STORE_503 = "object store answers 503"
    STORE_SLOW = "object store is slow"
    STORE_CUT = "object store cuts bodies"
    STORE_WRONG = "object store gives or takes other bytes"
    STORE_SILENT = "object store does what it is asked and does not say so"


@dataclass(frozen=True)
class Pace:
    """How fast things go, in seconds. A real compile loads the machine: whoever renews a lease waits for his turn."""

    real_compiler: bool
    workers: int
    strike_every: float
    submit_every: float
    phase_within: float
    """How long a worker that is to be killed in a phase is waited for."""
    lease: float
    drain: float
    """What accepted builds get for the next of them to end, once the faults are over."""


FAKE = Pace(False, workers=3, strike_every=1.6, submit_every=0.35, phase_within=4.0, lease=3.0, drain=120.0)
REAL = Pace(True, workers=2, strike_every=12.0, submit_every=20.0, phase_within=40.0, lease=20.0, drain=600.0)


@dataclass(frozen=True)
class Strike:
    """One fault: `at` seconds after the start, for `lasts` seconds; `which` chooses among equals."""

    at: float
    fault: Fault
    lasts: float
    which: int
    detail: str = ""


def make_schedule(
    seed: int, seconds: float, *, faults: Collection[Fault] = tuple(Fault), every: float = 1.6
) -> tuple[Strike, ...]:
    """Strikes in order of time: every one of `faults`, and a worker's death in every phase, once before any again."""
    chosen = random.Random(seed)
    kinds = [(fault, "") for fault in Fault if fault in faults and fault is not Fault.WORKER_KILLED]
    kinds += [(Fault.WORKER_KILLED, str(phase)) for phase in Phase]
    strikes: list[Strike] = []
    pack: list[tuple[Fault, str]] = []
    at = every
    while at < seconds:
        if not pack:
            pack = chosen.sample(kinds, len(kinds))
        fault, detail = pack.pop()
        strikes.append(Strike(at, fault, chosen.uniform(0.3, 2.0), chosen.randrange(1000), detail))
        at += chosen.uniform(0.4, 1.6) * every
    return tuple(strikes)
