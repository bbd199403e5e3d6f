"""Regions: one artifact, each instance on its own weights."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from aot.bundle import StoredBundle
from aot.runtime.fingerprint import fingerprint
from aot.schema.wire.workers import Outcome
from tests.integration.compiled_model.scaled import Scaled, load, x
from tests.integration.handmade import write_handmade


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Scaled(2.0), Scaled(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))


@pytest.fixture(scope="module")
def pair_bundle(tmp_path_factory: pytest.TempPathFactory) -> StoredBundle:
    place = tmp_path_factory.mktemp("pair")
    print_of = fingerprint(Pair().eval())
    return write_handmade(place, fingerprint=print_of, region="scaled", instances=("one", "two"))


def test_each_instance_runs_on_its_own_weights_until_unload(pair_bundle: StoredBundle) -> None:
    module, eager = Pair().eval(), Pair().eval()
    model = load(pair_bundle, module)
    assert torch.equal(model(x()), eager(x())) and torch.equal(module(x()), eager(x()))
    assert model.counters["compiled"] == model.counters["calls"] == 4
    module.two.scale = nn.Parameter(torch.full((4,), 5.0), requires_grad=False)
    eager.two.scale.fill_(5.0)
    assert torch.equal(model(x()), eager(x())) and model.counters["rebinds"] == 1
    model.unload()
    assert "forward" not in module.one.__dict__ and "forward" not in module.two.__dict__
    assert torch.equal(model(x()), eager(x())) and model.counters["compiled"] == 6


def test_a_layer_that_was_exchanged_inside_a_region_is_compared_again(pair_bundle: StoredBundle) -> None:
    model = load(pair_bundle, Pair().eval())
    model.module.one.inner = nn.Identity().eval()  # the same program still, though `forward` is ours by now
    model(x())
    assert model.counters["compiled"] == 2, model.last_miss
    model.module.one.inner = nn.ReLU().eval()
    model(x())
    assert model.counters["compiled"] == 3 and model.last_miss.startswith("one: module")
    assert model.outcome is Outcome.PARTLY


def test_only_the_misfitting_instance_runs_eagerly(pair_bundle: StoredBundle) -> None:
    model = load(pair_bundle, Pair().eval())
    model.module.two.scale = nn.Parameter(torch.ones(1), requires_grad=False)
    assert torch.equal(model(x()), (x() * 2 + 1) + 1)
    assert model.counters["compiled"] == model.counters["eager"] == 1
    assert model.reasons == ("two: scale: wanted shape (4,), found (1,)",)


def test_a_reason_that_all_instances_share_is_told_once(pair_bundle: StoredBundle) -> None:
    model = load(pair_bundle, Pair().train())
    assert model.reasons == ("training mode was eval, is train",)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_of_a_module_with_regions_is_on_its_own(
    pair_bundle: StoredBundle, copied: Callable[[nn.Module], Pair]
) -> None:
    model = load(pair_bundle, Pair().eval())
    twin = copied(model.module)
    twin.one.scale.fill_(10.0)
    assert torch.equal(twin(x()), (x() * 10 + 1) * 3 + 1)
    assert model.counters["calls"] == 0


def test_two_bundles_on_one_module_are_unloaded_in_any_order(pair_bundle: StoredBundle) -> None:
    module = Pair().eval()
    first, second = load(pair_bundle, module), load(pair_bundle, module)
    assert second.reasons == ()
    first.unload()
    assert torch.equal(module(x()), Pair().eval()(x()))
    assert (first.counters["calls"], second.counters["compiled"]) == (0, 2)
    second.unload()
    assert torch.equal(module(x()), (x() * 2 + 2) * 3 + 2)


def test_unload_lets_go_of_the_artifact_also_where_another_forward_calls_ours(pair_bundle: StoredBundle) -> None:
    module = Pair().eval()
    model = load(pair_bundle, module)
    ours = module.one.forward
    module.one.forward = lambda *args: ours(*args)  # type: ignore[method-assign]
    containers = [weakref.ref(unit._bound.forms[0].variants[0].container) for unit in model._units]
    assert torch.equal(module(x()), Pair().eval()(x()))
    model.unload()
    gc.collect()
    assert [one() for one in containers] == [None, None]
    assert torch.equal(module(x()), (x() * 2 + 2) * 3 + 2)


def test_a_trace_of_a_module_with_regions_is_that_of_the_eager_module(pair_bundle: StoredBundle) -> None:
    model = load(pair_bundle, Pair().eval())
    traced = torch.jit.trace(model.module, (x(),), check_trace=False)
    assert model.counters["eager"] == 2 and "is tracing" in model.last_miss
    model.module.one.calls.zero_()
    model.module.two.calls.zero_()
    assert torch.equal(traced(x(5) + 7), Pair().eval()(x(5) + 7))
