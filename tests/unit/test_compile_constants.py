"""Every constant is accounted for: what an artifact may ask for, and what fails the build by name."""

from pathlib import Path

import pytest
import torch

from aot.compile.constants import (
    CONSTANTS_FILE,
    account_for,
    describe_parameters,
    save_lifted,
    tied_names,
    wanted_constants,
)
from aot.compile.export import Exported, export_point
from aot.compile.program import Example, Program
from aot.compile.shapes import plan_points
from aot.compile.weights import load_weights, seed_weights
from aot.errors import BackendFailed, InvalidSpec
from aot.runtime.constants import read_tensors
from aot.schema.artifact import ConstantKind
from aot.schema.recipe import Recipe


class Net(torch.nn.Module):
    """One of every kind: tied weights, a counter, a plain attribute, a literal, an unsaved buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("positions", torch.arange(4), persistent=False)
        self.gain = torch.eye(4)[:, :3].t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.second(self.first(x)) + self.positions + self.calls + self.gain.sum() + torch.tensor(0.5)


@pytest.fixture(scope="module")
def exported() -> tuple[Exported, Net]:
    module = Net().eval()
    (point,) = plan_points(Program(module=module, examples=(Example((torch.ones(2, 4),), {}),)), Recipe())
    return export_point(module, point, region="", tree=None), module


def test_every_input_of_the_program_is_wanted_with_its_kind(exported: tuple[Exported, Net]) -> None:
    wanted = wanted_constants(*exported)
    assert {name: one.meta.kind for name, one in wanted.items()} == {
        "first.weight": ConstantKind.PARAMETER,
        "second.weight": ConstantKind.PARAMETER,
        "second.bias": ConstantKind.PARAMETER,
        "calls": ConstantKind.BUFFER,
        "positions": ConstantKind.BUFFER,
        "gain": ConstantKind.CONSTANT,
        "lifted_tensor_0": ConstantKind.CONSTANT,
    }


def test_what_a_call_writes_is_marked(exported: tuple[Exported, Net]) -> None:
    assert [name for name, one in wanted_constants(*exported).items() if one.meta.mutated] == ["calls"]


def test_running_the_example_leaves_the_buffers_as_they_were(exported: tuple[Exported, Net]) -> None:
    assert exported[1].calls.item() == 0


def test_tied_names_are_recorded_both_ways(exported: tuple[Exported, Net]) -> None:
    program, module = exported
    assert tied_names(module) == {"first.weight": ("second.weight",), "second.weight": ("first.weight",)}
    assert wanted_constants(program, module)["first.weight"].meta.aliases == ("second.weight",)
    metas = {meta.name: meta.aliases for meta in describe_parameters(module)}
    assert metas["second.weight"] == ("first.weight",)
    assert set(metas) == {"first.weight", "second.weight", "second.bias", "calls", "positions"}


def test_a_lifted_constant_is_compiled_for_the_form_it_is_stored_in(exported: tuple[Exported, Net]) -> None:
    gain = wanted_constants(*exported)["gain"]
    assert exported[1].gain.stride() != (4, 1)
    assert gain.meta.stride == gain.value.stride() == (4, 1)


def test_asking_for_everything_is_accounted_for(exported: tuple[Exported, Net]) -> None:
    wanted = wanted_constants(*exported)
    names = tuple(reversed(wanted))
    assert tuple(meta.name for meta in account_for(names, wanted, region="")) == names


def test_a_tensor_made_from_the_builders_weights_fails_the_build_by_name(exported: tuple[Exported, Net]) -> None:
    wanted = wanted_constants(*exported)
    with pytest.raises(BackendFailed, match="asks for _frozen_param0, made from the builder's weights") as caught:
        account_for((*wanted, "_frozen_param0"), wanted, region="Block")
    assert caught.value.details["derived"] == ["_frozen_param0"]
    assert "freeze" in caught.value.hint


def test_a_tensor_that_became_a_literal_fails_the_build_by_name(exported: tuple[Exported, Net]) -> None:
    wanted = wanted_constants(*exported)
    with pytest.raises(BackendFailed, match=r"has second\.bias baked into its code"):
        account_for(tuple(name for name in wanted if name != "second.bias"), wanted, region="")


def test_one_name_of_a_tied_tensor_is_enough() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.ones(3))
            self.b = torch.nn.Parameter(torch.ones(3))
            self.b.data = self.a.data

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.a * self.b

    module = Tied().eval()
    (point,) = plan_points(Program(module=module, examples=(Example((torch.ones(3),), {}),)), Recipe())
    wanted = wanted_constants(export_point(module, point, region="", tree=None), module)
    assert set(wanted) == {"a", "b"}
    assert [meta.name for meta in account_for(("b",), wanted, region="")] == ["b"]


def test_lifted_constants_travel_as_a_file_that_a_pod_reads(exported: tuple[Exported, Net], tmp_path: Path) -> None:
    wanted = wanted_constants(*exported)
    assert save_lifted([one.meta for one in wanted.values()], wanted, tmp_path) == (CONSTANTS_FILE,)
    stored = read_tensors(tmp_path / CONSTANTS_FILE)
    assert set(stored) == {"gain", "lifted_tensor_0"}
    assert torch.equal(stored["gain"], exported[1].gain)


def test_without_lifted_constants_there_is_no_file(tmp_path: Path) -> None:
    assert save_lifted([], {}, tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_given_weights_are_copied_into_the_module(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    module, other = Net(), Net()
    tensors = {name: value.clone() for name, value in other.state_dict().items() if name != "second.weight"}
    save_file(tensors, str(tmp_path / "w.safetensors"))
    load_weights(module, [tmp_path / "w.safetensors"])
    assert torch.equal(module.second.weight, other.first.weight)
    assert torch.equal(module.second.bias, other.second.bias)


def test_weights_of_another_module_are_refused_naming_each(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {"first.weight": torch.ones(5, 4), "third.weight": torch.ones(2), "calls": torch.zeros(())}
    save_file(tensors, str(tmp_path / "w.safetensors"))
    with pytest.raises(InvalidSpec, match="1 missing, 1 unknown, 1 of another shape") as caught:
        load_weights(Net(), [tmp_path / "w.safetensors"])
    assert caught.value.details["missing"] == ["second.bias"]
    assert caught.value.details["unknown"] == ["third.weight"]
    assert caught.value.details["misfits"] == ["first.weight: (5, 4) for (4, 4)"]


def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"not a header")
    with pytest.raises(InvalidSpec, match="not a safetensors file"):
        load_weights(Net(), [tmp_path / "w.safetensors"])


def test_seeded_weights_repeat_and_leave_integers_alone() -> None:
    first, second, third = Net(), Net(), Net()
    for module, seed in ((first, 1), (second, 1), (third, 2)):
        seed_weights(module, seed)
    assert torch.equal(first.second.bias, second.second.bias)
    assert not torch.equal(first.second.bias, third.second.bias)
    assert torch.equal(first.positions, torch.arange(4))


def test_a_tensor_that_the_program_never_reads_is_not_missed() -> None:
    module = torch.nn.BatchNorm1d(4).eval()
    (point,) = plan_points(Program(module=module, examples=(Example((torch.ones(2, 4),), {}),)), Recipe())
    wanted = wanted_constants(export_point(module, point, region="", tree=None), module)
    asked = [name for name in wanted if name != "num_batches_tracked"]
    assert [meta.name for meta in account_for(asked, wanted, region="")] == asked
    with pytest.raises(BackendFailed, match="running_var baked"):
        account_for([name for name in asked if name != "running_var"], wanted, region="")
