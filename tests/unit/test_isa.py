"""What x86-64 code asks of a processor: objects of this machine's compiler and assembler, and some made by hand."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from aot.errors import MalformedDocument
from aot.facts.isa import read_isa
from aot.facts.levels import features_of, level_of
from aot.schema.capability import Capability
from aot.schema.targets import X86_FEATURES
from tests.elf_files import an_elf_file, code_file

RET = "c3"
ZMM_LOAD = "62f17c481001"  # vmovups zmm0,[rcx]

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

LOOPS = """
#include <cstddef>
extern "C" void scale(float* out, const float* in, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = in[i] * out[i] + 1.0f;
}
extern "C" int count(unsigned long bits) { return __builtin_popcountl(bits); }
"""


def compile_loops(path: Path, march: str, *flags: str) -> Path:
    source = path.with_suffix(".cpp")
    source.write_text(LOOPS)
    command = ["g++", "-O3", f"-march={march}", *flags, "-shared", "-fPIC", str(source), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def assemble(path: Path, text: str) -> Path:
    source = path.with_suffix(".s")
    functions = f".intel_syntax noprefix\n.text\n.globl kernel\n.type kernel,@function\nkernel:\n{text}\nret\n"
    source.write_text(functions + ".size kernel, .-kernel\n")
    subprocess.run(["g++", "-shared", "-nostdlib", str(source), "-o", str(path)], check=True, capture_output=True)
    return path


def write(path: Path, *functions: tuple[str, str], **fields) -> Path:
    path.write_bytes(code_file([(name, bytes.fromhex(text)) for name, text in functions], **fields))
    return path


@needs_compiler
@pytest.mark.parametrize(
    ("march", "level", "vector_bits"),
    [
        ("x86-64", "x86-64", 128),
        ("x86-64-v2", "x86-64-v2", 128),
        ("x86-64-v3", "x86-64-v3", 256),
        ("x86-64-v4", "x86-64-v4", 512),
    ],
)
@pytest.mark.parametrize("stripped", [False, True], ids=["symbols", "stripped"])
def test_the_level_of_compiled_loops(tmp_path, march, level, vector_bits, stripped):
    library = compile_loops(tmp_path / "loops.so", march, "-mprefer-vector-width=512")
    if stripped:
        subprocess.run(["strip", str(library)], check=True)
    facts = read_isa(library)
    assert (facts.machine, facts.level, facts.vector_bits, facts.undecoded) == ("x86_64", level, vector_bits, ())
    assert facts.offenders(level) == ()


@needs_compiler
@pytest.mark.parametrize(
    ("text", "level", "features"),
    [
        ("vpdpbusd zmm0, zmm1, zmm2", "x86-64-v4+avx512_vnni", "avx512_vnni avx512f"),
        ("vpdpbusd ymm0, ymm1, ymm18", "x86-64-v4+avx512_vnni", "avx512_vnni avx512f avx512vl"),
        ("{vex} vpdpbusd ymm0, ymm1, ymm2", "x86-64-v3+avx_vnni", "avx avx_vnni"),
        ("vmovups ymm16, [rdi]", "x86-64-v4", "avx512f avx512vl"),
        ("vaddps zmm0{k1}, zmm1, zmm2", "x86-64-v4", "avx512f"),
        ("kmovw k1, eax", "x86-64-v4", "avx512f"),
        ("kmovd k1, eax", "x86-64-v4", "avx512bw"),
        ("vdpbf16ps zmm0, zmm1, zmm2", "x86-64-v4+avx512_bf16", "avx512_bf16 avx512f"),
        ("tdpbf16ps tmm0, tmm1, tmm2", "x86-64-v4+amx_bf16+amx_tile", "amx_bf16 amx_tile"),
        ("tdpbusd tmm0, tmm1, tmm2", "x86-64-v4+amx_int8+amx_tile", "amx_int8 amx_tile"),
        ("tileloadd tmm0, [rax+rbx*1]", "x86-64-v4+amx_tile", "amx_tile"),
        ("vfmadd213ps ymm0, ymm1, ymm2", "x86-64-v3", "avx fma"),
        ("vcvtph2ps ymm0, xmm1", "x86-64-v3", "avx f16c"),
        ("andn eax, ebx, ecx", "x86-64-v3", "bmi1"),
        ("pdep eax, ebx, ecx", "x86-64-v3", "bmi2"),
        ("lzcnt eax, ebx", "x86-64-v3", "abm"),
        ("movbe eax, [rdi]", "x86-64-v3", "movbe"),
        ("xor ecx, ecx\nxgetbv", "x86-64-v3", "xsave"),
        ("pshufb xmm0, xmm1", "x86-64-v2", "ssse3"),
        ("haddps xmm0, xmm1", "x86-64-v2", "pni"),
        ("crc32 eax, ebx", "x86-64-v2", "sse4_2"),
        ("cmpxchg16b [rdi]", "x86-64-v2", "cx16"),
        ("lahf", "x86-64-v2", "lahf_lm"),
        ("sha256rnds2 xmm0, xmm1, xmm0", "x86-64+sha_ni", "sha_ni"),
        ("vaesenc zmm0, zmm1, zmm2", "x86-64-v4+vaes", "avx512f vaes"),
        ("addps xmm0, xmm1", "x86-64", "sse"),
        ("cmove eax, ebx", "x86-64", "cmov"),
        # Older processors execute these as something harmless, so they tell no level.
        ("tzcnt eax, ebx\nendbr64\npause\nnop dword ptr [rax+rax]", "x86-64", ""),
    ],
)
def test_features_of_an_instruction(tmp_path, text, level, features):
    facts = read_isa(assemble(tmp_path / "kernel.so", text))
    assert (facts.level, facts.features, facts.undecoded) == (level, tuple(features.split()), ())
    assert facts.offenders(level) == ()


def test_an_instruction_above_the_level_is_named_with_its_function(tmp_path):
    path = write(tmp_path / "k.so", ("plain", "90" + RET), ("kernel", "90" + ZMM_LOAD + ZMM_LOAD + RET))
    facts = read_isa(path)
    (offence,) = facts.offenders("x86-64-v3")
    assert (offence.function, offence.offset, offence.feature) == ("kernel", 1, "avx512f")
    assert str(offence) == "kernel+0x1: vmovups zmm0,[rcx] (avx512f)"
    assert facts.offenders("x86-64-v4") == ()
    assert facts.offenders("x86-64-v3+avx512f") == ()


def test_a_level_that_is_not_known_allows_nothing(tmp_path):
    facts = read_isa(write(tmp_path / "k.so", ("kernel", "0f58c1" + RET)))
    assert [offence.feature for offence in facts.offenders("x86-64-v9")] == ["sse"]
    assert [offence.feature for offence in facts.offenders("armv8-a")] == ["sse"]


def test_code_between_functions_is_read_like_theirs(tmp_path):
    path = write(tmp_path / "k.so", ("one", "90" + RET), ("two", RET), gap=bytes.fromhex(ZMM_LOAD))
    facts = read_isa(path)
    assert (facts.features, facts.level, facts.unread_bytes) == (("avx512f",), "x86-64-v4", 0)
    assert (facts.functions, facts.code_bytes) == (2, 3)
    assert str(facts.offenders("x86-64-v3")[0]) == "section .text+0x2: vmovups zmm0,[rcx] (avx512f)"


@pytest.mark.parametrize("padding", ["00", "0000", "000000", "cccccc", "0f1f00", "c3" + "00" * 7, "90c3" + "00" * 6])
def test_padding_hides_no_code_behind_it(tmp_path, padding):
    path = write(tmp_path / "k.so", ("one", RET), gap=bytes.fromhex(padding + ZMM_LOAD + RET + "00"))
    facts = read_isa(path)
    assert [offence.address for offence in facts.offenders("x86-64-v3")] == [0x10001 + len(padding) // 2]
    assert (facts.undecoded, facts.unread_bytes) == ((), 0)


def test_bytes_between_functions_that_are_no_instruction_are_named_by_section(tmp_path):
    path = write(tmp_path / "k.so", ("one", RET), gap=bytes.fromhex("9006" + ZMM_LOAD))
    facts = read_isa(path)
    assert [str(place) for place in facts.undecoded] == ["section .text+0x2: 0662f17c481001 is no instruction"]
    assert facts.unread_bytes == 7


@needs_compiler
@pytest.mark.parametrize("named", ["", "hidden:", ".type hidden,@object\n.size hidden,7\nhidden:"])
@pytest.mark.parametrize("stripped", [False, True], ids=["symbols", "stripped"])
def test_code_in_a_section_of_its_own_is_read(tmp_path, named, stripped):
    library = assemble(
        tmp_path / "k.so",
        f'nop\n.section .stuff,"ax",@progbits\n{named}\nvaddps zmm3, zmm2, zmm1\nret\n.text',
    )
    if stripped:
        subprocess.run(["strip", str(library)], check=True)
    assert [str(one) for one in read_isa(library).offenders("x86-64-v3")] == [
        "section .stuff+0x0: vaddps zmm3,zmm2,zmm1 (avx512f)"
    ]


@pytest.mark.parametrize("padding", ["cccccc", "000000", "0f1f00", "66662e0f1f840000000000"])
def test_padding_between_functions_is_not_counted_as_unread(tmp_path, padding):
    path = write(tmp_path / "k.so", ("one", RET), ("two", RET), gap=bytes.fromhex(padding))
    assert read_isa(path).unread_bytes == 0


def test_what_is_no_instruction_ends_the_reading_of_its_function(tmp_path):
    path = write(tmp_path / "k.so", ("kernel", "9006" + ZMM_LOAD), ("next", "0f58c1" + RET))
    facts = read_isa(path)
    assert facts.features == ("sse",)  # of the next function; what follows the bad byte is not guessed
    assert (facts.unread_bytes, facts.undecoded[0].function, facts.undecoded[0].offset) == (7, "kernel", 1)
    assert str(facts.undecoded[0]) == "kernel+0x1: 0662f17c481001 is no instruction"


def test_functions_that_overlap_are_read_once(tmp_path):
    """A symbol inside a function starts decoding anew there; bytes are counted once, and the outer one goes on."""
    content = bytes.fromhex("90" + ZMM_LOAD + "0f58c1" + RET)
    path = write(tmp_path / "k.so", ("outer", content.hex()), inner=[("inner", 1, 6), ("inner2", 1, 6)])
    facts = read_isa(path)
    assert facts.code_bytes == len(content)
    assert [(use.function, use.feature) for use in facts.uses] == [("inner", "avx512f"), ("inner", "sse")]


def test_code_without_any_function_is_unread(tmp_path):
    path = write(tmp_path / "k.so", gap=b"")
    assert (read_isa(path).functions, read_isa(path).code_bytes) == (0, 0)


@needs_compiler
def test_a_library_without_section_headers_is_read_through_its_segments(tmp_path):
    library = compile_loops(tmp_path / "loops.so", "x86-64-v3")
    content = bytearray(library.read_bytes())
    content[40:48] = bytes(8)  # e_shoff
    content[58:64] = bytes(6)  # entry size, count, index of the names
    library.write_bytes(content)
    facts = read_isa(library)
    assert (facts.level, facts.undecoded) == ("x86-64-v3", ())


@pytest.mark.parametrize("cut", [100, 400, 2000])
@needs_compiler
def test_a_truncated_library_is_refused(tmp_path, cut):
    library = compile_loops(tmp_path / "loops.so", "x86-64")
    library.write_bytes(library.read_bytes()[:-cut])
    with pytest.raises(MalformedDocument):
        read_isa(library)


def test_another_machine_is_refused(tmp_path):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(an_elf_file(machine=190))
    with pytest.raises(MalformedDocument, match="neither x86_64 nor aarch64"):
        read_isa(path)


def test_executable_sections_that_overlap_are_refused(tmp_path):
    path = write(tmp_path / "k.so", ("kernel", RET))
    content = bytearray(path.read_bytes())
    (sections,) = struct.unpack_from("<Q", content, 40)
    content[sections + 2 * 64 : sections + 3 * 64] = content[sections + 64 : sections + 2 * 64]
    path.write_bytes(content)
    with pytest.raises(MalformedDocument, match="overlap"):
        read_isa(path)


@pytest.mark.parametrize("name", sorted(X86_FEATURES))
def test_levels_with_features_are_spelled_as_capabilities_are(name):
    features = frozenset((name, *X86_FEATURES[name].needs))
    level = level_of("x86_64", features)
    assert Capability.parse(f"cpu:{level}").target == level
    assert features_of("x86_64", level) >= features


@needs_compiler
def test_altered_bytes_never_end_in_another_error(tmp_path):
    content = compile_loops(tmp_path / "loops.so", "x86-64-v3").read_bytes()
    path = tmp_path / "altered.so"
    for offset in (*range(0, 64), *range(64, len(content), 61)):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0xFF]) + content[offset + 1 :])
        try:
            read_isa(path)
        except MalformedDocument:
            continue


def test_a_hundred_thousand_symbols_over_one_function_are_read_once(tmp_path):
    code = "90" * 5000 + RET
    inner = [(f"f{index}", index % 5000, 5001 - index % 5000) for index in range(100_000)]
    facts = read_isa(write(tmp_path / "many.so", ("kernel", code), inner=inner))
    assert (facts.code_bytes, facts.functions) == (5001, 5000)
