"""A live module in the place of an exported program: what is known of the program is compared, the rest is tried.

On a hand-written object, `f(x) = x * scale + calls` after `calls += 1`; one of a real build, through the whole
service, is in `test_exported_source.py`.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from aot.bundle import StoredBundle
from aot.compile.strip import open_program, strip_program
from aot.errors import BindingFailed, GuardFailed
from aot.runtime.compiled import CompiledModel
from aot.runtime.load import load_bundle
from aot.runtime.program import explain_program, is_the_graph
from aot.runtime.trial import UNLIKE
from aot.schema.factor import Fingerprint
from aot.schema.recipe import Randomness, Recipe
from aot.schema.wire.workers import Outcome
from tests.integration.handmade import write_handmade

FACTORS = (
    "program",
    "graph",
    "module:",
    "module:parts",
    "module:parts.*",
    "constants:gain",
    "constants:lifted_tensor_0",
)


class Scaled(nn.Module):
    """The hand-written object's module; `shift`, which no export tells of, is part of neither graph nor weights."""

    def __init__(self, scale: float = 1.5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), scale), requires_grad=False)
        self.register_buffer("calls", torch.zeros(1))
        self.parts = nn.ModuleList((nn.Identity(), nn.Dropout()))
        self.gain = torch.ones(4)
        self.shift = 0.0
        self.eager_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.eager_calls += 1
        self.calls += 1
        for part in self.parts:
            x = part(x)
        return x * self.scale * self.gain * torch.tensor([1.0, 1.0, 1.0, 1.0]) + self.calls + self.shift


class Other(Scaled):
    pass


def scaled(scale: float = 1.5) -> Scaled:
    return Scaled(scale).eval()


def x(rows: int = 3) -> torch.Tensor:
    return torch.arange(4.0 * rows).reshape(rows, 4)


def identity_of(module: nn.Module, place: Path) -> Fingerprint:
    """What a build records of the module's export."""
    batch = torch.export.Dim("batch", min=1, max=32)
    torch.export.save(torch.export.export(module, (x(),), dynamic_shapes={"x": {0: batch}}), place / "full.pt2")
    strip_program(place / "full.pt2", place / "stripped.pt2")
    identity = open_program(place / "stripped.pt2", seed=1).identity
    assert identity is not None
    return identity


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Fingerprint:
    return identity_of(scaled(), tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def bundle(identity: Fingerprint, tmp_path_factory: pytest.TempPathFactory) -> StoredBundle:
    return write_handmade(tmp_path_factory.mktemp("bundle"), fingerprint=identity)


def load(bundle: StoredBundle, module: nn.Module, **options: str) -> CompiledModel:
    return load_bundle(bundle.directory, module, verify=False, **options)


# what is compared


def test_classes_and_constants_are_recorded_and_weights_are_not(identity: Fingerprint, tmp_path: Path) -> None:
    texts = {factor.name: factor.text for factor in identity.factors}
    assert set(texts) == set(FACTORS)
    assert texts["module:parts.*"] == '{"parts.0":null,"parts.1":"torch.nn.modules.dropout.Dropout"}'
    assert identity_of(scaled(9.0), tmp_path) == identity


def add_module(module: Scaled) -> None:
    module.more = nn.ReLU()


def lose_module(module: Scaled) -> None:
    del module.parts[1]


def replace_module(module: Scaled) -> None:
    module.parts[1] = nn.ReLU()


def change_constant(module: Scaled) -> None:
    module.gain = torch.full((4,), 2.0)


def lose_constant(module: Scaled) -> None:
    del module.gain


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add_module, "module more was not there: torch.nn.modules.activation.ReLU"),
        (lose_module, "module parts.1 is gone: torch.nn.modules.dropout.Dropout"),
        (
            replace_module,
            "module parts.1 was torch.nn.modules.dropout.Dropout, is torch.nn.modules.activation.ReLU",
        ),
        (
            change_constant,
            "the tensor gain, which the program holds as a constant, has other values in the live module",
        ),
        (lose_constant, "the tensor gain, which the program holds as a constant, is no tensor of the live module"),
    ],
)
def test_a_module_that_differs_from_what_was_exported_is_refused_with_the_reason(
    bundle: StoredBundle, change: Callable[[Scaled], None], reason: str
) -> None:
    module = scaled()
    change(module)
    model = load(bundle, module.eval())
    assert (model.outcome, model.reasons) == (Outcome.EAGER, (reason,))
    with pytest.raises(BindingFailed, match="does not fit the live module"):
        load(bundle, module, fallback="raise")


def test_a_module_of_another_class_is_refused(bundle: StoredBundle) -> None:
    model = load(bundle, Other().eval())
    (reason,) = model.reasons
    assert reason.startswith("the module itself was ") and reason.endswith(".Other")
    assert torch.equal(model(x()), scaled()(x()))


def test_a_class_is_the_same_in_a_file_of_another_name(identity: Fingerprint) -> None:
    moved = type("Scaled", (Scaled,), {"__qualname__": "Scaled", "__module__": "__main__"})
    assert explain_program(identity, moved().eval()) == ()
    elsewhere = type("Scaled", (Scaled,), {"__qualname__": "Inner.Scaled", "__module__": "__main__"})
    assert explain_program(identity, elsewhere().eval()) != ()


def test_the_graph_itself_fits_and_needs_no_trial(bundle: StoredBundle) -> None:
    graph = torch.export.export(scaled(), (x(),)).module()
    model = load(bundle, graph)
    assert model.reasons == () and "call" not in vars(model._units[0])
    other = scaled()
    other.gain = torch.full((4,), 2.0)
    assert "gain" in load(bundle, torch.export.export(other, (x(),)).module()).reasons[0]


def test_another_graph_does_not_fit(bundle: StoredBundle) -> None:
    class Added(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    graph = torch.export.export(Added().eval(), (x(),)).module()
    assert load(bundle, graph).reasons == ("the live module is a graph, and not the one that was compiled",)


class Nested(nn.Module):
    """Its operation `inner` is in a graph inside the graph."""

    def __init__(self, inner: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner = inner


class Branching(Nested):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def above(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 2, lambda x: self.inner(x), lambda x: x.cos(), (x,))

        return torch.cond(x.sum() > 0, above, lambda x: x.exp(), (x,))


class WithoutGradients(Nested):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            inner = self.inner(x * 2)
        return inner + x


@pytest.mark.parametrize("kind", [Branching, WithoutGradients])
def test_a_graph_with_another_operation_in_a_graph_inside_is_another_graph(kind: type[Nested], tmp_path: Path) -> None:
    identity = identity_of(kind(torch.sin).eval(), tmp_path)
    batch = torch.export.Dim("batch", min=1, max=32)
    for inner, same in ((torch.sin, True), (torch.tanh, False)):
        program = torch.export.export(kind(inner).eval(), (x(),), dynamic_shapes={"x": {0: batch}})
        assert is_the_graph(identity, program.module()) is same


# what is tried


def test_the_first_call_runs_both_ways_and_later_calls_do_not(bundle: StoredBundle) -> None:
    module, eager = scaled(4.0), scaled(4.0)
    model = load(bundle, module)
    for call in (1, 2, 3):
        assert torch.equal(model(x()), eager(x()))
        assert (module.eager_calls, module.calls.item()) == (1, call)
    assert model.counters["compiled"] == 3 and model.reasons == ()


def test_a_module_that_computes_something_else_runs_eagerly_from_its_first_call_on(bundle: StoredBundle) -> None:
    module, eager = scaled(), scaled()
    module.shift = eager.shift = 0.5
    model = load(bundle, module)
    assert model.outcome is Outcome.COMPILED, "nothing known speaks against it"
    for call in (1, 2):
        assert torch.equal(model(x()), eager(x()))
        assert module.calls.item() == call
    assert (model.outcome, model.counters["compiled"], model.counters["eager"]) == (Outcome.EAGER, 0, 2)
    assert model.reasons[0].startswith(f"{UNLIKE}: output 0: largest error 0.5")


def test_with_fallback_raise_such_a_module_raises(bundle: StoredBundle) -> None:
    module = scaled()
    module.shift = 0.5
    model = load(bundle, module, fallback="raise")
    for _ in range(2):
        with pytest.raises(GuardFailed, match="first call gave other results"):
            model(x())
    assert module.calls.item() == 0, "nothing of the trial is left in the module"


def add_in_place(module: Scaled) -> None:
    module.seen += 1


def replace_buffer(module: Scaled) -> None:
    module.seen = module.seen + 1


def make_buffer(module: Scaled) -> None:
    module.late = torch.ones(2)


def write_twice(module: Scaled) -> None:
    module.calls += 1
    module.shift -= 1  # the result stays as it was


def write_parameter(module: Scaled) -> None:
    with torch.no_grad():
        module.scale.mul_(1.0)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (add_in_place, "buffer seen is written eagerly, and not by compiled code"),
        (replace_buffer, "buffer seen is written eagerly, and not by compiled code"),
        (make_buffer, "buffer late is written eagerly, and not by compiled code"),
        (write_twice, "buffer calls: largest error 1"),
        (write_parameter, "parameter scale is written eagerly"),
    ],
)
def test_a_module_that_writes_what_compiled_code_does_not_runs_eagerly_and_writes_once(
    bundle: StoredBundle, monkeypatch: pytest.MonkeyPatch, write: Callable[[Scaled], None], reason: str
) -> None:
    def with_state(module: Scaled) -> Scaled:
        module.register_buffer("seen", torch.zeros(()))
        module.register_buffer("late", None)
        return module

    forward = Scaled.forward

    def forward_and_write(self: Scaled, x: torch.Tensor) -> torch.Tensor:
        write(self)
        return forward(self, x)

    module, eager = with_state(scaled()), with_state(scaled())
    model = load(bundle, module)
    monkeypatch.setattr(Scaled, "forward", forward_and_write)
    for _ in range(2):
        model(x())
        eager(x())
        assert torch.equal(module.calls, eager.calls) and torch.equal(module.seen, eager.seen)
    assert (model.outcome, model.counters["eager"]) == (Outcome.EAGER, 2)
    assert model.reasons[0].startswith(f"{UNLIKE}: {reason}")


def test_a_module_that_raises_is_left_to_raise(bundle: StoredBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Scaled, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not today")

    module = scaled()
    model = load(bundle, module)
    monkeypatch.setattr(Scaled, "forward", fail)
    with pytest.raises(RuntimeError, match="not today"):
        model(x())
    assert "eagerly it raises RuntimeError: not today" in model.last_miss


def test_a_call_that_is_answered_eagerly_is_no_trial(bundle: StoredBundle) -> None:
    module = scaled()
    model = load(bundle, module)
    model(x(40))  # outside the coverage
    model(x().requires_grad_(True))
    assert (model.counters["guard_misses"], module.eager_calls) == (2, 2)
    model(x())
    assert (model.counters["compiled"], module.eager_calls) == (1, 3)
    model(x())
    assert (model.counters["compiled"], module.eager_calls) == (2, 3)


def test_the_trial_works_under_inference_mode(bundle: StoredBundle) -> None:
    module, eager = scaled(), scaled()
    model = load(bundle, module)
    with torch.inference_mode():
        assert torch.equal(model(x()), eager(x()))
    assert torch.equal(model(x()), eager(x()))
    assert model.counters["compiled"] == 2


def test_a_module_in_training_mode_is_tried_once_it_is_not(bundle: StoredBundle) -> None:
    module = scaled().train()
    model = load(bundle, module)
    model(x())
    assert "training mode" in model.last_miss
    module.eval()
    eager = scaled()
    eager(x())
    assert torch.equal(model(x()), eager(x()))
    assert (model.counters["compiled"], module.calls.item()) == (1, 2)


def test_threads_that_come_first_together_are_tried_once(bundle: StoredBundle) -> None:
    module = scaled()
    model = load(bundle, module)
    ready = threading.Barrier(4)

    def call() -> None:
        ready.wait()
        model(x())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (model.counters["compiled"], module.eager_calls, module.calls.item()) == (4, 1, 4)


def test_a_program_that_draws_random_numbers_cannot_be_tried(identity: Fingerprint, tmp_path: Path) -> None:
    unchecked = write_handmade(tmp_path, fingerprint=identity, recipe=Recipe(random=Randomness.UNCHECKED))
    module = scaled()
    model = load(unchecked, module)
    model(x())
    assert (model.counters["compiled"], module.eager_calls) == (1, 0)
