"""AArch64 instructions and their features. Encodings as llvm-mc writes them, so that no cross assembler is needed."""

import struct
from pathlib import Path

import pytest

from aot.facts.isa import read_isa
from tests.elf_files import SHT_SYMTAB, code_file

EM_AARCH64 = 183
RET = "c0035fd6"

# encoding, what it was assembled from, its features in the spelling of /proc/cpuinfo
INSTRUCTIONS = [
    ("2000028b", "add x0,x1,x2", ""),
    ("410020b8", "ldadd w0,w1,[x2]", "atomics"),
    ("5f0020b8", "stadd w0,[x2]", "atomics"),
    ("41fce0c8", "casal x0,x1,[x2]", "atomics"),
    ("41802038", "swpb w0,w1,[x2]", "atomics"),
    ("205cc29a", "crc32cx w0,w1,x2", "crc32"),
    ("20c0bfb8", "ldapr w0,[x1]", "lrcpc"),
    ("20404019", "ldapurb w0,[x1,#4]", "ilrcpc"),
    ("208000d9", "stlur x0,[x1,#8]", "ilrcpc"),
    ("028400ba", "rmif x0,#1,#2", "flagm"),
    ("1f4000d5", "cfinv", "flagm"),
    ("5f4000d5", "axflag", "flagm2"),
    ("ff3003d5", "sb", "sb"),
    ("00007e1e", "fjcvtzs w0,d0", "fp jscvt"),
    ("2040281e", "frint32z s0,s1", "fp frint"),
    ("3f2303d5", "paciasp", ""),
    ("5f2403d5", "bti c", ""),
    ("2000c1da", "pacia x0,x1", "paca"),
    ("ff0b5fd6", "retaa", "paca"),
    ("3f083fd6", "blraaz x1", "paca"),
    ("2010df9a", "irg x0,x1", "mte"),
    ("2048284e", "aese v0.16b,v1.16b", "aes asimd"),
    ("20e0e20e", "pmull v0.1q,v1.1d,v2.1d", "asimd pmull"),
    ("20e0220e", "pmull v0.8h,v1.8b,v2.8b", "asimd"),
    ("2000025e", "sha1c q0,s1,v2.4s", "asimd sha1"),
    ("2040025e", "sha256h q0,q1,v2.4s", "asimd sha2"),
    ("208062ce", "sha512h q0,q1,v2.2d", "asimd sha512"),
    ("200c02ce", "eor3 v0.16b,v1.16b,v2.16b,v3.16b", "asimd sha3"),
    ("2084826e", "sqrdmlah v0.4s,v1.4s,v2.4s", "asimd asimdrdm"),
    ("2094826e", "udot v0.4s,v1.16b,v2.16b", "asimd asimddp"),
    ("209c824e", "usdot v0.4s,v1.16b,v2.16b", "asimd i8mm"),
    ("20a4824e", "smmla v0.4s,v1.16b,v2.16b", "asimd i8mm"),
    ("20ec426e", "bfmmla v0.4s,v1.8h,v2.8h", "asimd bf16"),
    ("20fcc22e", "bfmlalb v0.4s,v1.8h,v2.8h", "asimd bf16"),
    ("2040631e", "bfcvt h0,s1", "bf16 fp"),
    ("2068a10e", "bfcvtn v0.4h,v1.4s", "asimd bf16"),
    ("20ec224e", "fmlal v0.4s,v1.4h,v2.4h", "asimd asimdfhm"),
    ("20cc826e", "fcmla v0.4s,v1.4s,v2.4s,#90", "asimd fcma"),
    ("2014424e", "fadd v0.8h,v1.8h,v2.8h", "asimd asimdhp"),
    ("2028e21e", "fadd h0,h1,h2", "fp fphp"),
    ("2040e21e", "fcvt s0,h1", "fp"),
    ("2078210e", "fcvtl v0.4s,v1.4h", "asimd"),
    ("20d8794e", "scvtf v0.8h,v1.8h", "asimd asimdhp"),
    ("200c624e", "sqadd v0.8h,v1.8h,v2.8h", "asimd"),
    ("2000407d", "ldr h0,[x1]", "fp"),
    ("20cc224e", "fmla v0.4s,v1.4s,v2.4s", "asimd"),
    ("2028621e", "fadd d0,d1,d2", "fp"),
    ("2000c03d", "ldr q0,[x1]", "fp"),
    ("20008265", "fadd z0.s,z1.s,z2.s", "sve"),
    ("e0e39825", "ptrue p0.s", "sve"),
    ("201ca225", "whilelo p0.s,x1,x2", "sve"),
    ("2010a225", "whilege p0.s,x1,x2", "sve sve2"),
    ("20009004", "mul z0.s,p0/m,z0.s,z1.s", "sve"),
    ("2060a204", "mul z0.s,z1.s,z2.s", "sve sve2"),
    ("80c0b025", "mul z0.s,z0.s,#4", "sve"),
    ("2010a204", "sqadd z0.s,z1.s,z2.s", "sve"),
    ("20809844", "sqadd z0.s,p0/m,z0.s,z1.s", "sve sve2"),
    ("20302205", "tbl z0.b,{z1.b},z2.b", "sve"),
    ("20282305", "tbl z0.b,{z1.b,z2.b},z3.b", "sve sve2"),
    ("403c2104", "bsl z0.d,z0.d,z1.d,z2.d", "sve sve2"),
    ("20004245", "saddlb z0.h,z1.b,z2.b", "sve sve2"),
    ("204c4245", "uaddwt z0.h,z1.h,z2.b", "sve sve2"),
    ("2080a264", "fmlalb z0.s,z1.h,z2.h", "sve sve2"),
    ("20809064", "faddp z0.s,p0/m,z0.s,z1.s", "sve sve2"),
    ("20a04444", "sadalp z0.h,p0/m,z1.b", "sve sve2"),
    ("20008c04", "sabd z0.s,p0/m,z0.s,z1.s", "sve"),
    ("20f88245", "saba z0.s,z1.s,z2.s", "sve sve2"),
    ("00842145", "match p0.b,p1/z,z0.b,z1.b", "sve sve2"),
    ("20806264", "bfdot z0.s,z1.h,z2.h", "sve svebf16"),
    ("20a08a65", "bfcvt z0.h,p0/m,z1.s", "sve svebf16"),
    ("20980245", "smmla z0.s,z1.b,z2.b", "sve svei8mm"),
    ("20e02245", "aese z0.b,z0.b,z1.b", "sve sveaes"),
    ("20b48245", "bdep z0.s,z1.s,z2.s", "sve svebitperm"),
    ("20008244", "sdot z0.s,z1.b,z2.b", "sve"),
    ("20a09144", "addp z0.s,p0/m,z0.s,z1.s", "sve sve2"),
    ("2074a204", "sqrdmulh z0.s,z1.s,z2.s", "sve sve2"),
    ("20808944", "uqshl z0.s,p0/m,z0.s,z1.s", "sve sve2"),
    ("20008804", "smax z0.s,p0/m,z0.s,z1.s", "sve"),
    ("20606245", "addhnb z0.b,z1.h,z2.h", "sve sve2"),
    ("20102e45", "shrnb z0.b,z1.h,#2", "sve sve2"),
    ("c0834d04", "urshr z0.s,p0/m,z0.s,#2", "sve sve2"),
    ("7f4703d5", "smstart", "sme"),
    ("00208180", "fmopa za0.s,p0/m,p1/m,z0.s,z1.s", "sme sve"),
    ("207c0bd5", "dc cvap,x0", "dcpop"),
    ("200840f9", "ldr x0,[x1,#0x10]", ""),
]


def write(path: Path, *functions: tuple[str, str], **fields) -> Path:
    path.write_bytes(code_file([(name, bytes.fromhex(text)) for name, text in functions], machine=EM_AARCH64, **fields))
    return path


@pytest.mark.parametrize(("encoding", "text", "features"), INSTRUCTIONS, ids=[row[1] for row in INSTRUCTIONS])
def test_features_of_an_instruction(tmp_path, encoding, text, features):
    facts = read_isa(write(tmp_path / "one.so", ("kernel", encoding + RET)))
    assert (facts.machine, facts.features, facts.undecoded) == ("aarch64", tuple(features.split()), ())


def test_sve_in_code_for_plain_armv8_is_named(tmp_path):
    facts = read_isa(write(tmp_path / "sve.so", ("plain", "2000020b" + RET), ("kernel", "2000020b" + "20008265" + RET)))
    assert facts.level == "armv8-a+sve"
    assert [str(offence) for offence in facts.offenders("armv8-a")] == ["kernel+0x4: fadd z0.s, z1.s, z2.s (sve)"]
    assert facts.offenders("armv8-a+sve") == ()


def test_a_literal_pool_in_a_function_is_no_code(tmp_path):
    """Mapping symbols say where data begins and where code goes on."""
    pool = "20008265"  # would be an instruction of SVE
    path = write(tmp_path / "pool.so", ("kernel", RET + pool + RET), marks=[("$x", 0), ("$d", 4), ("$x.1", 8)])
    facts = read_isa(path)
    assert (facts.features, facts.undecoded, facts.unread_bytes) == ((), (), 0)


def test_what_is_no_instruction_ends_the_reading_of_its_function(tmp_path):
    nothing = struct.pack("<I", 0xFFFFFFFF).hex()
    facts = read_isa(write(tmp_path / "bad.so", ("kernel", RET + nothing + "20008265"), ("next", RET)))
    assert facts.features == ()
    assert facts.unread_bytes == 8
    assert [str(place) for place in facts.undecoded] == ["kernel+0x4: ffffffff is no instruction"]


def test_code_between_functions_is_read_behind_its_padding(tmp_path):
    gap = bytes.fromhex("1f2003d5" + "00000000" + "20008265" + RET)
    facts = read_isa(write(tmp_path / "gap.so", ("one", RET), gap=gap))
    assert [str(use) for use in facts.uses] == ["section .text+0xc: fadd z0.s, z1.s, z2.s (sve)"]
    assert (facts.undecoded, facts.unread_bytes) == ((), 0)


@pytest.mark.parametrize(
    ("gap", "place", "unread"),
    [("ffffffff" + "20008265", "0x4: ffffffff", 8), ("00000000" + "ffff", "0x8: ffff", 2)],
)
def test_bytes_between_functions_that_are_no_instruction_are_named_by_section(tmp_path, gap, place, unread):
    facts = read_isa(write(tmp_path / "gap.so", ("one", RET), gap=bytes.fromhex(gap)))
    assert [str(one) for one in facts.undecoded] == [f"section .text+{place} is no instruction"]
    assert (facts.features, facts.unread_bytes) == ((), unread)


def test_what_stands_before_the_first_word_of_a_gap_shifts_no_code(tmp_path):
    facts = read_isa(write(tmp_path / "gap.so", ("one", RET + "ff"), gap=bytes.fromhex("ffffff" + "20008265")))
    assert [use.feature for use in facts.uses] == ["sve"]
    assert len(facts.undecoded) == 2


def test_width_of_fixed_registers(tmp_path):
    widths = {"2028621e": 64, "2014424e": 128, "20008265": 0}  # fadd d0,.. / fadd v0.8h,.. / fadd z0.s,..
    for encoding, bits in widths.items():
        assert read_isa(write(tmp_path / f"{bits}.so", ("kernel", encoding + RET))).vector_bits == bits


def test_the_symbol_table_may_be_a_static_one(tmp_path):
    facts = read_isa(write(tmp_path / "one.so", ("kernel", "20008265" + RET), symbol_table=SHT_SYMTAB))
    assert [use.function for use in facts.uses] == ["kernel"]
