"""Which live tensors an artifact gets, what is refused by name, and which later changes are noticed."""

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from aot.compile.constants import describe_parameters
from aot.errors import LoadFailed
from aot.runtime.bind import Binder
from aot.runtime.binding import BindingPlan, plan_binding
from aot.runtime.slots import ConstantSlot
from aot.runtime.watch import Conduct, Watch
from aot.schema.artifact import ConstantKind, ConstantMeta
from tests.builders import an_artifact


class Net(nn.Module):
    """An embedding tied to the head, a layer in a list, a buffer that calls write to, one that they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.zeros(3, 4), persistent=False)


def a_slot(name: str, **changes: Any) -> ConstantSlot:
    found = {"kind": None, "dtype": "float32", "storage_bytes": None, "folded": False}
    return ConstantSlot(name=name.replace(".", "_"), fqn=name, **(found | changes))


def a_meta(name: str, tensor: torch.Tensor, kind: ConstantKind, **changes: Any) -> ConstantMeta:
    found = {"dtype": "float32", "shape": tuple(tensor.shape), "stride": tensor.stride()}
    return ConstantMeta(name=name, kind=kind, **(found | changes))


LIFTED = {"lifted_0": torch.ones(4)}


def recorded(module: nn.Module) -> tuple[ConstantMeta, ...]:
    """What building `Net` would record."""
    parameters = [
        a_meta(name, tensor, ConstantKind.PARAMETER, aliases=("head.weight",) if name == "embed.weight" else ())
        for name, tensor in module.named_parameters()
    ]
    buffers = [
        a_meta(name, tensor, ConstantKind.BUFFER, mutated=name == "count") for name, tensor in module.named_buffers()
    ]
    return (*parameters, *buffers, a_meta("lifted_0", LIFTED["lifted_0"], ConstantKind.CONSTANT))


def plan(module: nn.Module, *, metas: tuple[ConstantMeta, ...] | None = None, **changes: Any) -> Any:
    metas = recorded(Net()) if metas is None else metas
    slots = changes.pop("slots", [a_slot(meta.name) for meta in metas])
    return plan_binding(slots, module, constants=metas, **({"lifted": LIFTED, "device": "cpu"} | changes))


def test_a_fitting_module_gives_its_own_tensors_and_the_lifted_constants() -> None:
    net = Net()
    found = plan(net)
    assert isinstance(found, BindingPlan)
    assert set(found.tensors) == {"embed.weight", "layers.0.weight", "layers.0.bias", "count", "table", "lifted_0"}
    assert found.tensors["layers.0.weight"] is net.layers[0].weight
    assert found.tensors["count"] is net.count
    assert found.tensors["lifted_0"] is LIFTED["lifted_0"]


def test_names_are_relative_to_the_given_instance() -> None:
    net = Net()
    metas = tuple(a_meta(name, tensor, ConstantKind.PARAMETER) for name, tensor in net.layers[0].named_parameters())
    assert plan(net.layers[0], metas=metas).tensors["weight"] is net.layers[0].weight


def test_every_misfit_is_named_at_once() -> None:
    net = Net()
    net.layers[0].weight = nn.Parameter(torch.zeros(5, 4))
    net.layers[0].bias = None
    net.count = net.count.double()
    del net.table
    assert plan(net, lifted={}) == (
        "layers.0.weight: wanted shape (4, 4), found (5, 4)",
        "layers.0.bias: no such parameter",
        "count: wanted dtype float32, found float64",
        "table: no such buffer",
        "lifted_0: no such constant",
    )


def test_names_that_only_the_artifact_or_only_the_manifest_knows_are_refused() -> None:
    slots = [a_slot(meta.name) for meta in recorded(Net()) if meta.name != "table"]
    assert plan(Net(), slots=[*slots, a_slot("_frozen_param0"), a_slot("folded", folded=True)]) == (
        "_frozen_param0: the artifact asks for it, its manifest does not list it",
        "table: the manifest lists it, the artifact does not ask for it",
    )


def test_a_manifest_that_contradicts_the_artifact_is_refused() -> None:
    slots = [a_slot(meta.name, dtype="float16" if meta.name == "table" else None) for meta in recorded(Net())]
    assert plan(Net(), slots=slots) == ("table: the artifact wants dtype float16, its manifest says float32",)


class Tracked(torch.Tensor): ...


def transpose(net: Net) -> None:
    net.layers[0].weight = nn.Parameter(net.layers[0].weight.t())


def subclass(net: Net) -> None:
    net.table = net.table.as_subclass(Tracked)


def to_sparse(net: Net) -> None:
    net.table = net.table.to_sparse()


def negate(net: Net) -> None:
    net.table = torch._neg_view(net.table)


def to_meta(net: Net) -> None:
    net.table = net.table.to("meta")


def free_memory(net: Net) -> None:
    net.table.untyped_storage().resize_(0)


def parameter_as_buffer(net: Net) -> None:
    weight = net.layers[0].weight
    del net.layers[0].weight
    net.layers[0].register_buffer("weight", weight.data)


def wrap(net: Net) -> None:
    net.layers[0] = nn.Sequential(net.layers[0])


def untie(net: Net) -> None:
    net.head.weight = nn.Parameter(net.head.weight.detach().clone())


def remove_tied(net: Net) -> None:
    del net.head


def share_written_memory(net: Net) -> None:
    net.count = net.table[0, 0]


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (transpose, ("layers.0.weight: wanted strides (4, 1), found (1, 4)",)),
        (subclass, ("table: wanted a plain tensor, found a Tracked",)),
        (to_sparse, ("table: wanted plain strided storage, found a sparse, quantized, conjugated or negated tensor",)),
        (negate, ("table: wanted plain strided storage, found a sparse, quantized, conjugated or negated tensor",)),
        (to_meta, ("table: wanted device cpu, found meta",)),
        (free_memory, ("table: its memory has been released",)),
        (parameter_as_buffer, ("layers.0.weight: no such parameter",)),
        (wrap, ("layers.0.weight: no such parameter", "layers.0.bias: no such parameter")),
        (untie, ("head.weight: no longer tied to embed.weight, which the artifact uses in its place",)),
        (remove_tied, ("head.weight: no such parameter, it was tied to embed.weight",)),
        (share_written_memory, ("count: the artifact writes to it, and it shares memory with table",)),
    ],
)
def test_what_would_compute_garbage_is_refused(change: Callable[[Net], None], reasons: tuple[str, ...]) -> None:
    net = Net()
    change(net)
    assert plan(net) == reasons


def test_a_tie_of_equal_memory_is_a_tie() -> None:
    net = Net()
    net.head.weight = nn.Parameter(net.embed.weight.detach())
    assert isinstance(plan(net), BindingPlan)


class Twice(nn.Linear):
    """A weight that is a buffer as well, and as its transpose another one."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.register_buffer("same", self.weight.detach())
        self.register_buffer("turned", self.weight.detach().t())


def test_a_parameter_may_be_tied_to_a_buffer_and_lie_beside_its_own_transpose() -> None:
    twice = Twice()
    metas = describe_parameters(twice)
    assert {meta.name: meta.aliases for meta in metas} == {"weight": ("same",), "same": ("weight",), "turned": ()}
    assert isinstance(plan(twice, metas=metas), BindingPlan)
    twice.same = twice.same.clone()
    assert plan(twice, metas=metas[:1]) == ("same: no longer tied to weight, which the artifact uses in its place",)
    del twice.same
    assert plan(twice, metas=metas)[-1] == "same: no such buffer, it was tied to weight"


def test_strides_of_dimensions_with_one_element_do_not_matter() -> None:
    layer = nn.Linear(4, 1)
    meta = a_meta("weight", layer.weight, ConstantKind.PARAMETER, stride=(777, 1))
    assert isinstance(plan(layer, metas=(meta,)), BindingPlan)


def test_a_lifted_constant_is_checked_like_any_other() -> None:
    assert plan(Net(), lifted={"lifted_0": torch.ones(5)}) == ("lifted_0: wanted shape (4,), found (5,)",)


def test_constants_of_the_cpu_stay_there_beside_a_gpu() -> None:
    layer = nn.Linear(4, 1, bias=False)
    metas = (a_meta("weight", layer.weight, ConstantKind.PARAMETER, device="cuda"),)
    assert plan(layer, metas=metas, device="cuda:1") == ("weight: wanted device cuda:1, found cpu",)
    assert isinstance(
        plan(layer, metas=(a_meta("weight", layer.weight, ConstantKind.PARAMETER),), device="cuda:1"), BindingPlan
    )


def replace_parameter(net: Net) -> None:
    net.layers[0].weight = nn.Parameter(net.layers[0].weight.detach().clone())


def replace_by_the_same_memory(net: Net) -> None:
    net.layers[0].weight = nn.Parameter(net.layers[0].weight.detach())


def delete_parameter(net: Net) -> None:
    del net.layers[0].bias


def parameter_to_none(net: Net) -> None:
    net.layers[0].bias = None


def replace_buffer(net: Net) -> None:
    net.count = torch.ones(())


def replace_submodule(net: Net) -> None:
    net.layers[0] = nn.Linear(4, 4)


def replace_list(net: Net) -> None:
    net.layers = nn.ModuleList([nn.Linear(4, 4)])


def assign_state(net: Net) -> None:
    net.load_state_dict({name: tensor.clone() for name, tensor in net.state_dict().items()}, assign=True)


def set_data(net: Net) -> None:
    net.layers[0].weight.data = torch.zeros(4, 4)


def swap(net: Net) -> None:
    torch.utils.swap_tensors(net.layers[0].weight, nn.Parameter(torch.zeros(4, 4)))


def move_storage(net: Net) -> None:
    net.table.untyped_storage().resize_(1 << 20)


@pytest.mark.parametrize(
    "change",
    [
        replace_parameter,
        replace_by_the_same_memory,
        delete_parameter,
        parameter_to_none,
        replace_buffer,
        replace_submodule,
        replace_list,
        assign_state,
        untie,
        set_data,
        swap,
        move_storage,
        lambda net: net.double(),
        lambda net: net.to(torch.bfloat16),
        lambda net: net.layers.half(),
        lambda net: net.to("meta"),
        lambda net: net.to_empty(device="cpu"),
    ],
)
def test_a_change_of_what_is_bound_is_noticed(change: Callable[[Net], None]) -> None:
    net = Net()
    watch = Watch(net)
    change(net)
    assert not watch.is_current()


def test_a_functional_call_is_noticed_while_it_lasts() -> None:
    net, seen = Net(), []
    watch = Watch(net)
    net.forward = lambda: seen.append(watch.is_current())
    torch.func.functional_call(net, {"layers.0.weight": torch.zeros(4, 4)}, ())
    assert seen == [False] and watch.is_current()


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.load_state_dict(Net().state_dict()),
        lambda net: net.layers[0].weight.detach().mul_(2),
        lambda net: net.count.add_(1),
        lambda net: net.to(torch.float32),
        lambda net: net.requires_grad_(False),
        lambda net: net.eval(),
    ],
)
def test_what_leaves_the_memory_in_place_needs_no_new_plan(change: Callable[[Net], None]) -> None:
    net = Net()
    watch = Watch(net)
    change(net)
    assert watch.is_current()


@pytest.mark.parametrize(
    "change",
    [
        replace_parameter,
        set_data,
        replace_submodule,
        lambda net: net.train(),
        lambda net: net.layers.train(),
        lambda net: net.layers[0].register_forward_pre_hook(lambda *_: None),
        lambda net: net.register_forward_hook(lambda *_: None),
    ],
)
def test_one_look_sees_what_is_held_and_how_it_behaves(change: Callable[[Net], object]) -> None:
    net = Net().eval()
    is_settled = Watch(net).with_conduct(Conduct(net))
    assert is_settled() and is_settled()
    change(net)
    assert not is_settled() and not is_settled()


def test_one_look_is_at_peace_again_when_a_change_has_ended() -> None:
    net = Net().eval()
    is_settled = Watch(net).with_conduct(Conduct(net))
    handle = net.register_forward_hook(lambda *_: None)
    net.train()
    assert not is_settled()
    net.eval()
    assert not is_settled()
    handle.remove()
    assert is_settled()


def test_a_new_plan_after_a_change_takes_what_is_there_now() -> None:
    net = Net()
    watch = Watch(net)
    replace_parameter(net)
    assert not watch.is_current()
    assert plan(net).tensors["layers.0.weight"] is net.layers[0].weight and Watch(net).is_current()


def test_a_copy_of_the_module_has_no_part_in_the_plan() -> None:
    net = Net()
    watch, copy = Watch(net), deepcopy(net)
    replace_parameter(copy)
    assert watch.is_current() and isinstance(plan(copy), BindingPlan)


def test_an_artifact_that_cannot_be_opened_is_a_reason_with_the_way_out() -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise LoadFailed("model.so cannot be mapped: mounted noexec", hint="set AOT_CACHE_DIR to another place")

    opener = SimpleNamespace(trial=lambda *_: None, open=refuse)
    likeness = SimpleNamespace(differences=lambda: (), is_current=lambda: True)
    bound = Binder((an_artifact(),), nn.Linear(4, 4), opener, likeness)()  # type: ignore[arg-type]
    said = "model.so cannot be mapped: mounted noexec; try: set AOT_CACHE_DIR to another place"
    assert (bound.forms, bound.reasons, bound.against) == ((), (said,), (said,))
