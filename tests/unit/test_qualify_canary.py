"""A canary's weights come from names and a seed: no artifact has one whose module cannot hold them all at once."""

from types import SimpleNamespace

import pytest
from torch import nn

from aot.qualify.canary import hold_their_own, names_in_one_memory, put_all_synthetic
from aot.schema.artifact import ConstantKind, ConstantMeta


class Twice(nn.Module):
    """A weight that is a buffer too and is tied to the head's, beside its transpose where asked for."""

    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.head.weight = self.body.weight
        self.register_buffer("same", self.body.weight.detach())
        if turned:
            self.register_buffer("turned", self.body.weight.detach().t())


def asking(*names: str, instance: str = "", **facts: str) -> SimpleNamespace:
    shapes = {"bias": (4,), "body.bias": (4,)}
    constants = tuple(
        ConstantMeta(name=name, kind=ConstantKind.PARAMETER, dtype="float32", shape=shapes.get(name, (4, 4)), stride=())
        for name in names
    )
    return SimpleNamespace(instances=(instance,), constants=constants, facts=facts)


@pytest.mark.parametrize(
    ("asked", "turned", "its_own"),
    [
        ([asking("body.weight", "body.bias")], False, [True]),
        ([asking("body.weight", "body.bias", "turned")], True, [False]),
        ([asking("body.weight", "turned", frozen="true")], True, [True]),
        ([asking("weight", "bias", instance="body"), asking("weight", instance="head")], False, [True, True]),
        ([asking("weight", "bias", instance="body"), asking("head.weight")], False, [False, True]),
    ],
    ids=["tied", "transpose", "frozen", "of one name", "of two names"],
)
def test_weights_in_one_memory_make_no_canary_unless_they_have_one_value(
    asked: list[SimpleNamespace], turned: bool, its_own: list[bool]
) -> None:
    module = Twice(turned=turned)
    put_all_synthetic(module, asked, seed=1)  # type: ignore[arg-type]
    shared = names_in_one_memory(module)
    assert [hold_their_own(module, one, seed=1, shared=shared) for one in asked] == its_own  # type: ignore[arg-type]


def test_the_names_of_the_whole_module_are_read_once_for_all_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of hundreds of regions has an artifact for each, and a module of as many times their names."""
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(50)))
    asked = [asking("weight", "bias", instance=str(number)) for number in range(50)]
    read: list[str] = []
    names = module.named_parameters

    def counted(*given: object, **named: object) -> object:
        return (read.append(name) or (name, tensor) for name, tensor in names(*given, **named))  # type: ignore

    monkeypatch.setattr(module, "named_parameters", counted)
    shared = names_in_one_memory(module)
    assert all(hold_their_own(module, one, seed=1, shared=shared) for one in asked)  # type: ignore[arg-type]
    assert len(read) == len(module.state_dict())
