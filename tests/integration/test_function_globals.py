"""Globals that a function reads: what was read at the build holds at each call, or eager answers."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch

from aot.compile.function.compile import CompiledFunction, compile_function
from aot.compile.function.describe import describe_call
from aot.compile.function.trial import try_call
from aot.compile.program import Example
from aot.compile.shapes import Point
from aot.errors import GuardFailed, LoadFailed, RunFailed, SourceNotExportable
from aot.runtime.code_guard import CODE_CONTENT
from aot.runtime.function import FunctionContainer, open_function
from aot.schema.artifact import Artifact, Coverage, CoverageKind
from aot.schema.recipe import Route
from tests.builders import a_file, an_artifact
from tests.integration import function_constants as other

pytestmark = pytest.mark.torch


class Settings:
    def __init__(self) -> None:
        self.shift = 1


LIMIT = 100
RECTIFIED = False
TABLE = {"k": 3}
SETTINGS = Settings()


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * other.SCALE


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Reads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (helper(WAYS["one"](x * self.w)) + TABLE["k"] + SETTINGS.shift).clamp(max=LIMIT)
        return torch.relu(y) if RECTIFIED else y


class Calls(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return WAYS["held"](x)


def by_factor(settings: Settings) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * settings.shift


WAYS = {"one": doubled, "held": by_factor(Settings())}


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.factor = 3


LOCKED = Locked()


class ReadsLocked(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * LOCKED.factor


@dataclass(frozen=True)
class Made:
    function: CompiledFunction
    artifact: Artifact

    def open(self, module: torch.nn.Module) -> FunctionContainer:
        return open_function(self.artifact, module, device="cpu", locate=lambda path: self.function.directory / path)


def a_point() -> Point:
    example = Example((torch.ones(4),))
    return Point(coverage=Coverage(kind=CoverageKind.EXACT), example=example, sizes=({},), ranged={})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    module, point = Reads().requires_grad_(False), a_point()
    function = compile_function(module, point, {}, into=tmp_path_factory.mktemp("globals"), tree=None)
    described = describe_call(point, try_call(module, point.example).result, parameters=("x",), written=frozenset())
    files = tuple(a_file(path, (function.directory / path).read_bytes()) for path in function.files)
    artifact = an_artifact(
        route=Route.FUNCTION, files=files, program_guards=function.guards, call=described.call, constants=()
    )
    return Made(function, artifact)


@pytest.fixture
def module() -> Reads:
    return Reads().requires_grad_(False)


def change_table(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TABLE, "k", 9)


def add_to_table(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TABLE, "k", "text")


def change_other_module(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(other, "SCALE", 5)


def change_attribute(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SETTINGS, "shift", 7)


def change_object(patch: pytest.MonkeyPatch) -> None:
    fresh = Settings()
    fresh.shift = 8
    patch.setitem(globals(), "SETTINGS", fresh)


def change_plain(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "LIMIT", 4)


def change_flag(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "RECTIFIED", True)


def remove_plain(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(globals(), "LIMIT")


CHANGES = [
    (change_table, "TABLE"),
    (add_to_table, "TABLE"),
    (change_other_module, "SCALE"),
    (change_attribute, "shift"),
    (change_object, "shift"),
    (change_plain, "LIMIT"),
    (change_flag, "RECTIFIED"),
    (remove_plain, "LIMIT"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES, ids=lambda one: getattr(one, "__name__", None))
@pytest.mark.parametrize("loaded", ["before", "after"])
def test_a_changed_global_is_a_miss_whenever_it_was_changed(
    made: Made,
    module: Reads,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
    named: str,
    loaded: str,
) -> None:
    x = torch.ones(4)
    if loaded == "before":
        change(monkeypatch)
        with pytest.raises(LoadFailed, match=named):
            made.open(module)
        return
    container = made.open(module)
    assert torch.equal(container.run((x,))[0], torch.full((4,), 8.0))
    change(monkeypatch)
    with pytest.raises(GuardFailed, match=named):
        container.run((x,))


def test_globals_that_are_as_they_were_hold(made: Made, module: Reads) -> None:
    container = made.open(module)
    with pytest.MonkeyPatch.context() as patch:
        change_plain(patch)
        with pytest.raises(GuardFailed):
            container.run((torch.ones(4),))
    assert torch.equal(container.run((torch.ones(4),))[0], module(torch.ones(4)))


def test_guards_on_values_of_globals_are_listed_and_those_on_code_stay_behind(made: Made) -> None:
    conditions = {guard.condition for guard in made.function.guards if guard.source.startswith("G[")}
    assert {"G['LIMIT'] == 100", "G['TABLE']['k'] == 3", "G['SETTINGS'].shift == 1"} <= conditions
    assert not any("helper" in condition for condition in conditions)
    assert any(held.endswith("by the fingerprint") for held in made.function.elsewhere)


def test_code_that_no_fingerprint_holds_is_refused_by_name(tmp_path: Path) -> None:
    """A function that holds an object: its code is not all that it does."""
    with pytest.raises(SourceNotExportable, match=r"cannot be saved.*WAYS.*held.*a function") as raised:
        compile_function(Calls(), a_point(), {}, into=tmp_path, tree=None)
    assert "defaults or closure" in raised.value.hint


def test_a_function_in_a_dictionary_is_held_by_what_it_does(
    made: Made, module: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    [guard] = [guard for guard in made.function.guards if guard.source == "G['WAYS']['one']"]
    assert guard.kind == CODE_CONTENT and guard.condition.startswith("G['WAYS']['one'].content == ")
    # Another process has an equal function, and it is another object.
    monkeypatch.setitem(WAYS, "one", FunctionType(doubled.__code__, doubled.__globals__, "doubled"))
    container = made.open(module)
    assert torch.equal(container.run([torch.ones(4)])[0], module(torch.ones(4)))
    monkeypatch.setitem(WAYS, "one", lambda x: x * 4)
    with pytest.raises(LoadFailed, match=r"does not hold: G\['WAYS'\]\['one'\]\.content"):
        made.open(module)
    monkeypatch.delitem(WAYS, "one")
    with pytest.raises(LoadFailed, match=r"does not hold: G\['WAYS'\]"):
        made.open(module)


def test_a_value_that_cannot_be_saved_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SourceNotExportable, match=r"cannot be saved.*LOCKED"):
        compile_function(ReadsLocked(), a_point(), {}, into=tmp_path, tree=None)


@pytest.fixture
def container(made: Made, module: Reads) -> Iterator[FunctionContainer]:
    yield made.open(module)


def raising(*_: Any, **__: Any) -> Any:
    raise ValueError("not this")


def test_what_a_guard_raises_is_a_failed_run(container: FunctionContainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container._function, "guard_check", raising)
    with pytest.raises(RunFailed, match="ValueError: not this"):
        container.run((torch.ones(4),))


def test_a_call_of_another_form_is_a_failed_run(container: FunctionContainer) -> None:
    with pytest.raises(RunFailed):
        container.run((torch.ones(4), torch.ones(4)))


def test_a_guard_that_cannot_be_explained_is_a_miss_all_the_same(
    container: FunctionContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container._function._artifacts.guard_manager, "check_verbose", raising)
    change_plain(monkeypatch)
    with pytest.raises(GuardFailed, match="a guard does not hold"):
        container.run((torch.ones(4),))


def test_a_closed_function_says_so(container: FunctionContainer) -> None:
    container.close()
    with pytest.raises(RunFailed, match="is closed"):
        container.run((torch.ones(4),))
