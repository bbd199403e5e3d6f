"""NVIDIA cards: a library compiled here answers as NVML does on hosts with other cards."""

import shutil
import subprocess
from pathlib import Path

import pytest

from aot.environment import Host
from aot.environment.card_problems import card_problems
from aot.environment.clocks import observe_clocks
from aot.environment.nvidia import observe_nvidia
from aot.schema.capability import Capability
from aot.schema.environment import Clocks, Gpu
from tests.hosts import a_host

# The calls that the observer makes, with the signatures of nvml.h. A card is a pointer into `cards`; a MIG instance
# is one into `instances`. 3 is NVML_ERROR_NOT_SUPPORTED, 6 NOT_FOUND, 9 DRIVER_NOT_LOADED.
NVML = r"""
#include <string.h>
#include <stdio.h>
typedef struct { int major, minor; const char *name, *uuid; unsigned long long memory; unsigned cores; } Card;
typedef struct { const char *name, *uuid; unsigned multiprocessors; unsigned long long memory_mb; } Instance;
typedef struct { unsigned n[8]; unsigned long long memory_mb; } Attributes;
typedef struct { unsigned long long total, free, used; } Memory;
static Card cards[] = { CARDS };
static Instance instances[] = { INSTANCES {0} };
#define COUNT (sizeof cards / sizeof *cards)
static Instance *instance(void *handle) {
  Instance *found = handle;
  return found >= instances && found < instances + sizeof instances / sizeof *instances ? found : 0;
}
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "570.00.01"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) {
  if (index >= COUNT) return 6;
  *card = &cards[index];
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *card, int *major, int *minor) {
  *major = ((Card *)card)->major; *minor = ((Card *)card)->minor;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *card, Memory *memory) { memory->total = ((Card *)card)->memory; return 0; }
int nvmlDeviceGetName(void *card, char *text, unsigned size) {
  snprintf(text, size, "%s", instance(card) ? instance(card)->name : ((Card *)card)->name);
  return 0;
}
int nvmlDeviceGetUUID(void *card, char *text, unsigned size) {
  snprintf(text, size, "%s", instance(card) ? instance(card)->uuid : ((Card *)card)->uuid);
  return 0;
}
#ifndef OLD
int nvmlDeviceGetNumGpuCores(void *card, unsigned *cores) { *cores = ((Card *)card)->cores; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *card, unsigned *count) { *count = card == &cards[0] ? 7 : 0; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *card, unsigned index, void **found) {
  if (index + 1 >= sizeof instances / sizeof *instances) return 6;
  *found = &instances[index];
  return 0;
}
int nvmlDeviceGetAttributes_v2(void *card, Attributes *attributes) {
  if (!instance(card)) return 3;
  attributes->n[0] = instance(card)->multiprocessors;
  attributes->memory_mb = instance(card)->memory_mb;
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **found) {
  for (unsigned i = 0; i < COUNT; i++) if (!strcmp(cards[i].uuid, uuid)) { *found = &cards[i]; return 0; }
  for (unsigned i = 0; i + 1 < sizeof instances / sizeof *instances; i++)
    if (!strcmp(instances[i].uuid, uuid)) { *found = &instances[i]; return 0; }
  return 6;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **card) {
  if (!instance(handle)) return 3;
  *card = &cards[0];
  return 0;
}
int nvmlDeviceGetClockInfo(void *card, int type, unsigned *mhz) {
  if (instance(card)) return 3;
  *mhz = 1000 * type + (unsigned)((Card *)card - cards);
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void *card, int type, unsigned *mhz) { *mhz = type == 1 ? 1980 : 2619; return 0; }
int nvmlDeviceGetApplicationsClock(void *card, int type, unsigned *mhz) {
  if (type != 1) return 3;
  *mhz = 1410;
  return 0;
}
#endif
"""

H100 = '{9, 0, "NVIDIA H100 80GB HBM3", "GPU-aaaa-1", 85520809984ull, 16896}'
H100_TOO = '{9, 0, "NVIDIA H100 80GB HBM3", "GPU-bbbb-2", 85520809984ull, 16896}'
A100 = '{8, 0, "NVIDIA A100-SXM4-40GB", "GPU-cccc-3", 42949672960ull, 6912}'
L4 = '{8, 9, "NVIDIA L4", "GPU-dddd-4", 24152899584ull, 7424}'
T4 = '{7, 5, "Tesla T4", "GPU-eeee-5", 15843721216ull, 2560}'
B200 = '{10, 0, "NVIDIA B200", "GPU-ffff-6", 191503531008ull, 18944}'

OF_H100 = Gpu(capability=Capability("cuda:sm_90"), sku="NVIDIA H100 80GB HBM3", memory_bytes=85520809984, sm_count=132)
OF_A100 = Gpu(capability=Capability("cuda:sm_80"), sku="NVIDIA A100-SXM4-40GB", memory_bytes=42949672960, sm_count=108)
OF_L4 = Gpu(capability=Capability("cuda:sm_89"), sku="NVIDIA L4", memory_bytes=24152899584, sm_count=58)
OF_T4 = Gpu(capability=Capability("cuda:sm_75"), sku="Tesla T4", memory_bytes=15843721216, sm_count=40)
OF_B200 = Gpu(capability=Capability("cuda:sm_100"), sku="NVIDIA B200", memory_bytes=191503531008, sm_count=148)

OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build\nGCC version: gcc 12\n"
CLOSED_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
DRIVER = {"/proc/driver/nvidia/version": OPEN_MODULE}


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """Compile a library with the given cards; the same cards are compiled once."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc on PATH")
    directory = tmp_path_factory.mktemp("nvml")
    made: dict[tuple, str] = {}

    def compile_library(*cards: str, instances: str = "", init: int = 0, options: tuple[str, ...] = ()) -> str:
        key = (cards, instances, init, options)
        if key not in made:
            library = directory / f"libnvml-{len(made)}.so"
            definitions = [f"-DCARDS={','.join(cards)}", f"-DINSTANCES={instances}", f"-DINIT={init}"]
            command = [compiler, "-x", "c", "-", "-shared", "-fPIC", "-o", str(library), *definitions, *options]
            subprocess.run(command, input=NVML, text=True, check=True)
            made[key] = str(library)
        return made[key]

    return compile_library


@pytest.mark.parametrize(("card", "gpu"), [(H100, OF_H100), (A100, OF_A100), (L4, OF_L4), (T4, OF_T4), (B200, OF_B200)])
def test_the_facts_of_a_card(tmp_path, nvml, card, gpu):
    host = a_host(tmp_path, files=DRIVER, nvml=nvml(card))
    assert observe_nvidia(host) == ("550.54.14", (gpu,))


@pytest.mark.parametrize(
    ("files", "driver"),
    [
        ({"/proc/driver/nvidia/version": CLOSED_MODULE}, "535.104.05"),
        ({"/proc/driver/nvidia/version": OPEN_MODULE, "/sys/module/nvidia/version": "1.2\n"}, "550.54.14"),
        ({"/sys/module/nvidia/version": "545.23.08\n"}, "545.23.08"),
        ({}, "570.00.01"),  # as in WSL: only the library knows
    ],
)
def test_the_driver_is_found_where_it_is(tmp_path, nvml, files, driver):
    assert observe_nvidia(a_host(tmp_path, files=files, nvml=nvml(H100)))[0] == driver


def test_no_driver_means_no_cards(tmp_path):
    assert observe_nvidia(a_host(tmp_path)) == (None, ())


def test_a_driver_that_cannot_be_asked_means_not_observed(tmp_path, nvml):
    assert observe_nvidia(a_host(tmp_path, files=DRIVER)) == ("550.54.14", None)
    assert observe_nvidia(a_host(tmp_path, files=DRIVER, nvml=nvml(H100, init=9))) == ("550.54.14", None)


def test_a_library_without_a_driver_means_no_cards(tmp_path, nvml):
    assert observe_nvidia(a_host(tmp_path, nvml=nvml(H100, init=9))) == (None, ())


def test_an_old_driver_does_not_tell_the_number_of_multiprocessors(tmp_path, nvml):
    _, gpus = observe_nvidia(a_host(tmp_path, nvml=nvml(H100, options=("-DOLD",))))
    assert gpus == (Gpu(capability=OF_H100.capability, sku=OF_H100.sku, memory_bytes=OF_H100.memory_bytes),)


def test_instances_stand_for_their_card(tmp_path, nvml):
    instances = (
        '{"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-1111", 16, 9856},'
        '{"NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MIG-2222", 60, 40448},'
    )
    host = a_host(tmp_path, nvml=nvml(H100, L4, instances=instances))
    small = Gpu(capability=OF_H100.capability, sku=OF_H100.sku, memory_bytes=9856 << 20, sm_count=16, mig="1g.10gb")
    large = Gpu(capability=OF_H100.capability, sku=OF_H100.sku, memory_bytes=40448 << 20, sm_count=60, mig="3g.40gb")
    assert observe_nvidia(host)[1] == (small, large, OF_L4)
    chosen = Host(root=tmp_path, packages=(), nvml=host.nvml, environ={"CUDA_VISIBLE_DEVICES": "MIG-2222"})
    assert observe_nvidia(chosen)[1] == (large,)


@pytest.mark.parametrize(
    ("variables", "visible"),
    [
        ({}, (OF_H100, OF_L4, OF_H100)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-dddd"}, (OF_L4,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb-2, GPU-dddd-4"}, (OF_H100, OF_L4)),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (OF_L4,)),
        ({"CUDA_VISIBLE_DEVICES": "2,7,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (OF_H100,)),
        # Fastest first is CUDA's own order: which card is number 1 is not certain.
        ({"CUDA_VISIBLE_DEVICES": "1"}, (OF_H100, OF_L4, OF_H100)),
    ],
)
def test_the_cards_that_the_process_may_see(tmp_path, nvml, variables, visible):
    host = a_host(tmp_path, nvml=nvml(H100, L4, H100_TOO), environ=variables)
    assert observe_nvidia(host)[1] == visible


def test_equal_cards_are_counted_by_number(tmp_path, nvml):
    host = a_host(tmp_path, nvml=nvml(H100, H100_TOO), environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert observe_nvidia(host)[1] == (OF_H100,)


def told(sm_mhz: int) -> Clocks:
    return Clocks(
        sm_mhz=sm_mhz, memory_mhz=sm_mhz + 1000, most_sm_mhz=1980, most_memory_mhz=2619, application_sm_mhz=1410
    )


@pytest.mark.parametrize(
    ("variables", "clocks"),
    [
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, told(1000)),
        ({"CUDA_VISIBLE_DEVICES": "1,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, told(1001)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb-2,GPU-dddd-4"}, told(1002)),
        ({}, None),  # of different cards CUDA begins with the fastest: which one that is is not certain
        ({"CUDA_VISIBLE_DEVICES": "1"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_the_clocks_are_those_of_the_first_card(tmp_path, nvml, variables, clocks):
    host = a_host(tmp_path, nvml=nvml(H100, L4, H100_TOO), environ=variables)
    assert observe_clocks(host) == clocks


def test_a_slice_runs_at_the_clocks_of_its_card(tmp_path, nvml):
    instances = '{"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-1111", 16, 9856},'
    host = a_host(tmp_path, nvml=nvml(H100, instances=instances), environ={"CUDA_VISIBLE_DEVICES": "MIG-1111"})
    assert observe_clocks(host) == told(1000)


def test_clocks_that_nobody_tells_are_none(tmp_path, nvml):
    assert observe_clocks(a_host(tmp_path)) is None
    assert observe_clocks(a_host(tmp_path, nvml=nvml(H100, init=9))) is None
    assert observe_clocks(a_host(tmp_path, nvml=nvml(H100, options=("-DOLD",)))) is None


@pytest.mark.gpu
def test_the_clocks_of_this_machine_are_within_their_bounds():
    clocks = observe_clocks()
    assert clocks is not None
    assert 0 < clocks.sm_mhz <= clocks.most_sm_mhz
    assert 0 < clocks.memory_mhz <= clocks.most_memory_mhz


TORCH = {"version.py": "__version__ = '2.13.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"}
CPU_TORCH = {"version.py": "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"}
ROCM_TORCH = {"version.py": "__version__ = '2.13.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4.4'\n"}


def problems_of(root, *, torch=TORCH, driver="550.54.14", variables=None, **fields):
    """Kind and text of what is found on a host with a driver."""
    site = root / "site" / "torch"
    site.mkdir(parents=True, exist_ok=True)
    (site / "__init__.py").touch()
    for name, content in torch.items():
        (site / name).write_text(content)
    files = {"/sys/module/nvidia/version": f"{driver}\n"} if driver else {}
    host = a_host(root, files=files, packages=(str(root / "site"),), environ=variables or {}, **fields)
    return {problem.kind: problem.text for problem in card_problems(host)}


def test_a_host_whose_card_can_be_used_has_no_problem(tmp_path, nvml):
    assert problems_of(tmp_path, nvml=nvml(H100, H100_TOO)) == {}
    assert problems_of(tmp_path, nvml=nvml(H100), driver="525.60.13") == {}
    assert problems_of(tmp_path, nvml=nvml(H100), torch=ROCM_TORCH) == {}
    assert problems_of(tmp_path, nvml=nvml(H100), variables={"NVIDIA_DRIVER_CAPABILITIES": "utility, compute"}) == {}


def test_a_host_without_a_driver_has_no_problem_of_cards(tmp_path):
    assert problems_of(tmp_path, driver=None, torch=CPU_TORCH, variables={"CUDA_VISIBLE_DEVICES": "3"}) == {}


def test_a_driver_too_old_for_torch_is_found(tmp_path, nvml):
    found = problems_of(tmp_path, nvml=nvml(H100), driver="470.256.02")
    assert found == {
        "driver-too-old": "torch 2.13.0 is built for CUDA 12.8, which needs NVIDIA driver 525.60.13 or newer, "
        "this is 470.256.02"
    }


def test_a_torch_without_cuda_beside_a_card_is_found(tmp_path, nvml):
    found = problems_of(tmp_path, nvml=nvml(H100, H100_TOO), torch=CPU_TORCH)
    assert found == {
        "torch-without-cuda": "this host has 2 x NVIDIA H100 80GB HBM3, and torch 2.13.0+cpu is built without CUDA"
    }


def test_a_container_without_the_drivers_libraries_is_found(tmp_path):
    found = problems_of(tmp_path, variables={"NVIDIA_DRIVER_CAPABILITIES": "utility"})
    assert list(found) == ["no-driver-libraries", "no-compute-libraries"]
    assert "550.54.14" in found["no-driver-libraries"]


def test_different_cards_in_one_host_are_found_unless_one_was_chosen(tmp_path, nvml):
    found = problems_of(tmp_path, nvml=nvml(H100, L4, H100_TOO))
    assert found["different-cards"].startswith(
        "this host has different cards: 2 x NVIDIA H100 80GB HBM3, 1 x NVIDIA L4;"
    )
    chosen = problems_of(tmp_path, nvml=nvml(H100, L4, H100_TOO), variables={"CUDA_VISIBLE_DEVICES": "GPU-dddd"})
    assert list(chosen) == ["hidden-cards"]


@pytest.mark.parametrize(("setting", "seen"), [("", 0), ("1", 1), ("GPU-none", 0)])
def test_cards_that_are_hidden_are_found(tmp_path, nvml, setting, seen):
    found = problems_of(tmp_path, nvml=nvml(H100, H100_TOO), variables={"CUDA_VISIBLE_DEVICES": setting})
    assert found == {"hidden-cards": f"CUDA_VISIBLE_DEVICES is {setting!r}: programs see {seen} of 2 card(s)"}


@pytest.mark.gpu
def test_the_cards_of_this_machine_are_those_of_torch():
    import torch

    driver, gpus = observe_nvidia(Host())
    assert driver and gpus
    found = {(gpu.capability, gpu.sku, gpu.sm_count) for gpu in gpus}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = f"cuda:sm_{properties.major}{properties.minor}"
        assert (capability, properties.name, properties.multi_processor_count) in found


def test_a_garbled_version_file_is_no_driver(tmp_path: Path):
    assert observe_nvidia(a_host(tmp_path, files={"/proc/driver/nvidia/version": "\0\xff?"})) == (None, ())
