"""Whose turn it is: in which order namespaces get a free worker. Pure; `registry.services.candidates` reads the rows.

    class     interactive builds (priority 0 or more) before bulk (below 0), until a bulk build has waited BULK_WAITS
    share     then the namespace of which the worker's profiles run the fewest builds now
    turn      then the namespace that got a worker longest ago
    age       then the oldest build

Within a namespace its own priorities decide, then age: nobody gets ahead of other namespaces by a higher number. A
namespace that runs as many builds as it may gets no worker, whatever its class.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from aot.schema.names import Namespace
from registry.clock import CLOCK_MARGIN

BULK_WAITS = timedelta(hours=1)
NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class RunningLimits:
    """How many builds a namespace may run at once; None: as many as there are workers."""

    default: int | None = None
    own: Mapping[Namespace, int] = field(default_factory=dict)

    def of(self, namespace: Namespace) -> int | None:
        return self.own.get(namespace, self.default)


@dataclass(frozen=True)
class Head:
    """The best waiting build of a namespace, and what that namespace has of the workers.

    `share` counts its running builds of the asking worker's profiles, `running` all of them.
    """

    namespace: Namespace
    build: str
    priority: int
    created_at: datetime
    claimed_at: datetime | None = None
    share: int = 0
    running: int = 0
    limit: int | None = None

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.running >= self.limit

    def is_bulk(self, now: datetime) -> bool:
        return self.priority < 0 and now - self.created_at < BULK_WAITS


def in_turn(heads: Iterable[Head], *, now: datetime) -> tuple[Head, ...]:
    """The namespaces that may run another build, in the order in which they get a worker."""

    def claimed_at(head: Head) -> datetime:
        return head.claimed_at if head.claimed_at and head.claimed_at <= now + CLOCK_MARGIN else NEVER

    def place(head: Head) -> tuple[bool, int, datetime, str]:
        return head.is_bulk(now), head.share, claimed_at(head), head.build

    return tuple(sorted((head for head in heads if not head.is_full), key=place))


def full(namespace: Namespace, *, running: int, limit: int) -> str:
    return f"namespace {namespace} runs {running} builds, as many as it may ({limit})"
