"""Fat binaries: a real one, handmade ones, and such as are damaged or unknown."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from aot.errors import MalformedDocument
from aot.facts.fatbin import ENTRIES, FatImage, ImageKind, read_embedded, read_fatbin
from aot.facts.kernels import read_kernels
from aot.facts.targets import fallback_of, library_targets
from aot.schema.capability import Capability
from tests.elf_files import an_elf_file
from tests.kernels import GOLDEN, pack

HOST = Capability("cpu:x86-64-v3")
PTX = b".version 8.7\n.target sm_90\n.entry k(){ret;}\n"
needs_tool = pytest.mark.skipif(shutil.which("fatbinary") is None, reason="no CUDA toolkit")


def a_cubin(sm: int, *, specific: bool = False) -> bytes:
    return an_elf_file(machine=190, abi_version=8, flags=sm << 8 | (8 if specific else 0))


def an_image(
    content: bytes,
    *,
    kind: int = 2,
    sm: int = 90,
    version: tuple[int, int] = (1, 8),
    flags: int = 0x11,
    compressed: int = 0,
    unpacked: int = 0,
    entry_version: int = 0x101,
    extra: bytes = b"",
) -> bytes:
    padded = content + bytes(-len(content) % 8)
    sizes = (64 + len(extra), len(padded), compressed)
    head = struct.pack("<HHIQII", kind, entry_version, *sizes, 0) + struct.pack("<HHI", *version[::-1], sm)
    return head + struct.pack("<QQQQ", 0, flags, 0, unpacked) + extra + padded


def a_fatbin(tmp_path: Path, *images: bytes, magic: int = 0xBA55ED50, version: int = 1, more: int = 0) -> Path:
    body = b"".join(images)
    path = tmp_path / "k.fatbin"
    path.write_bytes(struct.pack("<IHHQ", magic, version, 16, len(body) + more) + body)
    return path


def told(path: Path) -> list[tuple[str, str, str | None, str | None]]:
    return [(image.kind.name, str(image.capability), image.ptx, image.compression) for image in read_fatbin(path)]


def test_a_real_one_is_what_was_packed_into_it() -> None:
    path = GOLDEN / "add.fatbin"
    assert told(path) == [
        ("ELF", "cuda:sm_80", None, None),
        ("ELF", "cuda:sm_90a", None, None),
        ("PTX", "cuda:sm_80", "8.8", "zstd"),
    ]
    images = read_fatbin(path)
    assert [image.size_bytes for image in images[:2]] == [
        (GOLDEN / f"add-sm_{sm}.cubin").stat().st_size for sm in (80, 90)
    ]
    assert 1000 < images[2].size_bytes < (GOLDEN / "add-sm_80.ptx").stat().st_size  # packed without its comments


def test_the_kernels_of_every_cubin_in_it_are_listed() -> None:
    found = read_kernels([("cubin/add.fatbin", GOLDEN / "add.fatbin")], HOST)
    assert [(kernel.name, str(kernel.capability), kernel.size_bytes, kernel.registers) for kernel in found] == [
        ("add_kernel", "cuda:sm_80", 640, 16),
        ("add_kernel", "cuda:sm_90a", 640, 16),
    ]


def joined(*fatbins: bytes) -> bytes:
    """As the linker leaves them: one after the other, at multiples of eight."""
    return b"".join(one + bytes(-len(one) % 8 + 8) for one in fatbins)


def a_library(place: Path, *fatbins: bytes, section: str = ".nv_fatbin", kind: int = 1, flags: int = 0) -> Path:
    """A shared object of several sources that nvcc has compiled."""
    place.write_bytes(an_elf_file(sections={section: (kind, joined(*fatbins))}, section_flags=flags))
    return place


def test_what_nvcc_has_put_into_a_library_is_read_and_listed_once(tmp_path: Path) -> None:
    whole = (GOLDEN / "add.fatbin").read_bytes()
    language = a_fatbin(tmp_path, an_image(b"text", kind=1, sm=100)).read_bytes()
    library = a_library(tmp_path / "model.so", whole, language, whole)
    assert [[image.kind.name for image in images] for images in read_embedded(library)] == [
        ["ELF", "ELF", "PTX"],
        ["PTX"],
        ["ELF", "ELF", "PTX"],
    ]
    assert library_targets(library) == (("cuda:sm_80", "cuda:sm_90a"), (), ("cuda:sm_80", "cuda:sm_90a"))
    found = read_kernels([("lib/model.so", library)], HOST)
    assert [(kernel.name, kernel.path, str(kernel.capability), kernel.registers) for kernel in found] == [
        ("add_kernel", "lib/model.so", "cuda:sm_80", 16),
        ("add_kernel", "lib/model.so", "cuda:sm_90a", 16),
    ]


def test_every_section_that_can_hold_them_is_read(tmp_path: Path) -> None:
    whole = (GOLDEN / "add.fatbin").read_bytes()
    library = a_library(tmp_path / "model.so", whole, section="__nv_relfatbin")
    assert len(library_targets(library)) == 1
    both = {".nv_fatbin": (1, b""), "__nv_relfatbin": (1, joined(whole, whole))}
    library.write_bytes(an_elf_file(sections=both))
    assert len(library_targets(library)) == 2


def test_a_library_of_no_card_has_nothing_inside(tmp_path: Path) -> None:
    library = tmp_path / "model.so"
    library.write_bytes(an_elf_file())
    assert (list(read_embedded(library)), library_targets(library)) == ([], ())


def test_with_kernels_inside_the_library_there_is_no_ptx_for_all(tmp_path: Path) -> None:
    kernels = [("cubin/add.fatbin", GOLDEN / "add.fatbin")]
    plain, library = tmp_path / "plain.so", tmp_path / "model.so"
    plain.write_bytes(an_elf_file())
    assert fallback_of(kernels, library=plain) == fallback_of(kernels, library=None) is not None
    assert fallback_of(kernels, library=a_library(library, (GOLDEN / "add.fatbin").read_bytes())) is None


def test_a_packed_cubin_in_a_library_is_refused_where_its_kernels_are_listed(tmp_path: Path) -> None:
    packed = a_fatbin(tmp_path, an_image(b"packed", sm=90, flags=0x8011, compressed=6, unpacked=5000)).read_bytes()
    library = a_library(tmp_path / "model.so", packed)
    assert library_targets(library) == (("cuda:sm_90",),)
    with pytest.raises(MalformedDocument, match="for cuda:sm_90 is compressed with zstd") as caught:
        list(read_kernels([("lib/model.so", library)], HOST))
    assert "-no-compress" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        ("cut", {}, r"has \d+ bytes from offset \d+ on, and no fat binary of \d+ bytes there"),
        ("other", {}, r"section \.nv_fatbin has .* \(it begins with 0x6f6f6f6f, a fat binary with 0xba55ed50\)"),
        ("whole", {"kind": 8}, r"section \.nv_fatbin has no bytes as they are"),
        ("whole", {"flags": 0x800}, r"no bytes as they are \(flags 0x800\)"),
        ("empty", {}, rf"more than {ENTRIES} images in \.nv_fatbin"),
        ("many", {}, rf"more than {ENTRIES} images in \.nv_fatbin"),
    ],
)
def test_a_section_that_holds_no_fat_binaries_is_refused_by_name(
    tmp_path: Path, content: str, more: dict[str, int], words: str
) -> None:
    whole = (GOLDEN / "add.fatbin").read_bytes()
    some = a_fatbin(tmp_path, *([an_image(b"text", kind=1)] * 64)).read_bytes()
    contents = {"cut": [whole[:-64]], "other": [b"o" * 64], "whole": [whole], "many": [some] * (ENTRIES // 64 + 1)}
    contents["empty"] = [a_fatbin(tmp_path).read_bytes()] * (ENTRIES + 1)
    library = a_library(tmp_path / "model.so", *contents[content], **more)
    with pytest.raises(MalformedDocument, match=rf"model\.so cannot be read .*{words}"):
        list(read_embedded(library))


@needs_tool
@pytest.mark.parametrize("mode", ["default", "size", "speed", "balance", "none"])
def test_the_tool_of_this_machine_writes_what_is_read(tmp_path: Path, mode: str) -> None:
    path, fatbinary = tmp_path / "k.fatbin", shutil.which("fatbinary")
    assert fatbinary is not None
    ptx = tmp_path / "k.ptx"
    ptx.write_text((GOLDEN / "add-sm_80.ptx").read_text().replace("sm_80", "sm_90a"))
    images = (f"kind=elf,sm=90a,file={GOLDEN / 'dot-sm_90.cubin'}", f"kind=ptx,sm=90a,file={ptx}")
    pack(fatbinary, path, *images, options=("--compress-all", f"--compress-mode={mode}"))
    packed = None if mode == "none" else "lz4" if mode == "speed" else "zstd"
    assert told(path) == [("ELF", "cuda:sm_90a", None, packed), ("PTX", "cuda:sm_90a", "8.8", packed)]


@needs_tool
def test_the_compiler_of_this_machine_writes_what_is_read(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    source, path = tmp_path / "k.cu", tmp_path / "k.fatbin"
    source.write_text('extern "C" __global__ void k(float *x) { x[0] = 1; }\n')
    targets = ("arch=compute_80,code=sm_80", "arch=compute_80,code=compute_80", "arch=compute_120a,code=sm_120a")
    command = [
        "nvcc",
        "-fatbin",
        str(source),
        "-o",
        str(path),
        *(word for one in targets for word in ("-gencode", one)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nvcc does not work here: {done.stderr[-200:]}")
    assert {(kind, capability) for kind, capability, _, _ in told(path)} == {
        ("ELF", "cuda:sm_80"),
        ("PTX", "cuda:sm_80"),
        ("ELF", "cuda:sm_120a"),
    }


def test_handmade_images_of_every_kind(tmp_path: Path) -> None:
    path = a_fatbin(
        tmp_path,
        an_image(a_cubin(90, specific=True), sm=90, flags=0x11 | 0x10_0000),
        an_image(a_cubin(100), sm=100, extra=bytes(48)),
        an_image(PTX, kind=1, sm=90, version=(8, 7)),
        an_image(b"packed", sm=120, flags=0x8011 | 0x20_0000, compressed=6, unpacked=5000),
    )
    images = read_fatbin(path)
    assert told(path) == [
        ("ELF", "cuda:sm_90a", None, None),
        ("ELF", "cuda:sm_100", None, None),
        ("PTX", "cuda:sm_90", "8.7", None),
        ("ELF", "cuda:sm_120f", None, "zstd"),
    ]
    assert images[3] == FatImage(
        kind=ImageKind.ELF, capability=Capability("cuda:sm_120f"), size_bytes=5000, compression="zstd"
    )


def test_what_lies_packed_inside_is_named_and_its_kernels_are_not_guessed(tmp_path: Path) -> None:
    path = a_fatbin(tmp_path, an_image(b"packed", sm=120, flags=0x8011, compressed=6, unpacked=5000))
    with pytest.raises(MalformedDocument, match=r"cubin/k.fatbin .* image for cuda:sm_120 is compressed with zstd"):
        read_kernels([("cubin/k.fatbin", path)], HOST)


@pytest.mark.parametrize(
    ("images", "changes", "finding"),
    [
        ((), {"magic": 0x466243B1}, "it begins with 0x466243b1"),
        ((), {"version": 2}, "version 2 of fat binaries is not known"),
        ((), {"more": 8}, "its header says 24 bytes, it has 16"),
        ((an_image(a_cubin(90), kind=0x40),), {}, "an image of kind 0x40"),
        ((an_image(a_cubin(90), kind=0x10),), {}, "an image of kind 0x10"),
        ((an_image(a_cubin(90), entry_version=0x201),), {}, "has version 0x201, wanted 0x101"),
        ((an_image(a_cubin(90), sm=80),), {}, "the image for cuda:sm_80 is code for cuda:sm_90"),
        ((an_image(a_cubin(90), sm=0),), {}, "sm_0"),
        ((an_image(b"not an ELF file"),), {}, "cannot be read"),
        ((an_image(PTX, kind=1, flags=0x8011),), {}, "0 compressed bytes and flags 0x8011"),
        ((an_image(PTX, kind=1, compressed=5),), {}, "5 compressed bytes and flags 0x11"),
        ((an_image(PTX, kind=1, flags=0x8011, compressed=500),), {}, "500 compressed bytes"),
        ((an_image(a_cubin(90))[:-8],), {}, "outside the file"),
        ((an_image(a_cubin(90))[:40],), {}, "outside the file"),
        ((an_image(b"", kind=1)[:4] + b"\0\0\0\0" + an_image(b"", kind=1)[8:],), {}, "wanted 0x101"),
    ],
)
def test_what_is_damaged_or_unknown_is_refused_by_name(
    tmp_path: Path, images: tuple[bytes, ...], changes: dict[str, int], finding: str
) -> None:
    with pytest.raises(MalformedDocument, match=finding):
        read_fatbin(a_fatbin(tmp_path, *images, **changes))


def test_no_more_images_are_read_than_anybody_packs(tmp_path: Path) -> None:
    with pytest.raises(MalformedDocument, match="more than 4096 images"):
        read_fatbin(a_fatbin(tmp_path, an_image(b"", kind=1) * 4097))


@pytest.mark.parametrize("size", [0, 3, 15, 17, 60])
def test_a_cut_file_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "k.fatbin"
    path.write_bytes((GOLDEN / "add.fatbin").read_bytes()[:size])
    with pytest.raises(MalformedDocument):
        read_fatbin(path)


@needs_tool
def test_a_library_of_two_sources_that_this_machine_compiles_is_read(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None or shutil.which("g++") is None:
        pytest.skip("no nvcc")
    flags = ("-no-compress", "-gencode", "arch=compute_90a,code=sm_90a", "-Xcompiler", "-fPIC", "-c")
    objects = []
    for name in ("one", "two"):
        source, made = tmp_path / f"{name}.cu", tmp_path / f"{name}.o"
        source.write_text(f'extern "C" __global__ void {name}(float *x) {{ x[threadIdx.x] += 1; }}\n')
        done = subprocess.run(["nvcc", *flags, str(source), "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nvcc does not work here: {done.stderr[-200:]}")
        objects.append(str(made))
    library = tmp_path / "model.so"
    subprocess.run(["g++", "-shared", *objects, "-o", str(library)], check=True)
    assert library_targets(library) == (("cuda:sm_90a",), ("cuda:sm_90a",))
    found = [kernel for kernel in read_kernels([("lib/model.so", library)], HOST) if kernel.capability != HOST]
    assert [(kernel.name, str(kernel.capability)) for kernel in found] == [
        ("one", "cuda:sm_90a"),
        ("two", "cuda:sm_90a"),
    ]
    assert all(kernel.registers for kernel in found)
