"""Whose turn it is: properties of the order, for any namespaces, and what they mean over many claims."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.schema.names import Namespace
from registry.services.turns import BULK_WAITS, Head, RunningLimits, full, in_turn

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SECONDS = st.integers(0, 4 * 3600).map(lambda seconds: NOW - timedelta(seconds=seconds))


@st.composite
def heads(draw: st.DrawFn) -> tuple[Head, ...]:
    """Of distinct namespaces, each with one distinct best build."""
    count = draw(st.integers(0, 8))
    return tuple(
        Head(
            namespace=Namespace(f"n{number}"),
            build=f"{draw(st.integers(0, 5)):02}{number}",
            priority=draw(st.integers(-3, 3)),
            created_at=draw(SECONDS),
            claimed_at=draw(st.none() | SECONDS),
            share=draw(st.integers(0, 3)),
            running=draw(st.integers(0, 5)),
            limit=draw(st.none() | st.integers(0, 5)),
        )
        for number in range(count)
    )


def a_head(namespace: str, **fields: object) -> Head:
    known = {"build": namespace, "priority": 0, "created_at": NOW, "claimed_at": NOW}
    return Head(namespace=Namespace(namespace), **(known | fields))  # type: ignore[arg-type]


def order(*found: Head) -> list[str]:
    return [str(head.namespace) for head in in_turn(found, now=NOW)]


def test_a_namespace_that_got_a_worker_while_the_clock_was_ahead_does_not_wait_until_that_comes_true() -> None:
    hour = timedelta(hours=1)
    ahead, before = a_head("b", claimed_at=NOW + hour), a_head("a", claimed_at=NOW - hour)
    assert order(ahead, before) == ["b", "a"]
    skewed = a_head("b", claimed_at=NOW + timedelta(seconds=1))  # the clocks of two replicas
    assert order(skewed, before) == ["a", "b"]


@given(heads())
def test_every_namespace_that_has_room_comes_once_and_no_other(found: tuple[Head, ...]) -> None:
    rooms = {head.namespace for head in found if head.limit is None or head.running < head.limit}
    ordered = in_turn(found, now=NOW)
    assert {head.namespace for head in ordered} == rooms and len(ordered) == len(rooms)


@given(heads(), st.randoms())
def test_the_order_does_not_depend_on_how_the_rows_came(found: tuple[Head, ...], chosen) -> None:
    shuffled = list(found)
    chosen.shuffle(shuffled)
    assert in_turn(shuffled, now=NOW) == in_turn(found, now=NOW)


@given(heads())
def test_no_bulk_build_that_has_waited_little_comes_before_an_interactive_one(found: tuple[Head, ...]) -> None:
    bulk = [head.priority < 0 and NOW - head.created_at < BULK_WAITS for head in in_turn(found, now=NOW)]
    assert bulk == sorted(bulk)


@given(heads())
def test_within_a_class_who_has_less_comes_first(found: tuple[Head, ...]) -> None:
    ordered = in_turn(found, now=NOW)
    for first, second in pairwise(ordered):
        if first.is_bulk(NOW) == second.is_bulk(NOW):
            assert first.share <= second.share


def test_with_equal_shares_the_turn_goes_round() -> None:
    never = a_head("never", claimed_at=None)
    long_ago = a_head("long-ago", claimed_at=NOW - timedelta(hours=2))
    assert order(a_head("just-now"), long_ago, never) == ["never", "long-ago", "just-now"]


def test_a_higher_number_gets_nobody_ahead_of_another_namespace() -> None:
    assert order(a_head("loud", priority=1000), a_head("quiet", claimed_at=None)) == ["quiet", "loud"]


def test_bulk_waits_for_everybody_but_not_for_ever() -> None:
    bulk = a_head("bulk", priority=-1, claimed_at=None)
    assert order(bulk, a_head("now")) == ["now", "bulk"]
    waited = a_head("bulk", priority=-1, claimed_at=None, created_at=NOW - BULK_WAITS)
    assert order(waited, a_head("now")) == ["bulk", "now"]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 5))
def test_no_namespace_is_starved(queued: list[int], workers: int) -> None:
    """Workers that are always busy: between two turns of a namespace, every other that waits has had one."""
    left = {f"n{number}": count for number, count in enumerate(queued)}
    claimed: dict[str, datetime] = {}
    turns: list[tuple[str, frozenset[str]]] = []
    running: list[str] = []
    clock = NOW
    while any(left.values()):
        clock += timedelta(seconds=1)
        if len(running) == workers:
            running.pop(0)
        waits = [name for name, count in left.items() if count]
        found = [
            a_head(name, claimed_at=claimed.get(name), created_at=NOW, share=running.count(name)) for name in waits
        ]
        name = str(in_turn(found, now=clock)[0].namespace)
        turns.append((name, frozenset(waits)))
        left[name] -= 1
        claimed[name] = clock
        running.append(name)
    for at, (name, waits) in enumerate(turns):
        for other in waits - {name}:
            # Between now and its own next turn, `name` may have no more than a worker's round of others' turns.
            until = next((later for later in range(at + 1, len(turns)) if turns[later][0] == other), None)
            assert until is not None and until - at <= (len(waits) - 1) * (workers + 1)


@pytest.mark.parametrize(("namespace", "limit"), [("research", 2), ("others", 8)])
def test_a_namespace_has_its_own_limit_or_that_of_all(namespace: str, limit: int) -> None:
    limits = RunningLimits(8, {Namespace("research"): 2})
    assert limits.of(Namespace(namespace)) == limit
    assert RunningLimits().of(Namespace(namespace)) is None


def test_a_full_namespace_says_how_full() -> None:
    assert full(Namespace("ci"), running=2, limit=2) == "namespace ci runs 2 builds, as many as it may (2)"
