"""A tag on everything that a lock pins: `aot tag --lock`, and `aot untag --lock`, which takes it off.

The registry sees a lock only by its use; what a tag stands for stays, used or not. A tag stands for one bundle a
profile, so bundles of several profiles or models share the tag. Where a lock pins several bundles of one model for one
profile (`mini:small` and `mini:large`), the model's tags say which: `release-42-small`, `release-42-large`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from aot.client import RegistryClient
from aot.errors import AotError, InvalidInput, RegistryUnreachable, TagMoved, TagNotFound
from aot.schema.digest import Digest
from aot.schema.lock import Lock, LockEntry
from aot.schema.names import Name, Reference, Tag


class Outcome(StrEnum):
    TAGGED = "tagged"
    UNTAGGED = "untagged"
    ABSENT = "absent"  # the tag does not stand for that bundle: nothing was to be removed
    FAILED = "failed"


@dataclass(frozen=True)
class Pin:
    """A bundle of the lock, and the tag that holds it."""

    reference: Reference
    profile: Name
    bundle: Digest


@dataclass(frozen=True)
class PinEnd:
    """How it ended with one of them. `error`: why it failed, or why nothing was to be removed."""

    pin: Pin
    outcome: Outcome
    error: AotError | None = None


def pins_of(lock: Lock, tag: Tag) -> tuple[Pin, ...]:
    """Each bundle of the lock once, with its tag, in the lock's order.

    Raises InvalidInput where one tag would have to stand for two, InvalidName where a tag grows too long.
    """
    several = _models_with_several(lock)
    pins: dict[Digest, Pin] = {}
    places: dict[tuple[Reference, Name], Digest] = {}
    for entry in lock.entries:
        if entry.bundle in pins:
            continue
        suffix = f"-{entry.reference.tag or entry.bundle.hex[:12]}" if _model_of(entry) in several else ""
        reference = Reference(f"{_model_of(entry)}:{Tag.parse(f'{tag}{suffix}')}")
        other = places.setdefault((reference, entry.profile), entry.bundle)
        if other != entry.bundle:
            raise InvalidInput(
                f"the lock pins two bundles of {entry.reference} for {entry.profile}: {other}, {entry.bundle}",
                hint="write it again with `aot ensure`",
            )
        pins[entry.bundle] = Pin(reference, entry.profile, entry.bundle)
    return tuple(pins.values())


def tag_pins(client: RegistryClient, pins: Iterable[Pin]) -> Iterator[PinEnd]:
    """Move each tag to its bundle. What one cannot have costs the others nothing; done again, it changes nothing."""

    def act(pin: Pin) -> PinEnd:
        client.tag(pin.reference, pin.bundle)
        return PinEnd(pin, Outcome.TAGGED)

    return _each(pins, act)


def untag_pins(client: RegistryClient, pins: Iterable[Pin]) -> Iterator[PinEnd]:
    """Remove each tag where it stands for its bundle; one that stands for another by now stays."""

    def act(pin: Pin) -> PinEnd:
        try:
            client.untag(pin.reference, expected=pin.bundle)
        except (TagNotFound, TagMoved) as error:
            return PinEnd(pin, Outcome.ABSENT, error)
        return PinEnd(pin, Outcome.UNTAGGED)

    return _each(pins, act)


def _each(pins: Iterable[Pin], act: Callable[[Pin], PinEnd]) -> Iterator[PinEnd]:
    """Whether the registry is there at all is found out once."""
    away: RegistryUnreachable | None = None
    for pin in pins:
        if away is not None:
            yield PinEnd(pin, Outcome.FAILED, away)
            continue
        try:
            yield act(pin)
        except AotError as error:
            away = error if isinstance(error, RegistryUnreachable) else None
            yield PinEnd(pin, Outcome.FAILED, error)


def _models_with_several(lock: Lock) -> frozenset[str]:
    bundles: dict[tuple[str, Name], set[Digest]] = defaultdict(set)
    for entry in lock.entries:
        bundles[_model_of(entry), entry.profile].add(entry.bundle)
    return frozenset(model for (model, _), digests in bundles.items() if len(digests) > 1)


def _model_of(entry: LockEntry) -> str:
    return f"{entry.reference.namespace}/{entry.reference.name}"
