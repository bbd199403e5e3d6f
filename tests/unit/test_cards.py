"""Which card a child gets, and that it is the one that the profile describes."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.compile.card import check_card
from aot.environment.cards import card_variables
from aot.errors import InvalidProfile
from aot.qualify.children import Proving
from aot.schema.profile import Device, Profile
from aot.schema.recipe import Recipe
from aot.schema.spec import Limits
from aot.source import OpenedSource
from tests.builders import a_gpu_profile, a_profile


@pytest.mark.parametrize(
    ("given", "handed_on"),
    [
        ({}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ({"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "3"}),
        (
            {"CUDA_VISIBLE_DEVICES": "GPU-dddd"},
            {"CUDA_VISIBLE_DEVICES": "GPU-dddd", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "PATH": "/bin"},
            {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
        ),
        ({"ROCR_VISIBLE_DEVICES": "1"}, {"ROCR_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    ],
)
def test_a_child_is_given_its_parents_choice_and_an_order_where_no_number_depends_on_it(
    given: dict[str, str], handed_on: dict[str, str]
) -> None:
    assert card_variables(given) == handed_on


def a_card(monkeypatch: pytest.MonkeyPatch, name: str, major: int = 9, minor: int = 0) -> None:
    found = SimpleNamespace(name=name, major=major, minor=minor)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: found)


def of_h100(mig: str | None = None) -> Profile:
    device = Device(sku="NVIDIA H100 80GB HBM3", sm_count=132, memory_bytes=80 << 30, mig=mig)
    return a_gpu_profile(device=device)


def test_the_profiles_own_card_and_a_slice_of_it_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    a_card(monkeypatch, "NVIDIA H100 80GB HBM3")
    check_card(of_h100())
    a_card(monkeypatch, "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    check_card(of_h100("1g.10gb"))
    check_card(a_profile())


@pytest.mark.parametrize("card", [("NVIDIA L4", 8, 9), ("NVIDIA H200", 9, 0)])
def test_another_card_is_refused_by_name_and_says_how_to_choose(
    card: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_card(monkeypatch, *card)
    with pytest.raises(InvalidProfile, match=rf"of NVIDIA H100 80GB HBM3 \(cuda:sm_90\), .* is {card[0]}") as raised:
        check_card(of_h100())
    assert "CUDA_VISIBLE_DEVICES" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("1g.10gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
        ("1g.10gb", "NVIDIA H100 80GB HBM3"),
        (None, "NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
    ],
)
def test_another_slice_and_a_whole_card_in_place_of_a_slice_are_refused(
    wanted: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_card(monkeypatch, found)
    name = f"NVIDIA H100 80GB HBM3 MIG {wanted}" if wanted else "NVIDIA H100 80GB HBM3"
    with pytest.raises(InvalidProfile, match=rf"of {name} \(cuda:sm_90\), .* here is {found} \(") as raised:
        check_card(of_h100(wanted))
    assert "MIG-<uuid>" in (raised.value.hint or "")


def test_a_gpu_build_where_torch_sees_no_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InvalidProfile, match="torch sees no card here"):
        check_card(of_h100())


def test_a_proof_runs_on_the_card_that_its_worker_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-dddd")

    def environment(profile: Profile) -> Mapping[str, str]:
        proving = Proving(
            source=OpenedSource(None, "", None, ()),
            scratch=tmp_path,
            recipe=Recipe(),
            profile=profile,
            limits=Limits(),
            sandbox=None,
        )
        return proving._environment(tmp_path)

    assert environment(of_h100())["CUDA_VISIBLE_DEVICES"] == "GPU-dddd"
    assert "CUDA_VISIBLE_DEVICES" not in environment(a_profile())
