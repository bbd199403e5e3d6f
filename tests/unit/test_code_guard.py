"""Code that stands where no fingerprint reaches it: held by what it does, or not held at all."""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from aot.runtime.code_guard import CODE_CONTENT, content_guard, content_holds

SOURCE = "G['WAYS']['one']"


def doubled(x: int, *, by: int = 2) -> int:
    return x * by


def kept(value: Any) -> Callable[[int], int]:
    return lambda x: x * value


def holds(built_with: Any, found: Any) -> bool:
    guard = content_guard(SOURCE, built_with)
    assert guard is not None and guard.kind == CODE_CONTENT
    return content_holds(guard, {"G": {"WAYS": {"one": found}}})


def test_an_equal_function_holds_and_another_does_not() -> None:
    copy = FunctionType(doubled.__code__, {}, "doubled", doubled.__defaults__)
    copy.__kwdefaults__ = {"by": 2}
    assert holds(doubled, doubled) and holds(doubled, copy)
    copy.__kwdefaults__ = {"by": 3}
    assert not holds(doubled, copy)
    assert not holds(doubled, lambda x: x * 2)
    assert holds(doubled.__code__, copy.__code__)
    assert not holds(doubled.__code__, kept(1).__code__)


def test_what_a_closure_holds_is_part_of_it() -> None:
    assert holds(kept(3), kept(3)) and not holds(kept(3), kept(4))
    assert holds(kept((1, "a")), kept((1, "a"))) and not holds(kept(doubled), kept(kept))
    assert not holds(kept(1), kept(True)) and not holds(kept(1), kept(1.0))


@pytest.mark.parametrize(
    "value", [kept(object()), kept([1]), functools.partial(doubled), int, print, type("Called", (), {})(), None]
)
def test_what_is_more_than_its_code_has_no_guard(value: Any) -> None:
    assert content_guard(SOURCE, value) is None


def test_what_is_no_global_has_no_guard() -> None:
    assert content_guard("L['self'].way", doubled) is None


@pytest.mark.parametrize("found", [{}, {"WAYS": {}}, {"WAYS": None}, {"WAYS": {"one": 3}}])
def test_what_is_gone_does_not_hold(found: dict[str, Any]) -> None:
    guard = content_guard(SOURCE, doubled)
    assert guard is not None and not content_holds(guard, {"G": found})


def test_a_version_that_knows_nothing_of_it_refuses() -> None:
    """It evaluates the condition as any other, and takes whatever is raised but an unknown name for a miss."""
    guard = content_guard(SOURCE, doubled)
    assert guard is not None
    with pytest.raises(AttributeError):
        eval(guard.condition, {"G": {"WAYS": {"one": doubled}}})
