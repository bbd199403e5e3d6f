"""The instructions of compiled code are held against the profile's level, and what they are is recorded."""

import subprocess
import sys
from pathlib import Path

import pytest

from aot.compile.isa import check_instructions, offences_in
from aot.errors import BackendFailed, InvalidConfig
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.spec import File
from tests.builders import a_gpu_profile, a_profile, an_artifact

ZMM = "vpxorq %zmm17, %zmm17, %zmm17"
AMX = "tilezero %tmm0"


def a_library(place: Path, *instructions: str) -> Path:
    """A shared object with one function of these instructions."""
    body = "\n".join((*instructions, "ret"))
    text = f".globl kernel\n.type kernel,@function\nkernel:\n{body}\n.size kernel,.-kernel\n"
    (place / "kernel.s").write_text(text)
    library = place / "kernel.so"
    subprocess.run(["gcc", "-shared", "-nostdlib", str(place / "kernel.s"), "-o", str(library)], check=True)
    return library


def an_artifact_of(library: Path) -> tuple[Artifact, dict[Digest, Path]]:
    content = library.read_bytes()
    file = File(path="lib/model.so", digest=Digest.of(content), size_bytes=len(content))
    return an_artifact(files=(file,)), {file.digest: library}


def test_code_of_the_level_is_recorded_with_what_it_uses(tmp_path: Path) -> None:
    artifact, paths = an_artifact_of(a_library(tmp_path, "vpxor %ymm1, %ymm1, %ymm1"))
    (found,) = check_instructions((artifact,), paths, a_profile(capability="cpu:x86-64-v4"))
    assert (found.facts["isa_used"], found.facts["vector_bits"]) == ("x86-64-v3", "256")
    assert {**artifact.facts, **found.facts} == found.facts


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v2", "x86-64-v3"])
def test_an_instruction_above_the_level_fails_the_build_by_name(tmp_path: Path, level: str) -> None:
    artifact, paths = an_artifact_of(a_library(tmp_path, ZMM))
    with pytest.raises(BackendFailed) as caught:
        check_instructions((artifact,), paths, a_profile(capability=f"cpu:{level}"))
    assert f"is compiled for {level}, and its code is not: kernel+0x0: " in caught.value.message
    assert "(avx512f)" in caught.value.message
    assert "vpxorq" in caught.value.message


def test_tiles_are_above_every_level(tmp_path: Path) -> None:
    (offence,) = offences_in(a_library(tmp_path, AMX), a_profile(capability="cpu:x86-64-v4"))
    assert "amx_tile" in offence


def test_bytes_that_are_no_instruction_are_refused(tmp_path: Path) -> None:
    (offence,) = offences_in(a_library(tmp_path, ".byte 0x06"), a_profile(capability="cpu:x86-64-v4"))
    assert "is no instruction" in offence


@pytest.mark.parametrize(("hidden", "fault"), [(".byte 0x06", "06c3 is no instruction"), (ZMM, "(avx512f)")])
def test_executable_bytes_in_no_function_fail_the_build_by_section(tmp_path: Path, hidden: str, fault: str) -> None:
    library = a_library(tmp_path, "nop", f'.section .stuff,"ax",@progbits\n{hidden}\nret\n.text')
    artifact, paths = an_artifact_of(library)
    with pytest.raises(BackendFailed) as caught:
        check_instructions((artifact,), paths, a_profile())
    assert "its code is not: section .stuff+0x0: " in caught.value.message
    assert caught.value.message.endswith(fault)


def test_host_code_beside_gpu_kernels_is_not_looked_at(tmp_path: Path) -> None:
    artifact, paths = an_artifact_of(a_library(tmp_path, ZMM))
    assert check_instructions((artifact,), paths, a_gpu_profile()) == (artifact,)


def test_without_a_decoder_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aot.facts.isa_x86", None)
    with pytest.raises(InvalidConfig, match="cannot be read"):
        offences_in(a_library(tmp_path), a_profile())
