"""Weights of the live module: bound, replaced, moved, frozen."""

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from aot.bundle import StoredBundle
from aot.runtime.compiled import CompiledModel
from aot.runtime.weights import WEIGHTS_FACT, digest_weights
from aot.schema.wire.workers import Outcome
from tests.integration.compiled_model.scaled import Scaled, load, scaled, was_compiled, x
from tests.integration.handmade import write_handmade

MODE = "the training mode was changed after loading"

# weights


def test_one_bundle_serves_two_checkpoints_at_once(bundle: StoredBundle) -> None:
    first, second = load(bundle, scaled(2.0)), load(bundle, scaled(-1.0))
    assert [was_compiled(model) for model in (first, second, first, second)] == [True] * 4
    assert first.reasons == () and first.outcome is Outcome.COMPILED


def replace_parameter(module: Scaled) -> None:
    module.scale = nn.Parameter(torch.full((4,), 7.0), requires_grad=False)


def assign(module: Scaled) -> None:
    module.load_state_dict(scaled(5.0).state_dict(), assign=True)
    module.requires_grad_(False)


def replace_by_an_equal_one_and_write_into_it(module: Scaled) -> None:
    module.calls = module.calls.clone()  # one element, equal in value
    module.calls.fill_(41.0)


@pytest.mark.parametrize(
    ("change", "rebinds"),
    [
        (lambda module: module.scale.fill_(9.0), 0),
        (lambda module: module.load_state_dict(scaled(4.0).state_dict()), 0),
        (assign, 1),
        (replace_parameter, 1),
        (replace_by_an_equal_one_and_write_into_it, 1),
        (lambda module: setattr(module.scale, "data", torch.full((4,), 8.0)), 1),
        (lambda module: module.double().float(), 1),
        (lambda module: setattr(module, "inner", nn.Identity().eval()), 1),
    ],
)
def test_changed_weights_are_used_at_the_next_call(
    bundle: StoredBundle, change: Callable[[Scaled], None], rebinds: int
) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    with torch.no_grad():
        change(model.module)
    assert was_compiled(model) and model.counters["rebinds"] == rebinds


@pytest.mark.parametrize(
    ("break_it", "repair", "reason"),
    [
        (nn.Module.double, nn.Module.float, "scale: wanted dtype float32, found float64"),
        (nn.Module.train, nn.Module.eval, MODE),
        (
            lambda module: module.inner.train(),
            lambda module: module.inner.eval(),
            MODE,
        ),
        (
            lambda module: setattr(module, "inner", nn.ReLU().eval()),
            lambda module: setattr(module, "inner", nn.Identity().eval()),
            "module inner",
        ),
        (
            lambda module: setattr(module, "inner", nn.Identity()),  # in training mode
            lambda module: module.inner.eval(),
            "training mode was eval, is train",
        ),
        (
            lambda module: setattr(module, "scale", nn.Parameter(torch.ones(1), requires_grad=False)),
            lambda module: setattr(module, "scale", nn.Parameter(torch.ones(4), requires_grad=False)),
            "scale: wanted shape (4,), found (1,)",
        ),
        (
            lambda module: setattr(module, "calls", nn.Buffer(torch.zeros(1, dtype=torch.float64))),
            lambda module: setattr(module.calls, "data", torch.zeros(1)),
            "calls: wanted dtype float32, found float64",
        ),
    ],
)
def test_what_no_longer_fits_runs_eagerly_with_the_reason_until_it_is_repaired(
    bundle: StoredBundle, break_it: Callable[[Scaled], None], repair: Callable[[Scaled], None], reason: str
) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    break_it(model.module)
    assert not was_compiled(model) and reason in model.last_miss
    assert not was_compiled(model)
    repair(model.module)
    assert was_compiled(model), model.last_miss
    assert model.counters["guard_misses"] == model.counters["eager"] == 2


def test_looking_at_a_module_that_does_not_fit_binds_nothing_again(bundle: StoredBundle) -> None:
    model = load(bundle, scaled().double())
    for _ in range(5):
        assert not was_compiled(model)
    assert model.counters["rebinds"] == 0
    assert (model.outcome, len(model.reasons) > 0) == (Outcome.EAGER, True)
    model.module.float()
    assert was_compiled(model) and model.reasons == ()


def test_a_module_loaded_in_training_mode_is_compiled_once_it_is_not(bundle: StoredBundle) -> None:
    model = load(bundle, scaled().train())
    assert not was_compiled(model) and "training mode was eval, is train" in model.last_miss
    model.module.eval()
    assert was_compiled(model)


def test_weights_that_were_replaced_are_not_kept(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    storage = model.module.scale.untyped_storage()
    address = storage.data_ptr()
    del storage
    model.module.double()
    assert not was_compiled(model)
    gc.collect()
    held = [
        one
        for one in gc.get_objects()
        # By type: an export in this process leaves fake tensors, which have no address.
        if type(one) in (torch.Tensor, nn.Parameter)
        and one.layout is torch.strided
        and one.data_ptr() == address
        and one.numel()
    ]
    assert held == []


def test_a_model_that_nobody_has_any_more_is_gone_at_once(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    container = model._units[0]._bound.forms[0].variants[0].container
    gone = [weakref.ref(model), weakref.ref(container)]
    gc.disable()  # what waits for the collector holds a card's memory until then
    try:
        del model, container
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()


def test_rebind_by_hand_sees_what_kept_object_and_address(bundle: StoredBundle) -> None:
    import aot

    model = load(bundle, scaled())
    model.module.scale.data = torch.full((8,), 3.0)[:4]
    assert was_compiled(model)
    model.module.scale.data = model.module.scale.data.as_strided((4,), (2,))  # same address
    aot.rebind(model)
    assert "scale: wanted strides (1,), found (2,)" in model.reasons
    assert not was_compiled(model)


@pytest.fixture
def frozen(tmp_path: Path) -> StoredBundle:
    facts = {"frozen": "true", WEIGHTS_FACT: str(digest_weights(Frozen()))}
    return write_handmade(tmp_path, "FROZEN", "FORGETFUL", constants=(), facts=facts)


class Frozen(nn.Module):
    def __init__(self, scale: float = 1.5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), scale), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + 1


# frozen


def test_a_frozen_bundle_serves_its_own_checkpoint_and_no_other(frozen: StoredBundle) -> None:
    model, other = load(frozen, Frozen().eval()), load(frozen, Frozen(2.0).eval())
    assert torch.equal(model(x()), x() * 1.5 + 1) and model.counters["compiled"] == 1
    assert torch.equal(other(x()), x() * 2.0 + 1) and other.counters["eager"] == 1
    assert "frozen with other weights" in other.last_miss


@pytest.mark.parametrize("start", [1.5, 2.0])
def test_a_write_into_weights_is_noticed_by_a_frozen_bundle(frozen: StoredBundle, start: float) -> None:
    model = load(frozen, Frozen(start).eval())
    for scale in (start, 2.0, 1.5, 2.5, 1.5):
        model.module.scale.fill_(scale)
        before = model.counters["compiled"]
        assert torch.equal(model(x()), x() * scale + 1)
        assert model.counters["compiled"] == before + (scale == 1.5)


@pytest.mark.parametrize("bind", [CompiledModel.rebind, CompiledModel.unload])
def test_what_is_bound_or_let_go_of_while_an_export_is_under_way_is_real(
    bundle: StoredBundle, bind: Callable[[CompiledModel], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(bundle, scaled())
    failed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", failed.append)
    with FakeTensorMode(allow_non_fake_inputs=True):
        bind(model)
        gc.collect()
    assert failed == []
    assert was_compiled(model) == (bind is CompiledModel.rebind)
