"""Which tags hold what a lock pins, and what becomes of each where some are refused or the registry is away."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aot.cli import tags
from aot.client import RegistryClient
from aot.errors import (
    AotError,
    BundleNotFound,
    Forbidden,
    InvalidInput,
    InvalidName,
    RegistryUnreachable,
    StorageUnavailable,
    TagMoved,
    TagNotFound,
)
from aot.pipeline.lock_tags import Outcome, Pin, PinEnd, pins_of, tag_pins, untag_pins
from aot.schema.digest import BuildKey, Digest
from aot.schema.lock import Lock, LockEntry, encode_lock
from aot.schema.names import Name, Reference, Tag

RELEASE = Tag("release-42")
KEY = BuildKey(Digest.of(b"key"))


def digest(name: str) -> Digest:
    return Digest.of(name.encode())


def a_lock(*entries: tuple[str, str, str]) -> Lock:
    """Of (reference, profile, what the bundle is made of)."""
    return Lock(
        entries=tuple(
            LockEntry(reference=Reference.parse(name), profile=Name(profile), bundle=digest(bundle), build_key=KEY)
            for name, profile, bundle in entries
        )
    )


def pinned(*entries: tuple[str, str, str]) -> list[tuple[str, str, Digest]]:
    return [(pin.reference, pin.profile, pin.bundle) for pin in pins_of(a_lock(*entries), RELEASE)]


def test_every_bundle_gets_the_tag_under_its_own_model_and_profile() -> None:
    assert pinned(("mini:v1", "v3", "a"), ("mini:v1", "v4", "b"), ("team/other:latest", "v3", "c")) == [
        ("default/mini:release-42", "v3", digest("a")),
        ("default/mini:release-42", "v4", digest("b")),
        ("team/other:release-42", "v3", digest("c")),
    ]


def test_a_bundle_under_two_tags_of_the_lock_is_pinned_once() -> None:
    assert pinned(("mini:latest", "v3", "a"), ("mini:v1", "v3", "a")) == [
        ("default/mini:release-42", "v3", digest("a"))
    ]


def test_two_bundles_of_a_model_for_one_profile_get_a_tag_each_and_neither_takes_the_others() -> None:
    assert pinned(
        ("mini:large", "v3", "a"), ("mini:small", "v3", "b"), ("mini:small", "v4", "c"), ("other:small", "v3", "d")
    ) == [
        ("default/mini:release-42-large", "v3", digest("a")),
        ("default/mini:release-42-small", "v3", digest("b")),
        ("default/mini:release-42-small", "v4", digest("c")),
        ("default/other:release-42", "v3", digest("d")),
    ]


def test_a_bundle_that_the_lock_names_by_digest_gets_a_tag_of_its_own_where_there_are_several() -> None:
    first, second = pinned((f"mini@{digest('a')}", "v3", "a"), ("mini:v1", "v3", "b"))
    assert first[0] == f"default/mini:release-42-{digest('a').hex[:12]}" and second[0] == "default/mini:release-42-v1"


def test_a_lock_that_gives_one_tag_two_bundles_is_refused_before_anything_is_moved() -> None:
    with pytest.raises(InvalidInput, match="pins two bundles of default/mini:v1 for v3"):
        pins_of(a_lock(("mini:v1", "v3", "a"), ("mini:v1", "v3", "b")), RELEASE)


def test_a_tag_that_grows_too_long_is_refused() -> None:
    entries = [("mini:a", "v3", "a"), ("mini:b", "v3", "b")]
    with pytest.raises(InvalidName):
        pins_of(a_lock(*entries), Tag("x" * 127))


class Registry:
    """Moves and removes as it is told to: `refusals` says by bundle what it answers instead."""

    def __init__(self, **refusals: AotError) -> None:
        self.refusals = {digest(name): error for name, error in refusals.items()}
        self.asked: list[Digest] = []

    def tag(self, reference: Reference, bundle: Digest) -> None:
        self._answer(bundle)

    def untag(self, reference: Reference, *, expected: Digest) -> None:
        self._answer(expected)

    def _answer(self, bundle: Digest) -> None:
        self.asked.append(bundle)
        if bundle in self.refusals:
            raise self.refusals[bundle]


def ended(registry: Registry, act: Callable[..., object]) -> list[tuple[Outcome, AotError | None]]:
    pins = pins_of(a_lock(("one:v1", "v3", "a"), ("two:v1", "v3", "b"), ("three:v1", "v3", "c")), RELEASE)
    client: RegistryClient = registry  # type: ignore[assignment]
    ends: list[PinEnd] = list(act(client, pins))  # type: ignore[call-overload]
    assert [end.pin for end in ends] == list(pins)
    return [(end.outcome, end.error) for end in ends]


@pytest.mark.parametrize("error", [BundleNotFound("it has expired"), Forbidden("no"), StorageUnavailable("busy")])
@pytest.mark.parametrize(("act", "done"), [(tag_pins, Outcome.TAGGED), (untag_pins, Outcome.UNTAGGED)])
def test_one_that_is_refused_costs_the_others_nothing(
    act: Callable[..., object], done: Outcome, error: AotError
) -> None:
    registry = Registry(b=error)
    assert ended(registry, act) == [(done, None), (Outcome.FAILED, error), (done, None)]


@pytest.mark.parametrize("act", [tag_pins, untag_pins])
def test_a_registry_that_is_away_is_asked_no_further(act: Callable[..., object]) -> None:
    away = RegistryUnreachable("gone")
    registry = Registry(b=away)
    assert [error for _, error in ended(registry, act)] == [None, away, away]
    assert registry.asked == [digest("a"), digest("b")]


def test_what_the_tag_does_not_stand_for_any_more_needs_no_removal() -> None:
    gone, moved = TagNotFound("there is none"), TagMoved("it stands for another")
    found = ended(Registry(a=gone, c=moved), untag_pins)
    assert found == [(Outcome.ABSENT, gone), (Outcome.UNTAGGED, None), (Outcome.ABSENT, moved)]


@pytest.mark.parametrize("command", [tags.tag, tags.untag])
def test_with_a_lock_a_tag_alone_is_taken(command: Callable[..., object], tmp_path: Path) -> None:
    """And the lock must be there: each is found before a registry is asked."""
    lock = tmp_path / "aot.lock"
    lock.write_bytes(encode_lock(a_lock(("mini:v1", "v3", "a"))))
    for what, bundle in (("mini:v1", None), ("team/v1", None), ("v1", str(digest("a")))):
        with pytest.raises(InvalidInput, match="wanted a tag alone, found"):
            command(what, bundle, lock=lock, as_json=False)
    with pytest.raises(InvalidName):
        command("no tag", None, lock=lock, as_json=False)
    with pytest.raises(InvalidInput, match="there is no lock file"):
        command("v1", None, lock=tmp_path / "none.lock", as_json=False)


def test_without_a_lock_a_tag_is_moved_to_a_bundle_that_is_named() -> None:
    with pytest.raises(InvalidInput, match="wanted the digest of the bundle that mini:v1 is to stand for"):
        tags.tag("mini:v1", None, lock=None, as_json=False)


def test_pins_are_values() -> None:
    (pin,) = pins_of(a_lock(("mini:v1", "v3", "a")), RELEASE)
    assert pin == Pin(Reference("default/mini:release-42"), Name("v3"), digest("a"))
