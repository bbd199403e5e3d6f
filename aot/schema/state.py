"""States of builds, bundles and blobs, and the transitions between them.

`advance` is pure and total: SQL applies its answer as a compare-and-set (`UPDATE … WHERE state = :from`).
"""

from enum import StrEnum


class BuildState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PUBLISHED = "published"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def live(self) -> bool:
        """True while a build may still end in a bundle; at most one live build exists for a key."""
        return self in (BuildState.QUEUED, BuildState.RUNNING)

    @property
    def finished(self) -> bool:
        return not self.live


class BuildEvent(StrEnum):
    CLAIM = "claim"
    EXPIRE = "expire"  # the lease ran out: the build waits for another attempt
    RELEASE = "release"  # the worker gave it back: shutting down, or not able to build it
    EXHAUST = "exhaust"  # the lease ran out at the last attempt
    PUBLISH = "publish"
    FAIL = "fail"
    CANCEL = "cancel"


class BundleState(StrEnum):
    PENDING = "pending"
    LIVE = "live"
    WITHDRAWN = "withdrawn"
    REJECTED = "rejected"


class BlobState(StrEnum):
    PENDING = "pending"
    STORED = "stored"
    CONDEMNED = "condemned"  # no bundle needs it: deleted after a grace period, unless it is wanted again
    DELETING = "deleting"  # on its way out of the store, or held by what moves its bytes: nobody counts on them


_TRANSITIONS = {
    (BuildState.QUEUED, BuildEvent.CLAIM): BuildState.RUNNING,
    (BuildState.QUEUED, BuildEvent.CANCEL): BuildState.CANCELLED,
    (BuildState.RUNNING, BuildEvent.EXPIRE): BuildState.QUEUED,
    (BuildState.RUNNING, BuildEvent.RELEASE): BuildState.QUEUED,
    (BuildState.RUNNING, BuildEvent.EXHAUST): BuildState.FAILED,
    (BuildState.RUNNING, BuildEvent.PUBLISH): BuildState.PUBLISHED,
    (BuildState.RUNNING, BuildEvent.FAIL): BuildState.FAILED,
    (BuildState.RUNNING, BuildEvent.CANCEL): BuildState.CANCELLED,
}


def advance(state: BuildState, event: BuildEvent) -> BuildState | None:
    """Return the state after `event`, or None where the event has no meaning in `state`."""
    return _TRANSITIONS.get((state, event))
