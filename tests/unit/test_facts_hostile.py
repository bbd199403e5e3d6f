"""Damaged and hostile compiled files: refused by name, in bounded time, never a crash."""

import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.errors import MalformedDocument
from aot.facts import find_absolute_paths, highest_defined_version, read_cubin, read_elf, read_search_path
from tests.elf_files import SHT_NOTE, SHT_SYMTAB, SymbolRow, an_elf_file

LIBRARY = an_elf_file(
    needed=("libtorch.so", "libstdc++.so.6", "libc.so.6"),
    soname="libmodel.so",
    runpath="$ORIGIN",
    asked={"libstdc++.so.6": ("GLIBCXX_3.4.30", "CXXABI_1.3.13"), "libc.so.6": ("GLIBC_2.34",)},
    defined=("libmodel.so", "MODEL_1.0"),
    symbols=(SymbolRow("model_run"), SymbolRow("__cxa_throw", defined=False)),
    text=b"/build/model.cpp\0",
)
CUBIN = an_elf_file(
    machine=190,
    abi_version=8,
    flags=0x6005A04,
    symbols=(SymbolRow("kernel", other=0x10),),
    symbol_table=SHT_SYMTAB,
    sections={
        ".nv.compat": (0x70000086, bytes.fromhex("0209010002020100040b08000000000000000000")),
        ".note.nv.tkinfo": (SHT_NOTE, b"Cuda compilation tools, release 13.0, V13.0.88\0-arch sm_90a \0"),
    },
)
FILES = st.sampled_from((LIBRARY, CUBIN))
ABSURD = st.sampled_from((0, 1, 7, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1))

fuzz = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_every_way(path: Path) -> None:
    """Each reader answers or refuses; anything else than MalformedDocument fails the test."""
    readers = (
        read_elf,
        read_cubin,
        read_search_path,
        lambda path: highest_defined_version(path, "MODEL_"),
        lambda path: find_absolute_paths(path, ["/build"]),
    )
    for reader in readers:
        try:
            reader(path)
        except MalformedDocument as error:
            assert path.name in error.message


def test_the_files_that_are_damaged_below_are_good_to_begin_with(tmp_path):
    (tmp_path / "library").write_bytes(LIBRARY)
    (tmp_path / "cubin").write_bytes(CUBIN)
    assert read_elf(tmp_path / "library").libstdcxx_floor == "3.4.30"
    assert read_cubin(tmp_path / "cubin").kernels == ("kernel",)


@fuzz
@given(content=FILES, length=st.integers(0, 4096))
def test_a_truncated_file(tmp_path, content, length):
    path = tmp_path / "cut"
    path.write_bytes(content[:length])
    read_every_way(path)


def test_every_truncation_of_a_library_is_refused_or_read(tmp_path):
    path = tmp_path / "cut"
    for length in range(len(LIBRARY)):
        path.write_bytes(LIBRARY[:length])
        read_every_way(path)


@fuzz
@given(content=FILES, changes=st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 255)), min_size=1, max_size=12))
def test_flipped_bytes(tmp_path, content, changes):
    damaged = bytearray(content)
    for offset, value in changes:
        damaged[offset % len(damaged)] = value
    path = tmp_path / "flipped"
    path.write_bytes(damaged)
    read_every_way(path)


@fuzz
@given(content=FILES, offset=st.integers(0, 4096), value=ABSURD, width=st.sampled_from(("<H", "<I", "<Q")))
def test_absurd_numbers(tmp_path, content, offset, value, width):
    damaged = bytearray(content)
    size = struct.calcsize(width)
    struct.pack_into(width, damaged, offset % (len(damaged) - size), value & ((1 << 8 * size) - 1))
    path = tmp_path / "absurd"
    path.write_bytes(damaged)
    read_every_way(path)


@fuzz
@given(content=st.binary(max_size=600))
def test_noise_behind_a_header(tmp_path, content):
    path = tmp_path / "noise"
    path.write_bytes(LIBRARY[:64] + content)
    read_every_way(path)


def a_loop_of_versions() -> bytes:
    """Each need record holds 65,535 entries that begin one byte after another, and so does the next record."""
    content = bytearray(an_elf_file(asked={"libc.so.6": ("GLIBC_2.34",)}, text=bytes(2_000_000)))
    needs_at = 64 + 2 * 56
    tags = content.index(struct.pack("<Q", 0x6FFFFFFF))
    struct.pack_into("<Q", content, tags + 8, 1 << 62)
    struct.pack_into("<HHIII", content, needs_at, 1, 0xFFFF, 1, 1, 1)
    for offset in range(needs_at + 16, needs_at + 100_000, 4):
        struct.pack_into("<I", content, offset, 1)
    return bytes(content)


def endless_sections() -> bytes:
    """65,000 section headers that are one and the same symbol table of two megabytes."""
    content = bytearray(an_elf_file(symbols=(SymbolRow("__cxa_throw"),), text=bytes(2_000_000)))
    sections_at = len(content)
    row = struct.pack("<IIQQQQIIQQ", 0, SHT_SYMTAB, 0, 0, 0, sections_at, 0, 0, 1, 0)
    content += row * 65_000
    struct.pack_into("<Q", content, 40, sections_at)
    struct.pack_into("<HHH", content, 58, 64, 65_000, 1)
    return bytes(content)


def endless_needed() -> bytes:
    """A million NEEDED entries that name one text without an end."""
    content = bytearray(an_elf_file(needed=("x" * 4000,)))
    dynamic_at = len(content)
    content += struct.pack("<QQ", 1, 1) * 1_000_000
    struct.pack_into("<Q", content, 64 + 56 + 8, dynamic_at)
    struct.pack_into("<Q", content, 64 + 56 + 32, len(content) - dynamic_at)
    return bytes(content)


@pytest.mark.parametrize("make", [a_loop_of_versions, endless_sections, endless_needed])
def test_tables_that_point_at_one_place_again_and_again_end_soon(tmp_path, make):
    path = tmp_path / "endless"
    path.write_bytes(make())
    started = time.monotonic()
    with pytest.raises(MalformedDocument):
        read_elf(path)
    assert time.monotonic() - started < 5


def test_a_file_full_of_the_prefix_is_searched_in_linear_time(tmp_path):
    path = tmp_path / "full"
    path.write_bytes(b"/build" * 2_000_000)
    started = time.monotonic()
    find_absolute_paths(path, ["/build"])
    assert time.monotonic() - started < 5


def test_a_directory_and_a_missing_file_are_errors_of_the_system(tmp_path):
    with pytest.raises(OSError):
        read_elf(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_elf(tmp_path / "nothing")
