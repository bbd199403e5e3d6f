"""Facts of shared objects: made by the compiler here, and made byte by byte."""

import shutil
import subprocess
from pathlib import Path

import pytest

from aot.errors import InvalidInput, MalformedDocument
from aot.facts import SearchPath, find_absolute_paths, highest_defined_version, read_elf, read_search_path
from aot.schema.artifact import ElfFacts
from tests.elf_files import SHT_SYMTAB, SymbolRow, an_elf_file

CODE = r"""
#include <regex>
#include <stdexcept>
extern "C" const char *place() { return __FILE__; }
extern "C" int probe(const char *text) {
  try {
    if (std::regex_match(text, std::regex("a+"))) throw std::runtime_error(text);
  } catch (const std::exception &) { return 1; }
  return 0;
}
"""


@pytest.fixture(scope="module")
def compile_library(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on PATH")
    directory = tmp_path_factory.mktemp("libraries")

    def compile_with(*options: str) -> Path:
        library = directory / f"{len(list(directory.iterdir()))}.so"
        command = [compiler, "-x", "c++", "-shared", "-fPIC", "-O1", "-o", str(library), "-", *options]
        subprocess.run(command, input=CODE, text=True, check=True, cwd=directory)
        return library

    return compile_with


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file.so"
    path.write_bytes(content)
    return path


def test_a_compiled_library_is_read_like_readelf_reads_it(compile_library):
    library = compile_library("-Wl,-soname,libprobe.so.1")
    if shutil.which("readelf") is None:
        pytest.skip("no readelf to compare with")
    listing = subprocess.run(["readelf", "-dVW", str(library)], capture_output=True, text=True, check=True).stdout
    facts = read_elf(library)
    needed = tuple(line.rpartition("[")[2].rstrip("]\n") for line in listing.splitlines() if "(NEEDED)" in line)
    versions = [word for line in listing.splitlines() if "Name: " in line for word in line.split()]

    def highest(prefix: str) -> str:
        found = [word.removeprefix(prefix) for word in versions if word.startswith(prefix + "2.")]
        found += [word.removeprefix(prefix) for word in versions if word.startswith(prefix + "3.4")]
        return max(found, key=lambda text: tuple(map(int, text.split("."))))

    assert facts == ElfFacts(
        machine=facts.machine,
        soname="libprobe.so.1",
        needed=needed,
        libc_floor=highest("GLIBC_"),
        libstdcxx_floor=highest("GLIBCXX_"),
        static_libstdcxx=False,
    )
    assert "libstdc++.so.6" in needed


@pytest.mark.parametrize(
    "options",
    [
        ("-static-libstdc++",),
        ("-static-libstdc++", "-Wl,--exclude-libs,ALL", "-s"),  # symbols hidden and stripped
    ],
    ids=["visible", "hidden"],
)
def test_a_static_libstdcxx_is_found(compile_library, options):
    facts = read_elf(compile_library(*options))
    assert facts.static_libstdcxx
    assert "libstdc++.so.6" not in facts.needed


def test_the_system_libstdcxx_is_no_static_copy_and_defines_its_versions():
    found = sorted(Path("/usr/lib").glob("*-linux-gnu/libstdc++.so.6"))
    if not found:
        pytest.skip("no libstdc++.so.6 in a known place")
    assert not read_elf(found[0]).static_libstdcxx
    version = highest_defined_version(found[0], "GLIBCXX_")
    assert version is not None and version.startswith("3.4.")


def test_a_packed_relocation_section_raises_the_floor_of_glibc(tmp_path):
    asked = {"libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.14", "GLIBC_ABI_DT_RELR")}
    assert read_elf(write(tmp_path, an_elf_file(asked=asked))).libc_floor == "2.36"


def test_versions_are_compared_as_numbers_and_over_all_libraries(tmp_path):
    asked = {"libm.so.6": ("GLIBC_2.9",), "libc.so.6": ("GLIBC_2.34", "GLIBC_2.4", "GLIBC_PRIVATE")}
    assert read_elf(write(tmp_path, an_elf_file(asked=asked))).libc_floor == "2.34"


def test_an_unknown_feature_of_the_loader_is_refused_not_ignored(tmp_path):
    path = write(tmp_path, an_elf_file(asked={"libc.so.6": ("GLIBC_ABI_NEWEST",)}))
    with pytest.raises(MalformedDocument, match="GLIBC_ABI_NEWEST"):
        read_elf(path)


@pytest.mark.parametrize(
    ("versions", "floor"),
    [
        (("GLIBCXX_3.4", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30"), "3.4.30"),
        (("GLIBCXX_3.4.21", "CXXABI_1.3.13"), "3.4.29"),  # the language runtime asks for more than the library
        (("GLIBCXX_3.4.32", "CXXABI_1.3.13"), "3.4.32"),
        (("CXXABI_1.3",), "3.4"),
        (("CXXABI_FLOAT128",), "3.4"),
        (("CXXABI_1.3.18",), "3.4.36"),  # newer than the table: at least one GLIBCXX_ version each
        (("GCC_3.0",), None),
    ],
)
def test_the_floor_of_libstdcxx(tmp_path, versions, floor):
    path = write(tmp_path, an_elf_file(asked={"libstdc++.so.6": versions}))
    assert read_elf(path).libstdcxx_floor == floor


def test_a_library_for_arm_and_one_without_anything(tmp_path):
    arm = write(tmp_path, an_elf_file(machine=183, needed=("libc.so.6",)))
    assert read_elf(arm) == ElfFacts(machine="aarch64", needed=("libc.so.6",))
    assert read_elf(write(tmp_path, an_elf_file())) == ElfFacts(machine="x86_64", needed=())


@pytest.mark.parametrize("with_sections", [True, False], ids=["sections", "no sections"])
def test_what_the_loader_reads_does_not_need_a_section_table(tmp_path, with_sections):
    content = an_elf_file(needed=("libc.so.6",), asked={"libc.so.6": ("GLIBC_2.34",)}, with_sections=with_sections)
    facts = read_elf(write(tmp_path, content))
    assert (facts.needed, facts.libc_floor) == (("libc.so.6",), "2.34")


@pytest.mark.parametrize("defined", [True, False])
def test_the_runtime_is_static_only_where_its_symbols_are_defined(tmp_path, defined):
    symbols = (SymbolRow("model_run"), SymbolRow("__gxx_personality_v0", defined=defined))
    path = write(tmp_path, an_elf_file(symbols=symbols, symbol_table=SHT_SYMTAB))
    assert read_elf(path).static_libstdcxx is defined


def test_a_symbol_that_ends_like_a_runtime_symbol_is_another_symbol(tmp_path):
    path = write(tmp_path, an_elf_file(symbols=(SymbolRow("DW.ref.__gxx_personality_v0"),)))
    assert not read_elf(path).static_libstdcxx


def test_search_paths_are_told_apart(tmp_path):
    path = write(tmp_path, an_elf_file(rpath="$ORIGIN:/opt/lib", runpath="$ORIGIN/../lib"))
    assert read_search_path(path) == SearchPath(("$ORIGIN", "/opt/lib"), ("$ORIGIN/../lib",))


def test_the_highest_defined_version(tmp_path):
    path = write(tmp_path, an_elf_file(defined=("libx.so", "X_1.2", "X_1.10", "X_TM", "Y_9")))
    assert highest_defined_version(path, "X_") == "1.10"
    assert highest_defined_version(path, "Z_") is None


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        (b"", "empty"),
        (b"\x7fEL", "ELF header"),
        (b"#!/bin/sh\n" + bytes(100), "ELF header"),
        (an_elf_file(elf_class=1), "64-bit"),
        (an_elf_file(byte_order=2), "little-endian"),
        (an_elf_file(machine=243), "machine 243"),
    ],
)
def test_another_kind_of_file_is_named_in_the_error(tmp_path, content, finding):
    path = write(tmp_path, content)
    with pytest.raises(MalformedDocument, match=finding) as caught:
        read_elf(path)
    assert "file.so" in caught.value.message and caught.value.details == {"path": "file.so"}


def test_build_directories_are_found_and_only_as_whole_names(compile_library, tmp_path):
    library = compile_library("-fmacro-prefix-map=<stdin>=/build/aot-1/model.cpp")
    assert find_absolute_paths(library, ["/build/aot-1"]) == ("/build/aot-1/model.cpp",)
    assert find_absolute_paths(library, [Path("/build")]) == ("/build/aot-1/model.cpp",)
    assert find_absolute_paths(library, ["/build/aot", "/nowhere"]) == ()


def test_every_kind_of_end_ends_a_path(tmp_path):
    content = b'x/b/one\0-I/b/two "/b/three" (/b/four) /b\n/b.bak/five /b/six:7'
    path = write(tmp_path, content)
    assert find_absolute_paths(path, ["/b/"]) == ("/b", "/b/four", "/b/one", "/b/six", "/b/three", "/b/two")


def test_a_root_is_no_prefix(tmp_path):
    with pytest.raises(InvalidInput, match="other than the root"):
        find_absolute_paths(write(tmp_path, b"x"), ["/"])
