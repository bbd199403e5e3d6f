"""CUTLASS: a recipe that asks for it gets it, or hears by name what the worker lacks; what the child is told of it."""

import shutil
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from aot.compile import run
from aot.compile.cutlass import CUTLASS_DIR, check_cutlass, find_cutlass, import_cutlass, report_cutlass
from aot.compile.job import CompileJob
from aot.compile.layout import Layout
from aot.compile.multi_arch import MULTI_ARCH
from aot.compile.run import Compiled, compile_source
from aot.errors import BackendFailed, InvalidSpec
from aot.recipes import check_recipe
from aot.schema.recipe import Recipe
from aot.schema.report import CompileReport
from aot.source import OpenedSource
from tests.builders import a_fingerprint, a_gpu_profile, a_profile, a_spec, a_toolchain
from tests.unit.test_compile_run import an_exit
from tests.unit.test_multi_arch import a_tool

BACKENDS = "max_autotune_gemm_backends"
WANTED = Recipe(options={BACKENDS: "ATEN, TRITON, cutlass "})
HOPPER = a_gpu_profile()
DONE = Compiled(
    artifacts=(),
    fingerprint=a_fingerprint(),
    parameters=(),
    report=CompileReport(),
    paths={},
    exit=an_exit(),
)


PARTS = ("python/cutlass_library", "python/cutlass_cppgen", "python/pycute", "include/cutlass", "tools/util/include")


def a_cutlass(place: Path) -> Path:
    for part in PARTS:
        (place / part).mkdir(parents=True)
    (place / "include/cutlass/version.h").write_text(
        "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0 \n#define CUTLASS_BUILD 1\n"
    )
    return place


def a_toolkit(place: Path) -> str:
    """The directory of its nvcc; its headers are there too."""
    (place / "include").mkdir(parents=True)
    (place / "include/curand_kernel.h").touch()
    return str(a_tool(place / "bin"))


def test_it_is_a_recipes_to_ask_for_with_the_options_that_bound_it() -> None:
    bounds = {"cutlass.cutlass_max_profiling_configs": 8, "cutlass.cutlass_op_allowlist_regex": "128x128"}
    check_recipe(Recipe(options={BACKENDS: "CUTLASS", **bounds}))


@pytest.mark.parametrize("options", [{}, {BACKENDS: "ATEN,TRITON"}, {BACKENDS: None}], ids=str)
def test_who_does_not_ask_for_it_needs_none(options: dict[str, str | None]) -> None:
    assert check_cutlass(Recipe(options=options), HOPPER, environ={CUTLASS_DIR: "/nowhere"}, search_path="") is None


def test_a_worker_without_it_refuses_by_name(tmp_path: Path) -> None:
    search = a_toolkit(tmp_path)
    environ = {CUTLASS_DIR: str(tmp_path / "cutlass")}
    with pytest.raises(BackendFailed, match="names CUTLASS, and this worker has none: there is no python/cutlass_libr"):
        check_cutlass(WANTED, HOPPER, environ=environ, search_path=search)
    place = a_cutlass(tmp_path / "cutlass")
    assert check_cutlass(WANTED, HOPPER, environ=environ, search_path=search) == place
    for part in PARTS:
        (place / part).rename(tmp_path / "away")
        with pytest.raises(BackendFailed, match=rf"there is no {part} in .*/cutlass") as caught:
            check_cutlass(WANTED, HOPPER, environ=environ, search_path=search)
        (tmp_path / "away").rename(place / part)
    assert (caught.value.details["backend"], CUTLASS_DIR in str(caught.value.hint)) == ("cutlass", True)


def test_a_worker_without_nvcc_refuses_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.compile.multi_arch.find_spec", lambda name: None)
    environ = {CUTLASS_DIR: str(a_cutlass(tmp_path / "cutlass"))}
    with pytest.raises(BackendFailed, match="needs nvcc of the CUDA toolkit, and this worker has none"):
        check_cutlass(WANTED, HOPPER, environ=environ, search_path=str(tmp_path))


def test_a_toolkit_without_the_headers_refuses_by_name(tmp_path: Path) -> None:
    place, search = a_cutlass(tmp_path / "cutlass"), str(a_tool(tmp_path / "toolkit/bin"))
    environ = {CUTLASS_DIR: str(place)}
    with pytest.raises(
        BackendFailed, match=r"need curand_kernel\.h, and this worker has none: looked in .*/toolkit/inc"
    ):
        check_cutlass(WANTED, HOPPER, environ=environ, search_path=search)
    headers = tmp_path / "toolkit/targets/x86_64-linux/include"
    headers.mkdir(parents=True)
    (headers / "curand_kernel.h").touch()
    assert check_cutlass(WANTED, HOPPER, environ=environ, search_path=search) == place
    (headers / "curand_kernel.h").rename(place / "include/curand_kernel.h")
    assert check_cutlass(WANTED, HOPPER, environ=environ, search_path=search) == place


@pytest.mark.parametrize("capability", ["cpu:x86-64-v3", "rocm:gfx942"])
def test_it_is_refused_for_what_is_no_card_of_nvidia(capability: str) -> None:
    with pytest.raises(InvalidSpec, match="is for cards of NVIDIA"):
        check_cutlass(WANTED, a_profile(capability=capability))


def test_with_fat_binaries_it_is_refused_before_torch_asserts() -> None:
    with pytest.raises(InvalidSpec, match=r"for one architecture, and option .*emit_multi_arch_kernel"):
        check_cutlass(Recipe(options={BACKENDS: "CUTLASS", MULTI_ARCH: True}), HOPPER)


def test_a_build_asks_before_anything_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUTLASS_DIR, str(tmp_path / "none"))
    source, scratch = OpenedSource(tree=tmp_path, entry="model:make", program=None, weights=()), tmp_path / "scratch"
    with pytest.raises(BackendFailed, match=r"this worker has none: there is no python/cutlass_library in .*/none"):
        compile_source(source, a_spec(recipe=WANTED), HOPPER, scratch=scratch, sandbox=None)
    assert not scratch.exists()


def test_it_lies_where_torch_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_cutlass({CUTLASS_DIR: f"{tmp_path}/other/.."}) == tmp_path.resolve()
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(package.parent)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert find_cutlass({}) == (tmp_path / "site" / "third_party" / "cutlass").resolve()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(BackendFailed, match="torch, which would use it, is not installed"):
        find_cutlass({})


@pytest.mark.parametrize("isolated", [True, False])
def test_the_child_sees_it_and_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated: bool) -> None:
    monkeypatch.setattr("aot.compile.layout.find_toolkit", lambda: Path("/opt/toolkit/bin"))
    layout = Layout(scratch=tmp_path, isolated=isolated, cutlass=tmp_path / "cutlass")
    environment = layout.environment(WANTED, HOPPER)
    assert environment["PATH"].endswith(":/opt/toolkit/bin")
    seen = "/aot/cutlass" if isolated else str(tmp_path / "cutlass")
    assert environment[CUTLASS_DIR] == seen
    (bind,) = [bind for bind in layout.binds() if bind.host == tmp_path / "cutlass"]
    assert (str(bind.inside), bind.mode.value) == ("/aot/cutlass", "read")
    without = Layout(scratch=tmp_path, isolated=isolated)
    assert CUTLASS_DIR not in without.environment(Recipe(), HOPPER)
    assert not [bind for bind in without.binds() if bind.inside.name == "cutlass"]


def test_the_hosts_part_of_a_source_is_compiled_without_places_of_the_builder(tmp_path: Path) -> None:
    """CUTLASS's own checks hold the names of their files. Triton compiles C with the gcc that it finds, not ours."""
    layout = Layout(scratch=tmp_path / "scratch", isolated=False, cutlass=tmp_path / "cutlass")
    layout.prepare(Path("/opt/bin/g++"), march="x86-64-v2")
    environment = layout.environment(WANTED, HOPPER)
    compiler = environment["NVCC_PREPEND_FLAGS"].split()[0].removeprefix("-ccbin=")
    wrapper = Path(shutil.which(compiler, path=environment["PATH"]) or "").read_text()
    assert "exec /opt/bin/g++ " in wrapper
    assert f"-ffile-prefix-map={tmp_path}/scratch/build=/b" in wrapper
    assert f"-ffile-prefix-map={tmp_path}/cutlass=/c" in wrapper
    assert not (tmp_path / "scratch/job/bin/gcc").exists()
    without = Layout(scratch=tmp_path / "other", isolated=False)
    assert "NVCC_PREPEND_FLAGS" not in without.environment(Recipe(), HOPPER)


def test_what_nvcc_makes_is_not_packed(tmp_path: Path) -> None:
    """Kernels in a packed cubin could not be listed."""
    layout = Layout(scratch=tmp_path, isolated=False, cutlass=tmp_path / "cutlass")
    assert "-no-compress" in layout.environment(WANTED, HOPPER)["NVCC_PREPEND_FLAGS"].split()


def test_a_build_shows_the_child_where_it_is_and_reports_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, seen = a_cutlass(tmp_path / "cutlass"), {}
    monkeypatch.setenv(CUTLASS_DIR, str(place))
    monkeypatch.setattr(run, "check_cutlass", partial(check_cutlass, search_path=a_toolkit(tmp_path / "toolkit")))
    monkeypatch.setattr(run, "run_child", lambda command, **given: seen.update(given["env"]))
    monkeypatch.setattr(run, "read_outcome", lambda *of, **given: None)
    monkeypatch.setattr(run, "_accept", lambda *of, **given: DONE)
    tree = tmp_path / "tree"
    tree.mkdir()
    source = OpenedSource(tree=tree, entry="model:make", program=None, weights=())
    made = compile_source(source, a_spec(recipe=WANTED), HOPPER, scratch=tmp_path / "scratch", sandbox=None, devices=())
    assert seen[CUTLASS_DIR] == str(place)
    assert made.report.toolchain["cutlass"] == "4.2.0"


def test_it_is_imported_when_the_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch puts stand-ins for scipy beside it on Python's path: a model that looks for scipy must not find those."""
    import torch

    from aot.compile import card, child, cutlass

    seen: list[str] = []

    def refuse(recipe: Recipe) -> None:
        seen.append("cutlass")
        raise InvalidSpec("far enough", hint="")

    monkeypatch.setattr(card, "check_card", lambda profile: None)
    monkeypatch.setattr(child, "open_job", lambda job: seen.append("model"))
    monkeypatch.setattr(cutlass, "import_cutlass", refuse)
    monkeypatch.setattr(child, "_import_compiler", lambda profile: None)
    profile = a_gpu_profile(toolchain=a_toolchain(torch=str(torch.__version__), cuda="13.0"))
    with pytest.raises(InvalidSpec, match="far enough"):
        child.run_job(CompileJob(profile=profile, out=str(tmp_path), build=str(tmp_path)), child.Progress(None))
    assert seen == ["model", "cutlass"]


def test_the_report_says_which_release_it_was(tmp_path: Path) -> None:
    report = CompileReport(toolchain={"torch": "2.11.0"})
    assert report_cutlass(report, None) == report
    assert report_cutlass(report, a_cutlass(tmp_path)).toolchain == {"torch": "2.11.0", "cutlass": "4.2.0"}
    assert report_cutlass(report, tmp_path / "none").toolchain["cutlass"] == "unknown"


def test_what_torch_cannot_import_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch says so at level debug alone, and tunes without."""
    utils = ModuleType("torch._inductor.codegen.cutlass.utils")
    monkeypatch.setattr(utils, "try_import_cutlass", lambda: False, raising=False)
    monkeypatch.setitem(sys.modules, "torch._inductor.codegen.cutlass.utils", utils)
    names = ["cutlass_cppgen", "cutlass_library", *(f"cutlass_library.{one}" for one in ("generator", "library"))]
    for name in (*names, "cutlass_library.manifest", "pycute"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for missing in ("pycute", "cutlass_library.manifest", "cutlass_cppgen"):
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(BackendFailed, match=rf"torch cannot import it: {missing}: "):
            import_cutlass(WANTED)
    import_cutlass(Recipe())
    monkeypatch.setattr(utils, "try_import_cutlass", lambda: True)
    import_cutlass(WANTED)
