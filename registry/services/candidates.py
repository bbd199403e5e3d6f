"""The builds that a claim may hand out, in the order of `registry.services.turns`.

Ready builds come first, namespace by namespace. Only where none of them can be handed out are those looked at that were
found wanting before: a worker may have changed since.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.orm import Session

from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile
from aot.schema.state import BuildState
from aot.schema.wire.builds import ClaimRequest
from registry.clock import time_of
from registry.db import builds as rows
from registry.db import fleet as fleet_rows
from registry.db import queue
from registry.db.models import BuildRow
from registry.services.tokens import Principal
from registry.services.turns import Head, RunningLimits, full, in_turn

HELD_UP_LOOKED_AT = 100


@dataclass
class Candidates:
    """What waits for one claim. `reasons` grows while they are iterated: why some are not among them."""

    request: ClaimRequest
    by: Principal
    limits: RunningLimits
    now: datetime
    session: Session
    reasons: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[BuildRow, Profile]]:
        """Each build with its profile. To be read inside `queue.take_turns`, to the first that is taken."""
        profiles = self._profiles()
        seen: set[str] = set()
        for row in self._rows(tuple(profiles)):
            if row.id not in seen:
                seen.add(row.id)
                yield row, profiles[row.profile]

    def _rows(self, profiles: tuple[Name, ...]) -> Iterator[BuildRow]:
        yield from self._asked_for(profiles)
        for head in self._heads(profiles):
            yield from self._of(head, profiles)
        for profile in profiles:
            for row in queue.held_up_builds(profile, self.session, limit=HELD_UP_LOOKED_AT):
                if self.by.sees(row.namespace) and self._has_room(row):
                    yield row

    def _profiles(self) -> dict[Name, Profile]:
        found = {name: fleet_rows.find_profile(name, self.session) for name in self.request.profiles}
        return {name: profile for name, profile in found.items() if profile is not None}

    def _asked_for(self, profiles: tuple[Name, ...]) -> Iterator[BuildRow]:
        if self.request.build is None:
            return
        row = rows.find_build(self.request.build, self.session)
        if (
            row is not None
            and row.state is BuildState.QUEUED
            and row.profile in profiles
            and self.by.sees(row.namespace)
            and self._has_room(row)
        ):
            yield row

    def _heads(self, profiles: tuple[Name, ...]) -> tuple[Head, ...]:
        """The namespaces that wait, in turn; of each its best build over all profiles."""
        counts = queue.running_counts(self.session)
        best: dict[str, queue.HeadRow] = {}
        for profile in profiles:
            for row in queue.ready_heads(profile, self.session):
                known = best.get(row.namespace)
                if self.by.sees(row.namespace) and (known is None or _sooner(row, known)):
                    best[row.namespace] = row
        heads = [
            Head(
                namespace=row.namespace,
                build=row.build,
                priority=row.priority,
                created_at=time_of(row.build),
                claimed_at=row.claimed_at,
                share=sum(counts.get((row.namespace, profile), 0) for profile in profiles),
                running=sum(count for (namespace, _), count in counts.items() if namespace == row.namespace),
                limit=self.limits.of(row.namespace),
            )
            for row in best.values()
        ]
        self.reasons += [full(h.namespace, running=h.running, limit=h.limit or 0) for h in heads if h.is_full]
        return in_turn(heads, now=self.now)

    def _of(self, head: Head, profiles: tuple[Name, ...]) -> Iterator[BuildRow]:
        """The namespace's ready builds over all profiles: highest priority first, then the oldest."""
        going = [queue.ready_builds(head.namespace, profile, self.session) for profile in profiles]
        firsts = [next(one, None) for one in going]
        while any(firsts):
            place = min((i for i, row in enumerate(firsts) if row), key=lambda i: _place(firsts[i]))
            row = firsts[place]
            assert row is not None
            yield row
            firsts[place] = next(going[place], None)

    def _has_room(self, row: BuildRow) -> bool:
        limit = self.limits.of(row.namespace)
        if limit is None:
            return True
        running = queue.running_in(row.namespace, self.session)
        if running < limit:
            return True
        self.reasons.append(full(row.namespace, running=running, limit=limit))
        return False


def held_back(found: Iterable[BuildRow], limits: RunningLimits, session: Session) -> dict[str, str]:
    """Why each ready build among `found` waits that waits for its namespace's limit alone."""
    ready = [row for row in found if row.state is BuildState.QUEUED and not row.waiting]
    reasons: dict[Namespace, str] = {}
    for namespace in {row.namespace for row in ready}:
        limit = limits.of(namespace)
        if limit is not None and (running := queue.running_in(namespace, session)) >= limit:
            reasons[namespace] = full(namespace, running=running, limit=limit)
    return {row.id: reasons[row.namespace] for row in ready if row.namespace in reasons}


def _sooner(row: queue.HeadRow, other: queue.HeadRow) -> bool:
    return (-row.priority, row.build) < (-other.priority, other.build)


def _place(row: BuildRow | None) -> tuple[int, str]:
    assert row is not None
    return -row.priority, row.id
