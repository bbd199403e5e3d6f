"""The kernels of an artifact's files, whatever processor they are for: what a registry lists and people search.

A code object names its kernels itself. A shared object does not: those of Inductor are its functions `cpp_...`,
exported under the names that its reports use; what OpenMP runs in parallel is a part of its own (`._omp_fn.0`), as
are parts moved out of the way (`.cold`), and counts as the kernel's. Those of CUTLASS are cubins inside it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from aot.errors import MalformedDocument
from aot.facts.cubin import KERNELS, CubinFacts, read_cubin
from aot.facts.elf import EM_AARCH64, EM_AMDGPU, EM_CUDA, EM_X86_64, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, Elf
from aot.facts.fatbin import FatImage, ImageKind, embedded_in, read_fatbin
from aot.facts.hsaco import read_hsaco
from aot.facts.image import open_image
from aot.facts.isa import read_isa
from aot.facts.shim import asked_of_torch
from aot.schema.artifact import CodeFacts, KernelFacts
from aot.schema.capability import Capability

_HOST_KERNEL = "cpp_"
_FATBIN = ".fatbin"
_SUFFIXES = (".so", ".cubin", ".hsaco", _FATBIN)


def read_code_facts(library: Path) -> CodeFacts:
    """Return what the code of a shared object uses.

    Raises MalformedDocument, ImportError where the decoder is not installed, and OSError.
    """
    isa = read_isa(library)
    with open_image(library) as image:
        asked = asked_of_torch(Elf(image))
    return CodeFacts(
        level=isa.level,
        features=isa.features,
        vector_bits=isa.vector_bits,
        unread_bytes=isa.unread_bytes,
        cxx11_abi=asked.cxx11_abi,
        torch_symbols=asked.torch_symbols,
        shim_floor=asked.floor,
    )


def read_kernels(files: Iterable[tuple[str, Path]], host: Capability) -> tuple[KernelFacts, ...]:
    """Return every kernel of the compiled files among `files` (path in the artifact, place), by path and name.

    `host` is the capability of what is compiled for the CPU. Raises MalformedDocument, and OSError.
    """
    found = [kernel for path, place in files if path.endswith(_SUFFIXES) for kernel in _kernels_of(path, place, host)]
    return tuple(sorted(found, key=lambda kernel: (kernel.path, kernel.name, kernel.capability)))


def _kernels_of_cubin(path: str, cubin: CubinFacts) -> Iterator[KernelFacts]:
    for usage in cubin.usages:
        yield KernelFacts(
            name=usage.name,
            path=path,
            capability=cubin.capability,
            size_bytes=usage.size_bytes,
            registers=usage.registers,
            shared_bytes=usage.shared_bytes,
            spill_bytes=usage.stack_bytes,
        )


def _kernels_of_images(path: str, images: Iterable[FatImage]) -> Iterator[KernelFacts]:
    """Those of every cubin in a fat binary; its PTX is no binary yet. Raises MalformedDocument for a packed cubin."""
    for image in images:
        if image.cubin is not None:
            yield from _kernels_of_cubin(path, image.cubin)
        elif image.kind is ImageKind.ELF:
            raise MalformedDocument(
                f"{path} cannot be read: its image for {image.capability} is compressed with {image.compression}",
                hint="have nvcc leave it as it is (-no-compress), or make one cubin for each card",
                details={"path": path},
            )


def _embedded_kernels(path: str, elf: Elf) -> Iterator[KernelFacts]:
    """Those that nvcc has compiled into a shared object. Raises MalformedDocument for a packed cubin, and too many."""
    # Two products by one template are two cubins with a kernel of one name.
    found: dict[tuple[str, Capability], KernelFacts] = {}
    for images in embedded_in(elf):
        for kernel in _kernels_of_images(path, images):
            found[kernel.name, kernel.capability] = kernel
        if len(found) > KERNELS:
            raise MalformedDocument(
                f"{path} cannot be read: it has more than {KERNELS} kernels for cards inside",
                hint="compile the model by regions, or in smaller parts",
                details={"path": path},
            )
    yield from found.values()


def _kernels_of(path: str, place: Path, host: Capability) -> Iterator[KernelFacts]:
    if path.endswith(_FATBIN):
        yield from _kernels_of_images(path, read_fatbin(place))
        return
    with open_image(place) as image:
        elf = Elf(image)
        machine = elf.machine
        if machine in (EM_X86_64, EM_AARCH64):
            for name, size in _host_kernels(elf).items():
                yield KernelFacts(name=name, path=path, capability=host, size_bytes=size)
            yield from _embedded_kernels(path, elf)
    if machine == EM_CUDA:
        yield from _kernels_of_cubin(path, read_cubin(place))
    elif machine == EM_AMDGPU:
        hsaco = read_hsaco(place)
        for kernel in hsaco.kernels:
            yield KernelFacts(
                name=kernel.name,
                path=path,
                capability=hsaco.capability,
                size_bytes=kernel.size_bytes,
                registers=kernel.vector_registers,
                scalar_registers=kernel.scalar_registers,
                shared_bytes=kernel.shared_bytes,
                spill_bytes=kernel.stack_bytes,
            )


def _host_kernels(elf: Elf) -> dict[str, int]:
    """Return the size of each kernel by name, its parallel and cold parts included where the file names them."""
    sizes: dict[str, int] = {}
    for kind in (SHT_DYNSYM, SHT_SYMTAB):
        found = elf.table_of(kind)
        if found is None:
            continue
        table, names = found
        end = names.offset + names.size_bytes
        parts: dict[str, int] = {}
        for symbol in elf.symbols(table, names=names):
            if symbol.kind != STT_FUNC or symbol.section == SHN_UNDEF:
                continue
            name = elf.image.text_at(symbol.name_offset, end=end)
            if name.startswith(_HOST_KERNEL):
                parts[name] = symbol.size_bytes
        if parts:
            sizes = {}
        for name, size in parts.items():
            kernel = name.partition(".")[0]
            sizes[kernel] = sizes.get(kernel, 0) + size
    return sizes
