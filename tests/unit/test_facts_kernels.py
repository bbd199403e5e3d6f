"""Kernels read from real code objects (tests.kernels says how they were made), and from shared objects."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import msgspec
import pytest

from aot.errors import MalformedDocument
from aot.facts import read_cubin
from aot.facts.hsaco import read_hsaco
from aot.facts.kernels import read_code_facts, read_kernels
from aot.facts.ptx import PtxFacts, read_ptx
from aot.schema.artifact import KernelFacts
from aot.schema.capability import Capability
from tests.elf_files import SHT_NOTE, an_elf_file
from tests.kernels import GOLDEN, resource_usage

HOST = Capability("cpu:x86-64-v3")
CUBINS = sorted(path.stem for path in GOLDEN.glob("*.cubin"))
GFX942 = 0x54C

# file, kernel, capability, bytes of code, registers, scalar registers, shared memory, stack
FOUND = [
    ("add-gfx1100.hsaco", "add_kernel", "rocm:gfx1100", 332, 8, 18, 0, 0),
    ("add-gfx942.hsaco", "add_kernel", "rocm:gfx942", 372, 5, 21, 0, 0),
    ("add-gfx950.hsaco", "add_kernel", "rocm:gfx950", 372, 5, 21, 0, 0),
    ("dot-gfx90a.hsaco", "dot_kernel", "rocm:gfx90a", 1420, 61, 20, 0, 0),
    ("add-sm_80.cubin", "add_kernel", "cuda:sm_80", 640, 16, None, 0, 0),
    ("add-sm_90.cubin", "add_kernel", "cuda:sm_90a", 640, 16, None, 0, 0),
    ("dot-sm_90.cubin", "dot_kernel", "cuda:sm_90a", 3840, 56, None, 1024, 0),
    ("spill-sm_80.cubin", "dot_kernel", "cuda:sm_80", 14848, 32, None, 0, 712),
]

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.mark.parametrize("row", FOUND, ids=[row[0] for row in FOUND])
def test_a_kernel_of_a_real_code_object(row):
    path, name, capability, size, registers, scalar, shared, stack = row
    wanted = KernelFacts(
        name=name,
        path=f"cubin/{path}",
        capability=Capability(capability),
        size_bytes=size,
        registers=registers,
        scalar_registers=scalar,
        shared_bytes=shared,
        spill_bytes=stack,
    )
    assert read_kernels([(wanted.path, GOLDEN / path)], HOST) == (wanted,)


@pytest.mark.parametrize("stem", CUBINS)
def test_numbers_of_a_cubin_are_those_of_cuobjdump(stem):
    (usage,) = read_cubin(GOLDEN / f"{stem}.cubin").usages
    said = dict(re.findall(r"(\w+):(\d+)", (GOLDEN / f"{stem}.usage").read_text()))
    assert (usage.registers, usage.stack_bytes, usage.shared_bytes) == (
        int(said["REG"]),
        int(said["STACK"]),
        int(said["SHARED"]),
    )


def test_the_tool_of_this_machine_still_says_the_same():
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.is_file():
        pytest.skip("this Triton has no cuobjdump")
    for stem in CUBINS:
        assert resource_usage(tool, GOLDEN / f"{stem}.cubin") == (GOLDEN / f"{stem}.usage").read_text()


def test_no_code_object_holds_a_path_of_the_machine_that_made_it():
    for path in GOLDEN.iterdir():
        assert not re.search(rb"/(home|root|tmp|usr|work|build)/", path.read_bytes()), path.name


def test_kernels_are_listed_by_path_and_name():
    files = [(f"cubin/{path}", GOLDEN / path) for path, *_ in reversed(FOUND)]
    found = read_kernels([*files, ("constants/0.bin", GOLDEN / "missing")], HOST)
    assert [kernel.path for kernel in found] == sorted(path for path, _ in files)


def test_the_wavefront_of_amd_kernels():
    assert [read_hsaco(GOLDEN / f"add-{target}.hsaco").wavefront for target in ("gfx942", "gfx1100")] == [64, 32]


def test_ptx_says_its_version_target_and_kernels():
    assert read_ptx(GOLDEN / "add-sm_80.ptx") == PtxFacts(version="8.8", target="sm_80", kernels=("add_kernel",))


def test_text_that_is_no_ptx_is_refused(tmp_path):
    path = tmp_path / "notes.ptx"
    path.write_text("// .version 8.8\nversion 8.8\n.target sm_80\n")
    with pytest.raises(MalformedDocument, match=r"no .version and .target"):
        read_ptx(path)


def amd(metadata: object, **fields) -> bytes:
    content = metadata if isinstance(metadata, bytes) else msgspec.msgpack.encode(metadata)
    note = struct.pack("<III", 7, len(content), 32) + b"AMDGPU\0\0" + content + bytes(-len(content) % 4)
    return an_elf_file(
        **({"machine": 224, "abi_version": 3, "flags": GFX942, "sections": {".note": (SHT_NOTE, note)}} | fields)
    )


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        (an_elf_file(machine=190), "is not AMDGPU"),
        (amd({}, flags=0x5FF), "no known architecture"),
        (amd({"amdhsa.target": "amdgcn-amd-amdhsa--gfx90a"}), "metadata says gfx90a"),
        (amd({"amdhsa.target": "amdgcn-amd-amdhsa--gfx942", "amdhsa.kernels": 3}), "lists no kernels"),
        (amd({"amdhsa.target": "amdgcn-amd-amdhsa--gfx942:xnack-"}), "metadata says gfx942:xnack-"),
        (amd({}, abi_version=1), "ABI version 1"),
        (amd({"amdhsa.target": "amdgcn-amd-amdhsa--gfx942", "amdhsa.kernels": [{".name": "k"}]}), "lacks"),
        (amd(b"\xc1\xc1"), "does not decode"),
        (amd(b"\x91" * 200_000), "does not decode"),
        (amd({}, sections={}), "no metadata"),
    ],
)
def test_code_objects_that_contradict_themselves_are_refused(tmp_path, content, finding):
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(content)
    with pytest.raises(MalformedDocument, match=finding):
        read_hsaco(path)


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        (0x54C, "gfx942"),
        (0xE4C, "gfx942:sramecc+:xnack-"),
        (0xB3F, "gfx90a:sramecc-:xnack+"),
        (0x041, "gfx1100"),
    ],
)
def test_settings_that_amd_code_insists_on_are_part_of_its_capability(tmp_path, flags, target):
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(amd({"amdhsa.target": f"amdgcn-amd-amdhsa--{target}", "amdhsa.kernels": []}, flags=flags))
    assert read_hsaco(path).capability == Capability.parse(f"rocm:{target}")


@pytest.mark.parametrize("name", [row[0] for row in FOUND])
def test_a_truncated_code_object_is_refused_or_read_whole(tmp_path, name):
    content = (GOLDEN / name).read_bytes()
    path = tmp_path / name
    for size in range(0, len(content), len(content) // 40):
        path.write_bytes(content[:size])
        with pytest.raises(MalformedDocument):
            read_kernels([(name, path)], HOST)


def test_altered_bytes_never_end_in_another_error(tmp_path):
    for name in ("add-gfx942.hsaco", "dot-sm_90.cubin"):
        content = (GOLDEN / name).read_bytes()
        path = tmp_path / name
        for offset in range(0, len(content), 37):
            path.write_bytes(content[:offset] + bytes([content[offset] ^ 0xFF]) + content[offset + 1 :])
            try:
                read_kernels([(name, path)], HOST)
            except MalformedDocument:
                continue


SOURCE = """
#include <string>
extern "C" void aoti_torch_delete_tensor_object(void*);
extern "C" int aoti_torch_dtype_float8_e8m0fnu();
extern "C" void cpp_fused_add_0(float* out, int n) {
    #pragma omp parallel for
    for (int i = 0; i < n; i++) out[i] += 1.0f;
}
extern "C" void cpp_fused_mul_1(float* out) { *out *= 2.0f; }
extern "C" void other(void* tensor) { if (TYPE) aoti_torch_delete_tensor_object(tensor); }
void named(STRING) {}
"""


def compile_library(tmp_path: Path, **defines: str) -> Path:
    source, library = tmp_path / "model.cpp", tmp_path / "model.so"
    source.write_text(SOURCE)
    defines = {"TYPE": "1", "STRING": "int"} | defines
    flags = [f"-D{name}={value}" for name, value in defines.items()]
    command = ["g++", "-O2", "-fopenmp", "-shared", "-fPIC", *flags, str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True)
    return library


@needs_compiler
def test_kernels_of_a_shared_object_with_their_parallel_parts(tmp_path):
    library = compile_library(tmp_path)
    first, second = read_kernels([("lib/model.so", library)], HOST)
    assert [(one.name, one.capability, one.registers) for one in (first, second)] == [
        ("cpp_fused_add_0", HOST, None),
        ("cpp_fused_mul_1", HOST, None),
    ]
    whole = first.size_bytes
    subprocess.run(["strip", str(library)], check=True)
    stripped, _ = read_kernels([("lib/model.so", library)], HOST)
    # What OpenMP runs has no exported symbol.
    assert 0 < stripped.size_bytes < whole


@needs_compiler
def test_symbols_of_torch_and_the_release_that_brought_them(tmp_path):
    facts = read_code_facts(compile_library(tmp_path))
    assert (facts.torch_symbols, facts.shim_floor) == (("aoti_torch_delete_tensor_object",), None)
    facts = read_code_facts(compile_library(tmp_path, TYPE="aoti_torch_dtype_float8_e8m0fnu()"))
    assert facts.torch_symbols == ("aoti_torch_delete_tensor_object", "aoti_torch_dtype_float8_e8m0fnu")
    assert facts.shim_floor == "2.12"


@needs_compiler
@pytest.mark.parametrize(
    ("defines", "abi"),
    [
        ({}, None),
        ({"STRING": "const std::string&"}, True),
        ({"STRING": "const std::string&", "_GLIBCXX_USE_CXX11_ABI": "0"}, False),
        ({"STRING": "std::string", "_GLIBCXX_USE_CXX11_ABI": "0"}, False),
    ],
    ids=["no string", "new", "old", "old by value"],
)
def test_the_string_abi_is_told_by_names(tmp_path, defines, abi):
    assert read_code_facts(compile_library(tmp_path, **defines)).cxx11_abi is abi


def test_dated_symbols_are_those_of_torch_headers():
    """The table is compared with the headers of the torch that is installed."""
    torch = pytest.importorskip("torch")
    from aot.facts.shim import RELEASES

    include = Path(torch.__file__).parent / "include/torch/csrc"
    found: dict[str, str] = {}
    for header in ("inductor/aoti_torch/c/shim.h", "stable/c/shim.h"):
        conditions: list[str | None] = []
        for line in (include / header).read_text().splitlines():
            if re.match(r"#\s*if", line):
                dated = re.search(r"TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)_0", line)
                conditions.append(".".join(dated.groups()) if dated else None)
            elif re.match(r"#\s*endif", line):
                conditions.pop()
            elif any(conditions) and (name := re.search(r"\b((?:aoti_torch|torch)_\w+)\(", line)):
                found[name[1]] = next(release for release in reversed(conditions) if release)
    newest = ".".join(torch.__version__.split(".")[:2])
    if newest != "2.13":
        pytest.skip(f"the table is of torch 2.13, this is {newest}")
    assert found == RELEASES
