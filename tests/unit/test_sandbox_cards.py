"""Which device files a child of a GPU's profile is shown."""

from pathlib import Path

import pytest

from aot.sandbox import list_gpu_devices


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "kfd", "null", "dri/renderD128", "nvidia-caps/nvidia-cap1"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("cuda", {"nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps"}),
        ("rocm", {"kfd", "dri"}),
        ("cpu", set()),
    ],
)
def test_a_child_sees_the_cards_of_its_own_kind_alone(dev: Path, family: str, names: set[str]) -> None:
    assert {path.name for path in list_gpu_devices(family, root=dev)} == names


def test_slices_of_a_card_are_among_them(dev: Path) -> None:
    """A slice is opened through files in a directory; compile and proof see the same."""
    assert dev / "nvidia-caps" in list_gpu_devices("cuda", root=dev)
