"""AMD cards, as the amdgpu kernel module shows them on hosts that this one is not."""

from pathlib import Path

import pytest

from aot.environment import observe_node
from aot.environment.amd import observe_amd
from aot.schema.capability import Capability
from aot.schema.environment import Gpu
from tests.hosts import a_host

NODES = "/sys/class/kfd/kfd/topology/nodes"
MI300X_BYTES = 206141652992


def a_node(number: int, *, version: int = 0, simds: int = 0, minor: int = 128, memory: int = 0) -> dict[str, str]:
    """The files of one node; without a version it is a CPU."""
    place = f"{NODES}/{number}"
    return {
        f"{place}/properties": f"cpu_cores_count {0 if version else 96}\nsimd_count {simds}\n"
        f"simd_per_cu {4 if simds else 0}\ngfx_target_version {version}\n"
        f"drm_render_minor {minor}\nunique_id 18446744073709551615\n",
        f"{place}/name": "gfx942\n" if version else "\n",
        f"{place}/mem_banks/0/properties": f"heap_type {1 if version else 0}\nsize_in_bytes {memory or 1 << 30}\n",
    }


CPU = a_node(0)
MI300X = a_node(1, version=90402, simds=1216, minor=128, memory=MI300X_BYTES)
MI250X = a_node(2, version=90010, simds=440, minor=136, memory=68702699520)
NAMED = {"/sys/class/drm/renderD128/device/product_name": "AMD Instinct MI300X\n"}


def test_the_facts_of_a_card(tmp_path: Path) -> None:
    files = CPU | MI300X | NAMED | {"/sys/module/amdgpu/version": "6.12.12\n"}
    card = Gpu(capability=Capability("rocm:gfx942"), sku="AMD Instinct MI300X", memory_bytes=MI300X_BYTES, sm_count=304)
    assert observe_amd(a_host(tmp_path, files=files)) == ("6.12.12", (card,))


def test_a_card_without_a_name_is_called_by_its_processor(tmp_path: Path) -> None:
    [card] = observe_amd(a_host(tmp_path, files=CPU | MI300X))[1]
    assert card.sku == "gfx942"


def test_different_cards_of_one_host_are_all_seen(tmp_path: Path) -> None:
    node = observe_node(a_host(tmp_path, files=CPU | MI300X | NAMED | MI250X))
    assert [gpu.capability for gpu in node.gpus or ()] == ["rocm:gfx942", "rocm:gfx90a"]
    assert [gpu.sm_count for gpu in node.gpus or ()] == [304, 110]


@pytest.mark.parametrize(
    ("version", "processor"),
    [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_a_version_names_a_processor(tmp_path: Path, version: int, processor: str) -> None:
    [card] = observe_amd(a_host(tmp_path, files=a_node(1, version=version, simds=8)))[1]
    assert card.capability == f"rocm:{processor}"


def test_only_the_frame_buffer_is_the_cards_memory(tmp_path: Path) -> None:
    shared = {f"{NODES}/1/mem_banks/1/properties": "heap_type 4\nsize_in_bytes 65536\n"}
    [card] = observe_amd(a_host(tmp_path, files=MI300X | shared))[1]
    assert card.memory_bytes == MI300X_BYTES


def test_no_card_means_none(tmp_path: Path) -> None:
    assert observe_amd(a_host(tmp_path)) == (None, ())
    assert observe_amd(a_host(tmp_path / "cpu", files=CPU)) == (None, ())


@pytest.mark.parametrize(
    "text", ["", "\0\xff", "gfx_target_version 90402", "gfx_target_version 99999999\nsimd_count 4"]
)
def test_garbled_files_are_no_card(tmp_path: Path, text: str) -> None:
    assert observe_amd(a_host(tmp_path, files={f"{NODES}/1/properties": text})) == (None, ())


def test_cards_are_not_known_where_nvidias_cannot_be_asked(tmp_path: Path) -> None:
    driver = {"/sys/module/nvidia/version": "550.54.14\n"}
    assert observe_node(a_host(tmp_path, files=MI300X | driver)).gpus is None
