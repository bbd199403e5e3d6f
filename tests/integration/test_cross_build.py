"""Triton kernels built for cards that are not here: every target, equal bytes, and what misbehaves."""

import re
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from aot.compile.kernels.code_object import read_code_object
from aot.compile.kernels.targets import TARGETS
from aot.errors import (
    AotError,
    BackendFailed,
    CompileTimedOut,
    InvalidProfile,
    InvalidSpec,
    QualificationFailed,
    SourceNotLoadable,
)
from aot.facts import find_absolute_paths
from aot.pipeline.kernels import build_kernels, kernel_profile, kernel_spec, pack_kernel
from aot.pipeline.recheck import refuse_false_facts
from aot.schema.capability import Capability
from aot.schema.guard import HostGuard
from aot.schema.names import Name, Namespace
from aot.schema.recipe import Recipe, Route
from aot.schema.spec import Commit, Limits
from aot.source import OpenedSource
from tests.builders import altered
from tests.integration import cross_builds as cross
from tests.kernel_builders import a_kernel_profile, a_kernel_spec, a_signature

pytest.importorskip("triton", reason="kernels are compiled by Triton")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_gets_code_of_its_own(tmp_path: Path, target: str) -> None:
    built = cross.build(tmp_path, target)
    [artifact] = built.artifacts
    [file] = artifact.files
    found = read_code_object(built.paths[file.digest])
    assert found.kernels == ("add",) == (artifact.launch.entry,)
    assert found.capability.removesuffix("a") == target.removesuffix("a")
    assert TARGETS[Capability(target)].capability.runs(found.capability)
    assert artifact.capability == found.capability
    assert (artifact.route, artifact.tuned, artifact.instances) == (Route.KERNEL, False, ())
    assert artifact.launch.threads == 4 * TARGETS[Capability(target)].warp_size
    assert [(one.name, one.type) for one in artifact.launch.arguments] == [
        ("x", "*fp32"),
        ("y", "*fp32"),
        ("out", "*fp32"),
        ("n", "i32"),
    ]


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_100", "rocm:gfx942"])
def test_equal_sources_in_two_places_give_equal_bytes(tmp_path: Path, target: str) -> None:
    first = cross.build(tmp_path / "one", target, entry="kernels:product", signatures=(cross.a_product(),))
    # Another depth, no sandbox, hence other paths in the child too.
    place = tmp_path / "a" / "longer" / "path"
    second = cross.build(place, target, entry="kernels:product", signatures=(cross.a_product(),), isolated=False)
    assert first.artifacts == second.artifacts
    assert first.fingerprint == second.fingerprint
    for digest, path in second.paths.items():
        assert path.read_bytes() == first.paths[digest].read_bytes()
        assert find_absolute_paths(path, [gettempdir(), "/aot", "/home", "/root"]) == ()
        assert b"kernels.py" not in path.read_bytes()


def test_alignment_warps_and_constants_change_the_code(tmp_path: Path) -> None:
    signatures = (
        a_signature(),
        a_signature("unaligned", divisible=()),
        a_signature("wide", num_warps=8),
        a_signature("small", constants={"BLOCK": 128}),
        a_signature("half", types={"x": "*fp16", "y": "*fp16", "out": "*fp16", "n": "i32"}),
    )
    built = cross.build(tmp_path, "cuda:sm_80", signatures=signatures)
    assert [artifact.region for artifact in built.artifacts] == [signature.name for signature in signatures]
    contents = [cross.content_of(built, artifact) for artifact in built.artifacts]
    assert len(set(contents)) == len(contents)
    assert [artifact.launch.threads for artifact in built.artifacts] == [128, 128, 256, 128, 128]


def test_triton_keeps_its_cache_in_the_builds_own_directory(tmp_path: Path) -> None:
    cross.build(tmp_path)
    kept = {path.suffix for path in (tmp_path / "scratch" / "build" / "cache" / "triton").rglob("add.*")}
    assert {".ttir", ".cubin", ".json"} <= kept


def test_a_launch_knows_the_shared_memory_it_needs(tmp_path: Path) -> None:
    built = cross.build(tmp_path, "cuda:sm_90", entry="kernels:product", signatures=(cross.a_product(),))
    [artifact] = built.artifacts
    assert 0 < artifact.launch.shared_bytes <= TARGETS[Capability("cuda:sm_90")].shared_bytes
    assert artifact.host_guards[0] == HostGuard(kind="capability", value="cuda:sm_90a")
    assert [guard.kind for guard in artifact.host_guards] == ["capability", "driver"]


# What misbehaves


def failure(tmp_path: Path, kind: type[AotError], target: str = "cuda:sm_90", **options: Any) -> AotError:
    with pytest.raises(kind) as caught:
        cross.build(tmp_path, target, **options)
    assert type(caught.value) is kind
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("kernels:plain", "kernels:plain is a function, wanted a function with @triton.jit"),
        ("kernels:tuned", "kernels:tuned is a Autotuner, wanted a function with @triton.jit"),
        ("kernels:missing", "kernels has no missing"),
        ("absent:add", "absent:add: importing it raised ModuleNotFoundError: No module named 'absent'"),
    ],
)
def test_an_entry_that_is_no_kernel_is_named(tmp_path: Path, entry: str, text: str) -> None:
    assert failure(tmp_path, SourceNotLoadable, entry=entry).message == text


def test_a_signature_of_another_kernel_names_the_arguments(tmp_path: Path) -> None:
    error = failure(tmp_path, InvalidSpec, entry="kernels:product")
    assert "the kernel has no argument BLOCK, n, out, x, y; it has a, b, c, depth, M, N, K" in error.message
    assert "it says nothing of a, b, c, depth, M, N, K" in error.message


def test_an_option_that_no_backend_has_is_refused(tmp_path: Path) -> None:
    error = failure(tmp_path, InvalidSpec, signatures=(a_signature(options={"waves_per_eu": 2}),))
    assert "this target has no option waves_per_eu" in error.message
    cross.build(tmp_path / "amd", "rocm:gfx942", signatures=(a_signature(options={"waves_per_eu": 2}),))


def test_a_kernel_that_does_not_compile_is_told_with_its_line(tmp_path: Path) -> None:
    signature = a_signature(types={"x": "*fp32", "n": "i32"}, divisible=())
    error = failure(tmp_path, BackendFailed, entry="kernels:wrong", signatures=(signature,))
    assert "signature f32 does not compile for cuda:sm_90" in error.message
    assert "undefined_name is not defined" in error.message
    assert error.details["text"] == "tl.store(x + at, at + undefined_name)"
    assert error.details["line"] == 3
    assert "undefined_name" in error.details["log"]
    assert error.details["backend"] == "triton"


@pytest.mark.parametrize(("target", "most"), [("cuda:sm_89", 101376), ("rocm:gfx942", 65536)])
def test_a_kernel_with_too_much_shared_memory_is_refused(tmp_path: Path, target: str, most: int) -> None:
    signature = cross.a_product(size=128, depth=128, num_stages=4)
    error = failure(tmp_path, BackendFailed, target, entry="kernels:product", signatures=(signature,))
    assert re.search(r"\d+", error.message)
    assert str(most) in error.message + error.details["log"]


def test_code_that_names_where_it_was_built_is_refused(tmp_path: Path) -> None:
    code = cross.KERNELS.replace("    inside = at < n\n", "    inside = at < n\n    tl.device_print(HERE, n)\n")
    code += "\nHERE = tl.constexpr(__file__ + ' ')\n"
    error = failure(tmp_path, BackendFailed, code=code)
    assert "holds a path of the build" in error.message and "kernels.py" in error.message


def test_a_source_that_hangs_is_timed_out(tmp_path: Path) -> None:
    code = cross.KERNELS + "\nimport time\ntime.sleep(1000)\n"
    error = failure(tmp_path, CompileTimedOut, code=code, limits=Limits(wall_seconds=5, memory_bytes=2 << 30))
    assert "longer than 5 s, while loading" in error.message


def test_a_source_that_crashes_has_its_signal_named(tmp_path: Path) -> None:
    error = failure(tmp_path, SourceNotLoadable, code="import ctypes\nctypes.string_at(0)\n")
    assert error.details["signal"] == "SIGSEGV"
    assert error.details["backend"] == "triton"


def test_a_source_that_crashes_triton_has_its_signal_named(tmp_path: Path) -> None:
    crash = "@triton.constexpr_function\ndef crash():\n    import ctypes\n    ctypes.string_at(0)\n\n\n"
    body = "@triton.jit\ndef add(x, y, out, n, BLOCK: tl.constexpr):\n    tl.store(x, crash())\n"
    code = "import triton\nimport triton.language as tl\n\n\n" + crash + body
    error = failure(tmp_path, BackendFailed, code=code)
    assert error.message == "the child died of SIGSEGV while compiling"
    assert error.details["backend"] == "triton"


def test_a_block_that_no_card_starts_is_refused(tmp_path: Path) -> None:
    wide = (a_signature(num_warps=32),)
    error = failure(tmp_path, InvalidSpec, "rocm:gfx942", signatures=wide)
    assert "32 warps of 64 are 2048 threads, a block has 1024 at most" in error.message
    [artifact] = cross.build(tmp_path / "nvidia", "cuda:sm_90", signatures=wide).artifacts
    assert artifact.launch.threads == 1024


@pytest.mark.parametrize(
    ("pin", "text"),
    [
        ("msgspec==0.0.1", "requires msgspec==0.0.1, this machine has"),
        ("no-such-package==1", "this machine has none"),
        ("msgspec>=1", "wanted an exact pin"),
    ],
)
def test_a_pin_that_this_machine_does_not_meet_is_refused(tmp_path: Path, pin: str, text: str) -> None:
    tree = cross.write_kernels(tmp_path / "tree")
    with pytest.raises(InvalidSpec, match=text):
        pack_kernel(tree, "kernels:add", (a_signature(),), into=tmp_path / "packed", requirements=(pin,))


def test_a_profile_of_another_triton_is_refused(tmp_path: Path) -> None:
    error = failure(tmp_path, InvalidProfile, profile=a_kernel_profile(triton="3.1.0"))
    assert "is for triton 3.1.0, this is" in error.message


def test_a_kernel_has_no_recipe_of_its_own(tmp_path: Path) -> None:
    from aot.compile.kernels.run import compile_kernels

    profile = a_kernel_profile()
    spec = a_kernel_spec(profile, recipe=Recipe(routes=(Route.KERNEL,), environment={"TRITON_DEBUG": "1"}))
    with pytest.raises(InvalidSpec, match="no recipe"):
        compile_kernels(
            OpenedSource(tmp_path, "kernels:add", None, ()), spec, profile, scratch=tmp_path / "s", sandbox=None
        )


# The bundle


def test_a_bundle_of_kernels_says_only_what_its_files_say(tmp_path: Path) -> None:
    profile = kernel_profile("cuda:sm_90")
    tree = cross.write_kernels(tmp_path / "tree")
    packed = pack_kernel(tree, "kernels:add", (a_signature(),), into=tmp_path / "packed")
    spec = kernel_spec(packed, profile, namespace=Namespace("default"), name=Name("add"))
    spec = altered(spec, commit=Commit(revision="0" * 40, dirty=True))
    staged = build_kernels(spec, packed, profile, scratch=tmp_path / "work", sandbox=None, builder="someone")
    manifest = staged.manifest
    assert (manifest.provenance.commit, manifest.provenance.dirty) == ("0" * 40, True)
    assert manifest.qualification.start is None and manifest.canaries == ()
    refuse_false_facts(manifest, staged.paths)
    [artifact] = manifest.artifacts
    lies = {
        "its code is for cuda:sm_90a": altered(artifact, capability=Capability("cuda:sm_80")),
        "its guards are capability cuda:sm_90a": altered(artifact, host_guards=artifact.host_guards[:1]),
        "its code object holds add": altered(artifact, launch=altered(artifact.launch, entry="other")),
    }
    for text, lie in lies.items():
        with pytest.raises(QualificationFailed, match=text):
            refuse_false_facts(altered(manifest, artifacts=(lie,)), staged.paths)
