"""Host guards of a compiled package, and the toolchain it was made with."""

import os
from pathlib import Path

import pytest

from aot.compile.host import capability_of, host_guards, route_facts
from aot.compile.options import inductor_settings
from aot.compile.toolchain import observe_toolchain
from aot.environment import Host, observe_container
from aot.errors import BackendFailed, InvalidConfig
from aot.facts.elf import EM_CUDA
from aot.rules import RULES
from aot.schema.artifact import ElfFacts
from aot.schema.capability import Capability
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe, Route
from aot.select import REQUIRED_GUARDS
from tests.builders import a_device, a_profile, a_toolchain
from tests.elf_files import an_elf_file

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


def test_kernels_for_one_architecture_alone_make_the_artifact_so(tmp_path: Path) -> None:
    gpu = a_profile(capability="cuda:sm_100", device=a_device())
    plain, exact = tmp_path / "a.cubin", tmp_path / "b.cubin"
    for path, flags in ((plain, 0x9006402), (exact, 0x900640A)):  # as ptxas 12.8 writes them
        path.write_bytes(an_elf_file(machine=EM_CUDA, abi_version=8, flags=flags))
    assert capability_of(gpu, [plain]) == "cuda:sm_100"
    assert capability_of(gpu, [plain, exact]) == "cuda:sm_100a"
    assert not Capability("cuda:sm_103").covers(capability_of(gpu, [exact]))
    assert capability_of(a_profile(), []) == "cpu:x86-64-v3"
    guards_of_it = host_guards(ELF, gpu, torch="x", capability=Capability("cuda:sm_100a"))
    assert {guard.kind: guard.value for guard in guards_of_it}["capability"] == "cuda:sm_100a"


def test_a_floor_that_the_bytes_do_not_tell_is_left_out_so_that_selection_rejects() -> None:
    assert "libc" not in guards(a_profile(), ElfFacts(machine="x86_64", needed=()))


def test_a_second_libstdcxx_inside_fails_the_build() -> None:
    elf = ElfFacts(machine="x86_64", needed=("libc.so.6",), static_libstdcxx=True)
    with pytest.raises(BackendFailed, match="linked libstdc\\+\\+ statically"):
        guards(a_profile(), elf)


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
