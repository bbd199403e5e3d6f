"""Facts and host guards of a pushed bundle are its files', not its uploader's word."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from aot.compile.kernels import kept
from aot.compile.options import cpu_capability
from aot.errors import LeaseLost, QualificationFailed
from aot.facts.kernels import read_code_facts, read_kernels
from aot.pipeline.recheck import refuse_false_facts
from aot.schema.artifact import Artifact, KernelFacts
from aot.schema.capability import Capability
from aot.schema.guard import HostGuard
from aot.schema.manifest import Manifest
from aot.schema.recipe import Route
from tests.builders import (
    BYTES,
    a_file,
    a_gpu_profile,
    a_manifest,
    a_profile,
    a_program,
    a_readable_artifact,
    a_spec,
    an_artifact,
    an_elf,
    host_guards,
)
from tests.elf_files import an_elf_file
from tests.kernels import GOLDEN
from tests.unit.test_facts_fatbin import a_fatbin, an_image

PYTHON = HostGuard(kind="python", value="3.11")


def check(manifest: Manifest, place: Path) -> None:
    paths = {}
    for blob in manifest.blobs:
        paths[blob.digest] = place / blob.digest.hex
        paths[blob.digest].write_bytes(BYTES[blob.digest])
    refuse_false_facts(manifest, paths)


def test_between_artifacts_it_is_asked_whether_to_stop() -> None:
    """A bundle may have thousands of them, and the worker's lease does not wait."""

    def stop() -> None:
        raise LeaseLost("the lease is lost", hint="")

    with pytest.raises(LeaseLost):
        refuse_false_facts(a_manifest(), {}, should_stop=stop)


def test_a_blob_that_all_artifacts_keep_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked, once = [], kept._unpack
    monkeypatch.setattr(kept, "_unpack", lambda content, most: unpacked.append(most) or once(content, most))
    files = (a_file(), a_file("cubin/c1.cubin", b"cubin"))
    artifact = an_artifact(files=files, kept=a_file(kept.KEPT_FILE, b"not packed, and longer than a header"))
    with pytest.raises(QualificationFailed) as caught:
        check(a_manifest(artifacts=(artifact, artifact, artifact)), tmp_path)
    told = [line for line in caught.value.details["differences"] if "what it keeps for other cards" in line]
    assert (len(told), unpacked) == (3, [kept.MOST_KERNEL_BYTES])


def guards(**values: str) -> tuple[HostGuard, ...]:
    return tuple(
        HostGuard(kind=guard.kind, value=values.get(guard.kind, guard.value)) for guard in (*host_guards(), PYTHON)
    )


def a_cubin(sm: int, *, specific: bool = False) -> bytes:
    return an_elf_file(machine=190, abi_version=8, flags=sm << 8 | (8 if specific else 0))


def a_library(inside: bytes) -> bytes:
    return an_elf_file(
        needed=an_elf().needed,
        asked={"libc.so.6": ("GLIBC_2.34",), "libstdc++.so.6": ("GLIBCXX_3.4.30",)},
        sections={".nv_fatbin": (1, inside)} if inside else None,
    )


def on_gpu(*, cubin: bytes, says: str, inside: bytes = b"") -> Manifest:
    """`inside`: a fat binary in the library."""
    profile = a_gpu_profile()
    base = a_readable_artifact(files=(a_file(content=a_library(inside)),))
    own = {guard.kind: guard.value for guard in (*host_guards(says, torch=profile.toolchain.torch), PYTHON)}
    own |= {"cuda": "13.0", "driver": "580.65.06", "sku": "NVIDIA H100 80GB HBM3", "cpu": cpu_capability(profile)}
    artifact = a_readable_artifact(
        capability=says,
        files=(*base.files, a_file("cubin/k.cubin", cubin)),
        host_guards=tuple(HostGuard(kind=kind, value=value) for kind, value in own.items()),
    )
    return a_manifest(a_spec(profile=profile.name), profile=profile, artifacts=(artifact,))


def test_kernels_inside_the_library_are_for_cards_too(tmp_path: Path) -> None:
    for_one = a_fatbin(tmp_path, an_image(a_cubin(90, specific=True), flags=0x11 | 0x10_0000)).read_bytes()
    check(on_gpu(cubin=a_cubin(90), says="cuda:sm_90a", inside=for_one), tmp_path)
    with pytest.raises(QualificationFailed, match="its code is for cuda:sm_90a"):
        check(on_gpu(cubin=a_cubin(90), says="cuda:sm_90", inside=for_one), tmp_path)
    other = a_fatbin(tmp_path, an_image(a_cubin(100), sm=100)).read_bytes()
    with pytest.raises(QualificationFailed, match="holds kernels for cuda:sm_100"):
        check(on_gpu(cubin=a_cubin(90), says="cuda:sm_90", inside=other), tmp_path)
    # Each of them is what one product runs: that another one fits is no help.
    with pytest.raises(QualificationFailed, match="holds kernels for cuda:sm_100"):
        check(on_gpu(cubin=a_cubin(90), says="cuda:sm_90a", inside=for_one + other), tmp_path)


def test_a_bundle_whose_files_say_the_same_passes(tmp_path: Path) -> None:
    check(a_manifest(artifacts=(a_readable_artifact(),)), tmp_path)
    of_program = a_manifest(a_spec(source=a_program()), artifacts=(a_readable_artifact(host_guards=host_guards()),))
    check(of_program, tmp_path)


@pytest.mark.parametrize(
    ("artifact", "words"),
    [
        (a_readable_artifact(elf=an_elf(libc_floor="2.17")), "its library says"),
        (a_readable_artifact(elf=None), "it says None"),
        (a_readable_artifact(host_guards=guards(libc="2.17")), "its guard libc is 2.17, wanted 2.34"),
        (a_readable_artifact(host_guards=guards(libstdcxx="3.4.11")), "its guard libstdcxx is 3.4.11, wanted 3.4.30"),
        (a_readable_artifact(host_guards=guards(machine="aarch64")), "its guard machine is aarch64, wanted x86_64"),
        (a_readable_artifact(host_guards=guards(torch="2.11.0+cpu")), "its guard torch is 2.11.0"),
        (a_readable_artifact(host_guards=host_guards()), "its guard python is not there, wanted 3.11"),
        (
            a_readable_artifact(host_guards=(*guards(), HostGuard(kind="libc", value="2.17"))),
            "its guard libc is 2.34, 2.17, wanted 2.34",
        ),
        (a_readable_artifact(files=(a_file(content=b"no library"),)), "its files cannot be used"),
        (a_readable_artifact(files=(a_file(), a_file("lib/b.so"))), "wanted one library, found 2"),
        (a_readable_artifact(route=Route.CACHE), "route cache"),
    ],
)
def test_a_fact_that_its_library_does_not_bear_out_is_refused(tmp_path: Path, artifact: Artifact, words: str) -> None:
    with pytest.raises(QualificationFailed) as caught:
        check(a_manifest(artifacts=(artifact,)), tmp_path)
    assert any(words in line for line in caught.value.details["differences"]), caught.value.details


def test_code_for_a_cpu_is_for_the_level_that_it_was_proven_on(tmp_path: Path) -> None:
    lower = a_readable_artifact(capability="cpu:x86-64-v2", host_guards=(*host_guards("cpu:x86-64-v2"), PYTHON))
    with pytest.raises(QualificationFailed) as caught:
        check(a_manifest(profile=a_profile(), artifacts=(lower,)), tmp_path)
    assert caught.value.details["differences"] == [
        "artifact 0: it says it is for cpu:x86-64-v2, its code is for cpu:x86-64-v3",
        "artifact 0: its guard capability is cpu:x86-64-v2, wanted cpu:x86-64-v3",
    ]


def test_kernels_say_which_cards_they_are_for(tmp_path: Path) -> None:
    check(on_gpu(cubin=a_cubin(90), says="cuda:sm_90"), tmp_path)
    check(on_gpu(cubin=a_cubin(90, specific=True), says="cuda:sm_90a"), tmp_path)
    with pytest.raises(QualificationFailed, match="its code is for cuda:sm_90a"):
        check(on_gpu(cubin=a_cubin(90, specific=True), says="cuda:sm_90"), tmp_path)
    with pytest.raises(QualificationFailed, match=Capability("cuda:sm_100")):
        check(on_gpu(cubin=a_cubin(100), says="cuda:sm_90"), tmp_path)


def with_file(manifest: Manifest, path: str, *, binaries: tuple[KernelFacts, ...] = ()) -> Manifest:
    """The same with its kernel's file under another name."""
    artifact = manifest.artifacts[0]
    files = tuple(
        msgspec.structs.replace(file, path=path) if file.path == "cubin/k.cubin" else file for file in artifact.files
    )
    changed = msgspec.structs.replace(artifact, files=files, binaries=binaries)
    return msgspec.structs.replace(manifest, artifacts=(changed,))


def test_of_a_fat_binary_one_image_must_run_here(tmp_path: Path) -> None:
    content = (GOLDEN / "add.fatbin").read_bytes()
    binaries = read_kernels([("cubin/k.fatbin", GOLDEN / "add.fatbin")], Capability("cpu:x86-64-v3"))
    assert len(binaries) == 2
    check(with_file(on_gpu(cubin=content, says="cuda:sm_90a"), "cubin/k.fatbin", binaries=binaries), tmp_path)
    with pytest.raises(QualificationFailed, match="its code is for cuda:sm_90a"):
        check(with_file(on_gpu(cubin=content, says="cuda:sm_90"), "cubin/k.fatbin", binaries=binaries), tmp_path)


def test_a_fat_binary_for_other_cards_is_refused(tmp_path: Path) -> None:
    path = a_fatbin(tmp_path, an_image(a_cubin(100), sm=100), an_image(a_cubin(120), sm=120))
    manifest = with_file(on_gpu(cubin=path.read_bytes(), says="cuda:sm_90"), "cubin/k.fatbin")
    path.unlink()
    with pytest.raises(QualificationFailed, match="it holds kernels for cuda:sm_100, cuda:sm_120"):
        check(manifest, tmp_path)


def test_a_kernel_file_of_an_unknown_kind_is_refused_by_name(tmp_path: Path) -> None:
    manifest = with_file(on_gpu(cubin=a_cubin(90), says="cuda:sm_90"), "cubin/k.spv")
    with pytest.raises(QualificationFailed, match=r"cubin/k.spv is no kernel that can be read: it ends in '.spv'"):
        check(manifest, tmp_path)


def with_kernels(**deviations) -> Manifest:
    """A bundle of a kernel for sm_90a, and what its bytes say of it unless a deviation says otherwise."""
    name = "add-sm_90.cubin"
    facts = {
        "name": "add_kernel",
        "path": f"cubin/{name}",
        "capability": Capability("cuda:sm_90a"),
        "size_bytes": 640,
        "registers": 16,
        "shared_bytes": 0,
        "spill_bytes": 0,
    }
    manifest = on_gpu(cubin=(GOLDEN / name).read_bytes(), says="cuda:sm_90a")
    artifact = manifest.artifacts[0]
    files = tuple(
        msgspec.structs.replace(file, path=facts["path"]) if file.path == "cubin/k.cubin" else file
        for file in artifact.files
    )
    binaries = (KernelFacts(**(facts | deviations)),)
    return msgspec.structs.replace(
        manifest, artifacts=(msgspec.structs.replace(artifact, files=files, binaries=binaries),)
    )


def differences(manifest: Manifest, place: Path) -> list[str]:
    with pytest.raises(QualificationFailed) as caught:
        check(manifest, place)
    return caught.value.details["differences"]


def test_what_is_said_of_kernels_is_what_their_bytes_say(tmp_path: Path) -> None:
    check(with_kernels(), tmp_path)
    wrong = "artifact 0: it says of its kernels what its files do not say: add_kernel"
    for deviation in ({"registers": 8}, {"spill_bytes": None}, {"capability": Capability("cuda:sm_90")}):
        assert differences(with_kernels(**deviation), tmp_path) == [wrong]
    assert differences(with_kernels(name="mul_kernel"), tmp_path) == [f"{wrong}, mul_kernel"]


def test_what_is_said_of_code_is_what_the_library_says(tmp_path: Path) -> None:
    library = an_elf_file(
        needed=an_elf().needed, asked={"libc.so.6": ("GLIBC_2.34",), "libstdc++.so.6": ("GLIBCXX_3.4.30",)}
    )
    (tmp_path / "library.so").write_bytes(library)
    said = read_code_facts(tmp_path / "library.so")
    check(a_manifest(artifacts=(a_readable_artifact(code=said),)), tmp_path)
    raised = msgspec.structs.replace(said, level="x86-64-v2")
    (difference,) = differences(a_manifest(artifacts=(a_readable_artifact(code=raised),)), tmp_path)
    assert "it says its code is" in difference


def test_code_above_its_level_is_refused_by_instruction(tmp_path: Path) -> None:
    source, library = tmp_path / "kernel.s", tmp_path / "kernel.so"
    source.write_text(
        ".globl kernel\n.type kernel,@function\nkernel:\nvpxord %zmm16, %zmm16, %zmm16\nret\n.size kernel,.-kernel\n"
    )
    subprocess.run(["gcc", "-shared", "-nostdlib", str(source), "-o", str(library)], check=True)
    artifact = a_readable_artifact(files=(a_file(content=library.read_bytes()),))
    with pytest.raises(QualificationFailed) as caught:
        check(a_manifest(artifacts=(artifact,)), tmp_path)
    (line,) = [line for line in caught.value.details["differences"] if "its code is not for cpu:x86-64-v3" in line]
    assert line.endswith("kernel+0x0: vpxord zmm16,zmm16,zmm16 (avx512f)")
