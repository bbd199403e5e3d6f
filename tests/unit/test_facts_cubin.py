"""Facts of cubins: the flags that ptxas 12.4, 12.8 and 13.0 write, and a ptxas of this machine where there is one."""

import shutil
import subprocess
from pathlib import Path

import pytest

from aot.errors import MalformedDocument
from aot.facts import read_cubin
from aot.schema.capability import Capability
from tests.elf_files import SHT_NOTE, SHT_SYMTAB, SymbolRow, an_elf_file

EM_CUDA = 190
ENTRY = 0x10  # st_other of a kernel

PTX = """
.version {version}
.target {target}
.address_size 64
.visible .entry first(.param .u64 p) {{ ret; }}
.visible .entry second(.param .u64 p) {{ ret; }}
.func helper() {{ ret; }}
"""


def a_note(arch: str, *, release: str = "13.0, V13.0.88") -> bytes:
    return b"NVIDIA Corp\0ptxas\0Cuda compilation tools, release %b\0-v  -lineinfo  -arch %b \0" % (
        release.encode(),
        arch.encode(),
    )


def a_compat(*, specific: bool) -> bytes:
    """The attributes of a cubin of CUDA 13: a format byte, an attribute byte and two bytes, or a length and a value."""
    return bytes.fromhex(f"0209{int(specific):02x}00 02020100 02050500 03070101 040b0800 0000000000000000")


def write(tmp_path: Path, **fields) -> Path:
    symbols = (
        SymbolRow("second", other=ENTRY),
        SymbolRow("first", other=ENTRY),
        SymbolRow("helper"),
        SymbolRow("table", kind=1, other=ENTRY),
    )
    fields = {"machine": EM_CUDA, "symbols": symbols, "symbol_table": SHT_SYMTAB} | fields
    path = tmp_path / "kernel.cubin"
    path.write_bytes(an_elf_file(**fields))
    return path


# Read from cubins that ptxas wrote: release, -arch, EI_ABIVERSION, e_flags, has it .nv.compat with attribute 9.
OBSERVED = [
    ("12.4", "sm_52", 7, 0x320534, None),
    ("12.4", "sm_80", 7, 0x320550, None),
    ("12.4", "sm_90", 7, 0x32055A, None),
    ("12.4", "sm_90a", 7, 0x5A0D5A, None),
    ("12.8", "sm_90a", 7, 0x5A0D5A, None),
    ("12.8", "sm_100", 8, 0x9006402, None),
    ("12.8", "sm_100a", 8, 0x900640A, None),
    ("12.8", "sm_120a", 8, 0x900780A, None),
    ("13.0", "sm_75", 8, 0x6004B04, None),
    ("13.0", "sm_80", 8, 0x6005004, None),
    ("13.0", "sm_90", 8, 0x6005A04, False),
    ("13.0", "sm_90a", 8, 0x6005A04, True),
    ("13.0", "sm_100", 8, 0x6006402, False),
    ("13.0", "sm_100a", 8, 0x6006402, True),
    ("13.0", "sm_103a", 8, 0x6006702, True),
    ("13.0", "sm_120", 8, 0x6007802, False),
    ("13.0", "sm_121a", 8, 0x6007902, True),
]


@pytest.mark.parametrize(
    ("release", "arch", "abi_version", "flags", "specific"), OBSERVED, ids=lambda value: str(value)
)
def test_the_architecture_is_read_from_flags_alone(tmp_path, release, arch, abi_version, flags, specific):
    sections = {} if specific is None else {".nv.compat": (0x70000086, a_compat(specific=specific))}
    path = write(tmp_path, abi_version=abi_version, flags=flags, sections=sections)
    facts = read_cubin(path)
    assert (facts.sm, facts.capability, facts.abi_version) == (arch, Capability(f"cuda:{arch}"), abi_version)


def test_family_code_is_told_by_the_tool_note_only(tmp_path):
    sections = {
        ".nv.compat": (0x70000086, a_compat(specific=False)),
        ".note.nv.tkinfo": (SHT_NOTE, a_note("sm_100f")),
    }
    facts = read_cubin(write(tmp_path, abi_version=8, flags=0x6006402, sections=sections))
    assert (facts.sm, facts.tool) == ("sm_100f", "13.0.88")


def test_a_tool_note_about_another_architecture_is_not_believed(tmp_path):
    sections = {".note.nv.tkinfo": (SHT_NOTE, a_note("sm_120a"))}
    assert read_cubin(write(tmp_path, abi_version=8, flags=0x6006402, sections=sections)).sm == "sm_100"


def test_kernels_are_entry_functions(tmp_path):
    assert read_cubin(write(tmp_path, abi_version=8, flags=0x6005A04)).kernels == ("first", "second")


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"machine": 62}, "not CUDA"),
        ({"abi_version": 9, "flags": 0x6005A04}, "ABI version 9"),
        ({"abi_version": 8, "flags": 0}, "no architecture"),
    ],
)
def test_anything_else_is_refused(tmp_path, fields, finding):
    with pytest.raises(MalformedDocument, match=finding):
        read_cubin(write(tmp_path, **fields))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a", "sm_100f", "sm_120a"])
def test_a_cubin_of_the_ptxas_of_this_machine(tmp_path, arch):
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas on PATH")
    source = tmp_path / "kernel.ptx"
    target = arch if arch[-1] in "af" else "sm_80"
    source.write_text(PTX.format(version="8.8" if target[-1] in "af" else "8.0", target=target))
    cubin = tmp_path / "kernel.cubin"
    run = subprocess.run([ptxas, f"-arch={arch}", str(source), "-o", str(cubin)], capture_output=True, text=True)
    if run.returncode:
        pytest.skip(f"this ptxas does not know {arch}: {run.stderr.strip()}")
    facts = read_cubin(cubin)
    assert (facts.sm, facts.kernels) == (arch, ("first", "second"))
