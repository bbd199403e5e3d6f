"""Bundles of a model that are pending: what `aot explain` and `aot matrix` tell beside the verdicts on those that live.

Nothing judges a pending bundle, since nobody may load it; but who wonders why his host has nothing should know of it.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from aot.client import connect
from aot.config import Config
from aot.errors import AotError, TagNotFound
from aot.runtime.fetch import Resolved
from aot.runtime.pod import look_up
from aot.schema.codec import Response
from aot.schema.digest import Digest
from aot.schema.names import Name, Reference
from aot.schema.state import BundleState


class Unproven(Response, kw_only=True):
    """A pending bundle; `waiting` says for what: "not run: no host with AMX"."""

    bundle: Digest
    profile: Name
    waiting: str = ""


def look_up_told(reference: str, *, config: Config, lock: Path | None) -> Resolved:
    """As `look_up`; where there is no such tag, its error tells what is pending of the model."""
    try:
        return look_up(reference, lock=lock, config=config)
    except TagNotFound as error:
        found = _pending_of(Reference.parse(reference), config)
        if not found:
            raise
        profiles = ", ".join(sorted({one.profile for one in found}))
        raise TagNotFound(
            "; ".join([error.message, *unproven_lines(found)]),
            hint=f"it goes live once a worker of {profiles} has proven it: start one, or build for another profile",
            details=error.details,
        ) from error


def list_unproven(resolved: Resolved, *, config: Config) -> tuple[Unproven, ...]:
    """Return the pending bundles of the reference's model; none where the registry cannot be asked."""
    return () if resolved.stale else _pending_of(resolved.reference, config)


def _pending_of(reference: Reference, config: Config) -> tuple[Unproven, ...]:
    if not config.url or config.offline or reference.digest is not None:
        return ()
    client = connect.open_client(config.url, config.token, timeout_seconds=config.timeout_seconds, attempts=1)
    with contextlib.suppress(AotError):
        found = client.search(namespace=reference.namespace, name=reference.name, state=BundleState.PENDING).bundles
        return tuple(Unproven(bundle=one.digest, profile=one.profile, waiting=one.waiting) for one in found)
    return ()


def unproven_lines(found: Sequence[Unproven]) -> list[str]:
    return [
        f"pending: {one.bundle.short} for {one.profile}: {one.waiting or 'a worker is to prove it'}" for one in found
    ]
