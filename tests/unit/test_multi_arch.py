"""Fat binaries: what the option needs, what its files say, and the verdict on cards that run their PTX."""

from pathlib import Path

import pytest

from aot.compile.host import capability_of, host_guards
from aot.compile.layout import Layout
from aot.compile.multi_arch import MULTI_ARCH, check_multi_arch, find_toolkit, multi_arch_note
from aot.errors import BackendFailed, InvalidSpec, MalformedDocument
from aot.facts.elf import EM_CUDA
from aot.facts.targets import Fallback, fallback_of, machine_targets
from aot.recipes import check_recipe
from aot.schema.artifact import Artifact, ElfFacts
from aot.schema.capability import Capability
from aot.schema.decision import Accepted, Level, Rejected
from aot.schema.environment import Environment
from aot.schema.guard import HostGuard
from aot.schema.recipe import Recipe
from aot.select import Policy, verdict_on
from tests.builders import a_container, a_device, a_gpu, a_node, a_profile, a_toolchain, an_artifact
from tests.elf_files import an_elf_file
from tests.kernels import GOLDEN
from tests.unit.test_facts_fatbin import PTX, a_cubin, a_fatbin, an_image

ELF = ElfFacts(machine="x86_64", needed=("libc.so.6",), libc_floor="2.34", libstdcxx_floor="3.4.30")
A10 = a_profile(
    capability="cuda:sm_86", toolchain=a_toolchain(cuda="12.8"), device=a_device(sku="NVIDIA A10G", sm_count=80)
)
WANTED = Recipe(options={MULTI_ARCH: True})


def a_tool(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "nvcc").write_text("#!/bin/sh\n")
    (directory / "nvcc").chmod(0o755)
    return directory


def fat(tmp_path: Path, *, ptx: int | None = 86, version: tuple[int, int] = (8, 7), suffix: str = "") -> Path:
    """A kernel's file for sm_86, with PTX beside it as nvcc packs it."""
    images = [an_image(a_cubin(86), sm=86)]
    if ptx is not None:
        flags = 0x11 | {"": 0, "a": 0x10_0000, "f": 0x20_0000}[suffix]
        images.append(an_image(PTX, kind=1, sm=ptx, version=version, flags=flags))
    made = a_fatbin(tmp_path, *images)
    return made.rename(tmp_path / f"{ptx}-{version[1]}{suffix}.fatbin")


def an_artifact_with(fallback: Fallback | None) -> Artifact:
    capability = Capability("cuda:sm_86")
    guards = host_guards(ELF, A10, torch="2.12.0+cu128", capability=capability, fallback=fallback)
    return an_artifact(capability=capability, host_guards=guards)


def a_host(capability: str, *, driver: str = "570.26", sku: str = "NVIDIA A10G", sm_count: int = 80) -> Environment:
    card = a_gpu(capability=Capability(capability), sku=sku, sm_count=sm_count)
    return Environment(
        node=a_node(driver=driver, gpus=(card,)), container=a_container(torch="2.12.0+cu128", cuda="12.8")
    )


FALLBACK = Fallback(Capability("cuda:compute_86"), "8.7")


def test_the_option_is_a_recipes_to_set() -> None:
    check_recipe(WANTED)


@pytest.mark.parametrize("capability", ["cpu:x86-64-v3", "rocm:gfx942"])
def test_it_is_refused_for_what_has_no_fat_binaries(capability: str) -> None:
    with pytest.raises(InvalidSpec, match="is for cards of NVIDIA"):
        check_multi_arch(WANTED, a_profile(capability=capability))
    check_multi_arch(Recipe(options={MULTI_ARCH: False}), a_profile(capability=capability))


def test_a_worker_without_the_toolkit_refuses_it_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.compile.multi_arch.find_spec", lambda name: None)
    with pytest.raises(BackendFailed, match="needs nvcc of the CUDA toolkit, and this worker has none") as caught:
        check_multi_arch(WANTED, A10, search_path=str(tmp_path))
    assert caught.value.details["backend"] == "nvcc"
    a_tool(tmp_path / "bin")
    check_multi_arch(WANTED, A10, search_path=f"{tmp_path}:{tmp_path / 'bin'}")


def test_the_toolkit_is_found_where_its_link_leads(tmp_path: Path) -> None:
    real = a_tool(tmp_path / "cuda-13.0" / "bin")
    (tmp_path / "cuda").symlink_to(tmp_path / "cuda-13.0")
    assert find_toolkit(search_path=str(tmp_path / "cuda" / "bin")) == real


def test_a_child_that_packs_kernels_finds_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.compile.layout.find_toolkit", lambda: Path("/opt/toolkit/bin"))
    layout = Layout(scratch=tmp_path, isolated=True)
    assert layout.environment(WANTED, A10)["PATH"].endswith(":/opt/toolkit/bin")
    assert "toolkit" not in layout.environment(Recipe(), A10)["PATH"]


def test_the_machine_code_and_the_ptx_of_a_file_are_told_apart(tmp_path: Path) -> None:
    path = fat(tmp_path)
    assert machine_targets("cubin/k.fatbin", path) == ("cuda:sm_86",)
    assert fallback_of([("cubin/k.fatbin", path)], library=None) == FALLBACK
    assert capability_of(A10, [path], library=None) == "cuda:sm_86"
    real = GOLDEN / "add.fatbin"
    assert machine_targets("cubin/add.fatbin", real) == ("cuda:sm_80", "cuda:sm_90a")
    assert fallback_of([("cubin/add.fatbin", real)], library=None) == Fallback(Capability("cuda:compute_80"), "8.8")
    with pytest.raises(MalformedDocument, match="no kernel that can be read"):
        machine_targets("cubin/k.spv", path)


def test_of_a_files_images_those_count_that_run_on_the_profiles_card() -> None:
    hopper = a_profile(capability="cuda:sm_90", device=a_device())
    assert capability_of(hopper, [GOLDEN / "add.fatbin"], library=None) == "cuda:sm_90a"
    ampere = a_profile(capability="cuda:sm_80", device=a_device())
    assert capability_of(ampere, [GOLDEN / "add.fatbin"], library=None) == "cuda:sm_80"


def test_an_artifact_falls_back_only_where_all_its_kernels_do(tmp_path: Path) -> None:
    newer = fat(tmp_path, ptx=89, version=(8, 5))
    both = [("cubin/a.fatbin", fat(tmp_path)), ("cubin/b.fatbin", newer)]
    assert fallback_of(both, library=None) == Fallback(Capability("cuda:compute_89"), "8.7")
    cubin = tmp_path / "c.cubin"
    cubin.write_bytes(an_elf_file(machine=EM_CUDA, abi_version=8, flags=86 << 8))
    assert fallback_of([*both, ("cubin/c.cubin", cubin)], library=None) is None
    assert fallback_of([*both, ("cubin/d.fatbin", fat(tmp_path, ptx=None))], library=None) is None
    assert fallback_of([], library=None) is None


@pytest.mark.parametrize("suffix", ["a", "f"])
def test_ptx_of_one_architecture_alone_stands_in_for_nothing(tmp_path: Path, suffix: str) -> None:
    """What Triton writes from sm_90 on."""
    assert fallback_of([("cubin/k.fatbin", fat(tmp_path, ptx=100, suffix=suffix))], library=None) is None


def test_the_report_says_what_the_option_came_to() -> None:
    capability = Capability("cuda:sm_86")
    assert multi_arch_note(Recipe(), capability, None) is None
    assert "have no PTX that a newer card takes" in str(multi_arch_note(WANTED, capability, None))
    told = str(multi_arch_note(WANTED, capability, FALLBACK))
    assert "cards from compute_86 on run it untuned, where their driver reads PTX 8.7" in told


def test_a_newer_card_runs_it_untuned() -> None:
    artifact = an_artifact_with(FALLBACK)
    assert verdict_on(artifact, a_host("cuda:sm_86")).level is Level.FITS
    verdict = verdict_on(artifact, a_host("cuda:sm_90", sku="NVIDIA H100 80GB HBM3", sm_count=132))
    assert isinstance(verdict, Accepted)
    assert verdict.level is Level.TUNED_ELSEWHERE
    (note,) = [note.text for note in verdict.notes if note.kind == "machine_code"]
    assert note == (
        "runs, not tuned, not proven on it: the driver compiles its PTX for cuda:sm_90, machine code is for cuda:sm_86"
    )
    here = verdict_on(artifact, a_host("cuda:sm_90"), policy=Policy(tuned_elsewhere=False))
    assert isinstance(here, Rejected)
    assert [reason.kind for reason in here.reasons] == ["machine_code"]


@pytest.mark.parametrize(
    ("host", "kinds"),
    [
        (a_host("cuda:sm_90", driver="565.57.01"), ["fallback"]),
        (a_host("cuda:sm_80"), ["capability"]),
    ],
    ids=["a driver that does not read the PTX", "an older card"],
)
def test_where_its_ptx_is_of_no_use_it_is_rejected(host: Environment, kinds: list[str]) -> None:
    verdict = verdict_on(an_artifact_with(FALLBACK), host)
    assert isinstance(verdict, Rejected)
    assert [reason.kind for reason in verdict.reasons] == kinds


def test_the_driver_of_a_card_that_runs_the_machine_code_need_not_read_the_ptx() -> None:
    assert verdict_on(an_artifact_with(FALLBACK), a_host("cuda:sm_86", driver="550.54.14")).level is Level.FITS


def test_without_ptx_a_newer_card_is_refused_as_before() -> None:
    verdict = verdict_on(an_artifact_with(None), a_host("cuda:sm_90"))
    assert isinstance(verdict, Rejected)
    assert [reason.kind for reason in verdict.reasons] == ["capability"]


def test_an_artifact_that_lists_ptx_must_say_which_driver_reads_it() -> None:
    whole = an_artifact_with(FALLBACK)
    guards: tuple[HostGuard, ...] = tuple(guard for guard in whole.host_guards if guard.kind != "fallback")
    verdict = verdict_on(an_artifact(capability=whole.capability, host_guards=guards), a_host("cuda:sm_86"))
    assert isinstance(verdict, Rejected)
    assert [reason.text for reason in verdict.reasons] == ["the artifact does not record its fallback"]
