"""Host guards of a compiled package, and the toolchain it was made with."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from aot.compile.host import capability_of, host_guards, multiplies_float32, program_guards, route_facts
from aot.compile.options import cpu_capability, inductor_settings
from aot.compile.toolchain import observe_toolchain
from aot.environment import Host, observe_container
from aot.errors import BackendFailed, InvalidConfig
from aot.facts import targets
from aot.facts.elf import EM_CUDA
from aot.rules import FRESH_PROCESS, RULES
from aot.rules.required import COOPERATIVE_FACT
from aot.schema.artifact import ElfFacts
from aot.schema.capability import Capability
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe, Route
from aot.select import REQUIRED_GUARDS
from tests.builders import a_device, a_profile, a_toolchain, altered
from tests.elf_files import an_elf_file
from tests.unit.test_facts_fatbin import a_fatbin, an_image

ELF = ElfFacts(machine="x86_64", needed=("libc.so.6",), libc_floor="2.34", libstdcxx_floor="3.4.30")


def guards(profile: Profile, elf: ElfFacts = ELF) -> dict[str, str]:
    return {guard.kind: guard.value for guard in host_guards(elf, profile, torch="2.13.0+cpu")}


def test_a_cpu_package_records_what_the_selection_requires() -> None:
    found = guards(a_profile())
    assert found == {
        "machine": "x86_64",
        "capability": "cpu:x86-64-v3",
        "torch": "2.13.0+cpu",
        "libc": "2.34",
        "libstdcxx": "3.4.30",
    }
    assert set(found) >= REQUIRED_GUARDS[Route.PACKAGE]


def test_pinned_threads_are_a_guard() -> None:
    assert guards(a_profile(threads=4))["threads"] == "4"


def test_a_gpu_package_also_records_runtime_driver_and_sku() -> None:
    profile = a_profile(capability="cuda:sm_90", toolchain=a_toolchain(cuda="13.0"), device=a_device())
    found = guards(profile)
    assert {kind: found[kind] for kind in ("cuda", "driver", "sku")} == {
        "cuda": "13.0",
        "driver": "580.65.06",
        "sku": "NVIDIA H100 80GB HBM3",
    }
    assert set(found) <= set(RULES)


EXACT = an_image(an_elf_file(machine=EM_CUDA, abi_version=8, flags=0x900640A), sm=100, flags=0x11 | 0x10_0000)


def test_kernels_for_one_architecture_alone_make_the_artifact_so(tmp_path: Path) -> None:
    gpu = a_profile(capability="cuda:sm_100", device=a_device())
    plain, exact = tmp_path / "a.cubin", tmp_path / "b.cubin"
    for path, flags in ((plain, 0x9006402), (exact, 0x900640A)):  # as ptxas 12.8 writes them
        path.write_bytes(an_elf_file(machine=EM_CUDA, abi_version=8, flags=flags))
    assert capability_of(gpu, [plain], library=None) == "cuda:sm_100"
    assert capability_of(gpu, [plain, exact], library=None) == "cuda:sm_100a"
    assert not Capability("cuda:sm_103").runs(capability_of(gpu, [exact], library=None))
    assert capability_of(a_profile(), [], library=None) == "cpu:x86-64-v3"
    inside = tmp_path / "model.so"
    inside.write_bytes(an_elf_file(sections={".nv_fatbin": (1, a_fatbin(tmp_path, EXACT).read_bytes())}))
    assert capability_of(gpu, [plain], library=inside) == "cuda:sm_100a"
    guards_of_it = host_guards(ELF, gpu, torch="x", capability=Capability("cuda:sm_100a"))
    assert {guard.kind: guard.value for guard in guards_of_it}["capability"] == "cuda:sm_100a"


def test_a_floor_that_the_bytes_do_not_tell_is_left_out_so_that_selection_rejects() -> None:
    assert "libc" not in guards(a_profile(), ElfFacts(machine="x86_64", needed=()))


def test_a_second_libstdcxx_inside_fails_the_build() -> None:
    elf = ElfFacts(machine="x86_64", needed=("libc.so.6",), static_libstdcxx=True)
    with pytest.raises(BackendFailed, match=r"the C\+\+ compiler, g\+\+ 14.1.0, linked libstdc\+\+ statically"):
        guards(a_profile(toolchain=a_toolchain(compiler="g++ 14.1.0")), elf)


def test_facts_tell_the_loader_when_to_capture_a_graph() -> None:
    gpu = a_profile(capability="cuda:sm_90", device=a_device())
    recipe = Recipe(mode=Mode.REDUCE_OVERHEAD)
    assert route_facts(recipe, gpu, inductor_settings(recipe, gpu), "")["cuda_graphs"] == "capture"
    facts = route_facts(recipe, a_profile(), inductor_settings(recipe, a_profile()), "avx2")
    assert facts == {
        "mode": "reduce-overhead",
        "frozen": "false",
        "march": "x86-64-v3",
        "simdlen": "256",
        "isa": "avx2",
        "threads": "dynamic",
    }


def test_the_toolchain_is_read_without_importing_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from aot.compile.toolchain import observe_toolchain; t = observe_toolchain().toolchain; "
        "assert 'torch' not in sys.modules; print(t.torch)"
    )
    root = Path(__file__).parents[2]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout
    import torch

    assert printed.strip() == torch.__version__


def a_site(tmp_path: Path, **packages: str) -> Host:
    """A host whose packages have these files, named `package_file`."""
    for name, text in packages.items():
        package, _, module = name.partition("_")
        (tmp_path / "site" / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / package / "__init__.py").touch()
        (tmp_path / "site" / package / f"{module or '__init__'}.py").write_text(text)
    return Host(packages=(str(tmp_path / "site"),))


def test_a_bundle_is_made_for_the_versions_that_a_pod_observes(tmp_path: Path) -> None:
    version = '__version__ = "2.11.0+cu130"\ncuda: Optional[str] = "13.0"\n'
    host = a_site(tmp_path, torch_version=version, triton="__version__ = '3.6.0'\n")
    toolchain, pod = observe_toolchain(host=host).toolchain, observe_container(host)
    assert (toolchain.torch, toolchain.cuda, toolchain.triton) == ("2.11.0+cu130", "13.0", "3.6.0")
    assert (toolchain.torch, toolchain.cuda, toolchain.triton) == (pod.torch, pod.cuda, pod.triton)


def test_a_machine_without_torch_can_compile_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="torch is not installed"):
        observe_toolchain(host=a_site(tmp_path))


def test_the_compiler_is_the_first_on_the_path_with_its_full_version(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\n[ "$1" = -dumpfullversion ] && echo 13.1.0\n')
    compiler.chmod(0o755)
    observed = observe_toolchain(search_path=str(tmp_path))
    assert observed.toolchain.compiler == "g++ 13.1.0"
    assert observed.compiler == compiler


def test_a_machine_without_a_compiler_can_compile_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no C\\+\\+ compiler"):
        observe_toolchain(search_path=str(tmp_path))


def test_an_artifact_of_a_module_is_tied_to_the_minor_version_of_python() -> None:
    profile = a_profile(toolchain=a_toolchain(python="3.11.7"))
    kinds = {guard.kind: guard.value for guard in host_guards(ELF, profile, torch="2.13.0+cpu", of_module=True)}
    assert kinds["python"] == "3.11"
    assert "python" not in {guard.kind for guard in host_guards(ELF, profile, torch="2.13.0+cpu")}


PLAIN = Recipe()


def of_program(profile: Profile, *, recipe: Recipe = PLAIN, multiplies: bool = True, **process: Any) -> dict[str, str]:
    settings = inductor_settings(recipe, profile)
    facts = altered(FRESH_PROCESS, **process)
    found = program_guards(facts, recipe, profile, settings=settings, multiplies=multiplies)
    return {guard.kind: guard.value for guard in found}


GPU = a_profile(capability="cuda:sm_90", toolchain=a_toolchain(cuda="13.0"), device=a_device())


def test_what_the_program_has_set_is_recorded() -> None:
    every = {"matmul_precision": "highest high medium"}
    assert of_program(a_profile()) == {"deterministic": "false", "default_dtype": "float32"} | every
    assert (
        of_program(a_profile(), deterministic=True, default_dtype="bfloat16")
        == {
            "deterministic": "true",
            "default_dtype": "bfloat16",
        }
        | every
    )


def test_every_precision_that_gives_the_same_code_is_recorded() -> None:
    frozen = Recipe(freeze=True)
    assert of_program(GPU)["matmul_precision"] == "highest"
    assert of_program(GPU, matmul_precision="medium")["matmul_precision"] == "high medium"
    assert of_program(a_profile(), recipe=frozen, matmul_precision="medium")["matmul_precision"] == "medium"
    assert of_program(GPU, multiplies=False)["matmul_precision"] == "highest high medium"
    assert of_program(GPU)["conv_precision"] == "tf32"
    assert of_program(GPU, conv_precision="ieee")["conv_precision"] == "ieee"
    assert "conv_precision" not in of_program(GPU, multiplies=False)
    assert "conv_precision" not in of_program(a_profile())
    assert of_program(a_profile())["matmul_precision"] == "highest high medium"


def test_cooperative_kernels_need_the_multiprocessors_they_were_sized_for() -> None:
    recipe = Recipe(options={"triton.cooperative_reductions": True})
    assert of_program(GPU, recipe=recipe)["sm_floor"] == "132"
    assert route_facts(recipe, GPU, inductor_settings(recipe, GPU), "")[COOPERATIVE_FACT] == "true"
    assert "sm_floor" not in of_program(GPU)
    assert COOPERATIVE_FACT not in route_facts(PLAIN, GPU, inductor_settings(PLAIN, GPU), "")


def test_the_code_that_launches_kernels_says_which_cpu_it_is_for() -> None:
    assert guards(GPU)["cpu"] == cpu_capability(GPU)
    assert "cpu" not in guards(a_profile())


def test_a_slice_of_a_card_is_recorded_as_one() -> None:
    whole = a_profile(capability="cuda:sm_90", device=a_device())
    part = a_profile(capability="cuda:sm_90", device=a_device(sm_count=16, mig="1g.10gb"))
    assert {kind: guards(whole)[kind] for kind in ("sm_count", "mig")} == {"sm_count": "132", "mig": "none"}
    assert {kind: guards(part)[kind] for kind in ("sm_count", "mig")} == {"sm_count": "16", "mig": "1g.10gb"}


class Gated(torch.nn.Module):
    """A product inside a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: self.linear(y), lambda y: y.sin(), (x,))


class Smooth(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1).relu() + x.sum()


@pytest.mark.parametrize(
    ("module", "dtype", "found"),
    [
        (torch.nn.Linear(4, 4), torch.float32, True),
        (torch.nn.Linear(4, 4).double(), torch.float64, False),
        (torch.nn.Linear(4, 4).bfloat16(), torch.bfloat16, False),
        (Gated(), torch.float32, True),
        (Smooth(), torch.float32, False),
        (torch.nn.Conv1d(4, 4, 1), torch.float32, True),
    ],
)
def test_a_program_is_known_to_multiply_float32(module: torch.nn.Module, dtype: torch.dtype, found: bool) -> None:
    program = torch.export.export(module.eval(), (torch.ones(4, 4, dtype=dtype),))
    assert multiplies_float32(program.graph_module) is found


@pytest.mark.parametrize(
    ("kernels", "found"),
    [
        (("cuda:sm_100", "cuda:sm_100f"), "cuda:sm_100f"),
        (("cuda:sm_100f", "cuda:sm_100a"), "cuda:sm_100a"),
        (("cuda:sm_100",), "cuda:sm_100"),
    ],
)
def test_an_artifact_is_for_what_its_narrowest_kernel_is_for(
    monkeypatch: pytest.MonkeyPatch, kernels: tuple[str, ...], found: str
) -> None:
    gpu = a_profile(capability="cuda:sm_100", device=a_device())
    monkeypatch.setattr(targets, "machine_targets", lambda name, path: (Capability(name),))
    assert capability_of(gpu, [Path(kernel) for kernel in kernels], library=None) == found
