"""The directories, environment and compiler of a compile child."""

import subprocess
import sys
import sysconfig
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

from aot.compile.headers import SharedCaches
from aot.compile.layout import Layout, package_place
from aot.schema.recipe import Recipe
from tests.builders import a_device, a_profile


def a_layout(tmp_path: Path, *, isolated: bool = False) -> Layout:
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    return Layout(
        scratch=tmp_path / "scratch",
        isolated=isolated,
        source=source,
        weights=(tmp_path / "w.safetensors",),
        headers=tmp_path / "shared",
    )


def test_places_are_fixed_in_the_sandbox_and_the_hosts_own_without_it(tmp_path: Path) -> None:
    inside = a_layout(tmp_path, isolated=True)
    assert inside.inside("build/cache") == PurePosixPath("/aot/build/cache")
    assert inside.inside("source") == PurePosixPath("/aot/source")
    assert inside.weights_inside() == ("/aot/weights/0.safetensors",)
    outside = a_layout(tmp_path)
    assert outside.inside("build/cache") == PurePosixPath(tmp_path / "scratch/build/cache")
    assert outside.inside("source") == PurePosixPath(tmp_path / "source")
    assert outside.inside("headers") == PurePosixPath(tmp_path / "shared")
    assert outside.weights_inside() == (str(tmp_path / "w.safetensors"),)


def test_only_output_and_build_are_writable_in_the_sandbox(tmp_path: Path) -> None:
    binds = a_layout(tmp_path, isolated=True).binds()
    assert {str(bind.inside): bind.mode.value for bind in binds} == {
        "/aot/job": "read",
        "/aot/out": "write",
        "/aot/build": "write",
        "/aot/source": "read",
        "/aot/headers": "read",
        "/aot/weights/0.safetensors": "read",
    }


def test_the_environment_is_the_recipes_under_what_a_build_needs(tmp_path: Path) -> None:
    layout = a_layout(tmp_path)
    env = layout.environment(Recipe(environment={"SIZE": "small", "LANG": "tr_TR.UTF-8"}), a_profile())
    assert env["SIZE"] == "small"
    assert env["LANG"] == "C.UTF-8"
    assert env["PATH"].startswith(str(tmp_path / "scratch/job/bin") + ":")
    assert env["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "scratch/build/cache")
    assert env["PYTHONPATH"] == str(package_place().parent)
    assert env["ATEN_CPU_CAPABILITY"] == "avx2"
    assert "OMP_NUM_THREADS" not in env


def test_packages_from_elsewhere_are_found_and_leave_no_path_in_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Path
) -> None:
    before = SharedCaches(tmp_path).place_for(a_profile())
    place = tmp_path / "deps"
    (place / "torch-2.13.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr("sys.path", ["", str(place), *sys.path])
    layout = a_layout(tmp_path)
    assert layout.environment(Recipe(), a_profile())["PYTHONPATH"].split(":")[0] == str(place)
    layout.prepare(compiler, march="x86-64-v3")
    assert f"-ffile-prefix-map={place}=/p" in ask(layout, "-c", "a.cpp")
    # Compiled headers name those that they came from.
    assert SharedCaches(tmp_path).place_for(a_profile()) != before


def test_packages_below_a_virtual_environment_leave_no_path_in_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Path
) -> None:
    """One that was made with --system-site-packages has torch from the interpreter that it stands on."""
    below = "/opt/it's own/site-packages"
    monkeypatch.setattr("site.getsitepackages", lambda: [sysconfig.get_paths()["purelib"], below])
    layout = a_layout(tmp_path)
    layout.prepare(compiler, march="x86-64-v3")
    assert f"-ffile-prefix-map={below}=/p" in ask(layout, "-c", "a.cpp")


def test_pinned_threads_reach_the_child(tmp_path: Path) -> None:
    assert a_layout(tmp_path).environment(Recipe(), a_profile(threads=3))["OMP_NUM_THREADS"] == "3"


def test_a_gpu_build_is_not_held_back_and_may_compile_in_parallel(tmp_path: Path) -> None:
    env = a_layout(tmp_path).environment(Recipe(), a_profile(capability="cuda:sm_90", device=a_device()))
    assert "ATEN_CPU_CAPABILITY" not in env
    assert "LD_LIBRARY_PATH" in env
    assert "TORCHINDUCTOR_COMPILE_THREADS" not in env


def test_all_processes_of_a_gpu_build_take_the_assembler_that_torch_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's workers take it by themselves, and what they compile is found by none that takes Triton's."""
    torch = tmp_path / "torch"
    monkeypatch.setattr(
        "aot.environment.assembler.find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(torch)])
    )
    profile = a_profile(capability="cuda:sm_90", device=a_device())
    assert "TRITON_PTXAS_PATH" not in a_layout(tmp_path).environment(Recipe(), profile)
    assembler = torch / "bin/ptxas"
    assembler.parent.mkdir(parents=True)
    assembler.write_text("#!/bin/sh\n")
    assembler.chmod(0o755)
    assert a_layout(tmp_path).environment(Recipe(), profile)["TRITON_PTXAS_PATH"] == str(assembler)
    assert "TRITON_PTXAS_PATH" not in a_layout(tmp_path).environment(Recipe(), a_profile())


def test_kernels_of_a_gpu_build_have_no_lines_unless_the_recipe_asks_for_them(tmp_path: Path) -> None:
    """Lines name files of the builder, and make one kernel's bytes differ by where its source lay."""
    profile = a_profile(capability="cuda:sm_90", device=a_device())
    wanted = Recipe(environment={"TRITON_DISABLE_LINE_INFO": "0"})
    assert a_layout(tmp_path).environment(Recipe(), profile)["TRITON_DISABLE_LINE_INFO"] == "1"
    assert a_layout(tmp_path).environment(wanted, profile)["TRITON_DISABLE_LINE_INFO"] == "0"
    assert "TRITON_DISABLE_LINE_INFO" not in a_layout(tmp_path).environment(Recipe(), a_profile())


def test_a_gpu_build_runs_on_the_card_that_its_worker_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = a_profile(capability="cuda:sm_90", device=a_device())
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = a_layout(tmp_path).environment(Recipe(), profile)
    assert found["CUDA_VISIBLE_DEVICES"] == "3" and "CUDA_DEVICE_ORDER" not in found
    assert "CUDA_VISIBLE_DEVICES" not in a_layout(tmp_path).environment(Recipe(), a_profile())


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """A compiler that prints its arguments, one a line."""
    path = tmp_path / "real-g++"
    path.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    path.chmod(0o755)
    return path


def ask(layout: Layout, *arguments: str) -> list[str]:
    program = layout.scratch / "job/bin/g++"
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_compiler_leaves_no_path_of_the_build_and_keeps_arguments_whole(tmp_path: Path, compiler: Path) -> None:
    layout = a_layout(tmp_path)
    layout.prepare(compiler, march="x86-64-v3")
    asked = ask(layout, "-c", "a file.cpp", "-D", 'NAME="x y"')
    assert asked[:4] == ["-c", "a file.cpp", "-D", 'NAME="x y"']
    assert f"-ffile-prefix-map={tmp_path}/scratch/build=/b" in asked
    assert f"-ffile-prefix-map={tmp_path}/shared=/h" in asked
    assert "-Wl,--build-id=none" not in asked


def test_only_a_linking_call_gets_linker_options(tmp_path: Path, compiler: Path) -> None:
    layout = a_layout(tmp_path)
    layout.prepare(compiler, march="x86-64-v3")
    assert "-Wl,--build-id=none" in ask(layout, "-shared", "-o", "x.so", "x.o")
    assert "-Wl,--build-id=none" not in ask(layout, "-x", "c++-header", "x.h", "-o", "x.h.gch")


def test_hashing_a_header_needs_no_openssl(tmp_path: Path, compiler: Path) -> None:
    import hashlib

    layout = a_layout(tmp_path)
    layout.prepare(compiler, march="x86-64-v3")
    (tmp_path / "a header.h").write_bytes(b"int x;")
    program = layout.scratch / "job/bin/openssl"
    asked = [str(program), "sha512", str(tmp_path / "a header.h")]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert printed.split()[-1] == hashlib.sha512(b"int x;").hexdigest()


def test_the_builders_own_instruction_set_becomes_the_profiles(tmp_path: Path, compiler: Path) -> None:
    layout = a_layout(tmp_path)
    layout.prepare(compiler, march="x86-64-v3")
    asked = ask(layout, "-O3", "-march=native", "", "*.cpp")
    assert asked[:4] == ["-O3", "-march=x86-64-v3", "", "*.cpp"]


@pytest.mark.parametrize(("march", "asked"), [("armv8-a", True), ("armv8.4-a", True), ("x86-64-v4", False)])
def test_atomics_of_a_higher_arm_level_are_not_linked_in(
    tmp_path: Path, compiler: Path, march: str, asked: bool
) -> None:
    layout = a_layout(tmp_path)
    layout.prepare(compiler, march=march)
    assert ("-mno-outline-atomics" in ask(layout, "-shared", "x.o")) is asked
