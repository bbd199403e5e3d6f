"""What a call must fulfil: hooks, gradients, graphs and coverage."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aot.bundle import StoredBundle
from aot.errors import BindingFailed, GuardFailed
from aot.runtime.compiled import MOST_WARNINGS
from aot.schema.artifact import Winner
from tests.builders import a_speed
from tests.integration.compiled_model.scaled import Scaled, load, scaled, was_compiled, x
from tests.integration.handmade import write_handmade, write_two

# what it does: hooks, gradients


def test_a_hook_added_later_is_obeyed(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    handle = model.module.inner.register_forward_hook(lambda module, args, output: output + 100)
    assert torch.equal(model(x()), (x() + 100) * 1.5 + 2)
    assert "a forward hook was added to inner" in model.last_miss
    handle.remove()
    assert was_compiled(model)


def test_gradients_that_are_recorded_are_eagers(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    model.module.requires_grad_(True)
    result = model(x())
    result.sum().backward()
    assert torch.equal(model.module.scale.grad, x().sum(0))
    assert model.last_miss == "gradients are being recorded and the weights require them"
    with torch.no_grad():
        assert was_compiled(model)
    model.module.requires_grad_(False)
    assert was_compiled(model), "grad mode alone is no reason"
    wanted = x().requires_grad_(True)
    assert model(wanted).requires_grad and "gradients" in model.last_miss


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> StoredBundle:
    return write_handmade(tmp_path_factory.mktemp("exported"))


def parametrize_inner(module: Scaled) -> None:
    module.inner = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).eval()


# exported programs: of which nothing but the graph is known


@pytest.mark.parametrize(
    ("change", "repair", "reason"),
    [
        (nn.Module.train, nn.Module.eval, "is in training mode"),
        (
            lambda module: module.inner.register_forward_hook(lambda part, args, output: output + 100),
            lambda module: module.inner._forward_hooks.clear(),
            "has forward hooks",
        ),
        (parametrize_inner, lambda module: setattr(module, "inner", nn.Identity().eval()), "has parametrizations"),
    ],
)
def test_an_exported_program_is_not_taken_for_a_module_that_does_more(
    exported: StoredBundle, change: Callable[[Scaled], Any], repair: Callable[[Scaled], Any], reason: str
) -> None:
    module, eager = scaled(), scaled()
    torch.manual_seed(0)
    change(module)
    torch.manual_seed(0)
    change(eager)
    model = load(exported, module)
    assert torch.equal(model(x()), eager(x()))
    assert reason in model.last_miss and any(reason in one for one in model.reasons)
    with pytest.raises(BindingFailed, match=reason):
        load(exported, module, fallback="raise")
    repair(module)
    assert was_compiled(model), model.last_miss


def test_an_exported_program_fits_the_graph_that_was_exported(exported: StoredBundle) -> None:
    graph = torch.export.export(scaled(), (x(),)).module()
    assert was_compiled(load(exported, graph))


# coverage


def test_a_call_outside_the_coverage_names_input_and_condition(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert not was_compiled(model, rows=33)
    assert "x: size 33 in dimension 0" in model.last_miss and "32" in model.last_miss and "args" not in model.last_miss
    assert model.counters == {
        "calls": 1,
        "compiled": 0,
        "eager": 1,
        "guard_misses": 1,
        "eager_won": 0,
        "failed": 0,
        "rebinds": 0,
    }
    assert was_compiled(model, rows=32)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3.0, "x: wanted a tensor, found 3.0"),
        ([1.0, 2.0], "x: wanted a tensor, found a list"),
        (torch.zeros(3, 5), "x: size 5 in dimension 1, wanted 4"),
    ],
)
def test_what_is_no_tensor_is_told_from_what_does_not_fit(bundle: StoredBundle, given: object, said: str) -> None:
    model = load(bundle, scaled(), fallback="raise")
    with pytest.raises(GuardFailed) as caught:
        model(given)
    assert caught.value.details["reason"].rpartition("] ")[2] == said


def test_with_raise_a_miss_raises_and_a_hit_does_not(bundle: StoredBundle, caplog: pytest.LogCaptureFixture) -> None:
    model = load(bundle, scaled(), fallback="raise")
    assert was_compiled(model)
    with pytest.raises(GuardFailed, match="x: size 40 in dimension 0, wanted 1 to 32") as caught:
        model(x(40))
    assert caught.value.details["reason"] == model.last_miss
    assert (model.counters["calls"], model.counters["guard_misses"], float(model.module.calls)) == (1, 1, 1.0)
    assert not any("eagerly" in record.getMessage() for record in caplog.records)  # nothing ran so


def test_misses_of_every_size_do_not_fill_the_log(bundle: StoredBundle, caplog: pytest.LogCaptureFixture) -> None:
    model = load(bundle, scaled())
    with caplog.at_level(logging.WARNING, logger="aot"):
        for rows in range(33, 133):
            model(x(rows))
            model(x(rows))
    assert len(caplog.records) == MOST_WARNINGS + 1
    assert "says no more" in caplog.records[-1].getMessage()
    assert model.counters["guard_misses"] == 200 and len(model._seen) == MOST_WARNINGS


def test_the_exact_coverage_is_tried_before_the_range(tmp_path: Path) -> None:
    # The object for batch 4 alone is wrong, so that its results tell who answered.
    model = load(write_two(tmp_path, right=(), wrong=("WRONG",)), scaled())
    results = [model(x(rows))[0, 0].item() - float(model.module.calls) for rows in (3, 4, 5)]
    assert results == [0.0, 0.5, 0.0]
    assert model.counters["compiled"] == 3


def test_where_eager_was_faster_eager_runs_and_nothing_is_wrong(tmp_path: Path) -> None:
    model = load(write_handmade(tmp_path, winner=Winner.EAGER), scaled(), fallback="raise")
    assert not was_compiled(model)
    assert (model.counters["eager_won"], model.counters["guard_misses"]) == (1, 0)


def test_a_call_runs_what_was_faster_at_sizes_like_its_own(tmp_path: Path) -> None:
    speeds = (a_speed(point={"batch": 1}), a_speed(compiled_us=300.0, point={"batch": 32}))
    model = load(write_handmade(tmp_path, speeds=speeds), scaled(), fallback="raise")
    for rows in (1, 2, 16, 32):
        model(x(rows))
    assert (model.counters["compiled"], model.counters["eager_won"]) == (2, 2)
    assert model.last_miss == "[batch 1..32] eager was faster in the proof at sizes like these"
