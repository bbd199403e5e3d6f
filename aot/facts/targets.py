"""What the kernels of a package are compiled for, read from their files: machine code, and PTX that stands in for it.

A `.cubin` or `.hsaco` holds machine code for one architecture. A `.fatbin` may hold several, and PTX, which a driver
compiles where no machine code in it runs on the card. PTX for an architecture with the suffix `a` is for that one
alone, as its machine code is, so it stands in for nothing (aot.schema.targets, GUIDE).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from aot.errors import MalformedDocument
from aot.facts.cubin import read_cubin
from aot.facts.fatbin import FatImage, ImageKind, read_embedded, read_fatbin
from aot.facts.hsaco import read_hsaco
from aot.schema.capability import Capability

FATBIN = ".fatbin"


@dataclass(frozen=True)
class Fallback:
    """`capability`: every card that covers it runs the PTX; `ptx`: the version that its driver must read: "8.7"."""

    capability: Capability
    ptx: str


def machine_targets(path: str, place: Path) -> tuple[Capability, ...]:
    """Return what the machine code in a kernel's file is for. Raises MalformedDocument, for other files too."""
    match PurePosixPath(path).suffix:
        case ".cubin":
            return (read_cubin(place).capability,)
        case ".hsaco":
            return (read_hsaco(place).capability,)
        case ".fatbin":
            return tuple(image.capability for image in read_fatbin(place) if image.kind is ImageKind.ELF)
        case other:
            raise MalformedDocument(
                f"{path} is no kernel that can be read: it ends in {other!r}",
                hint="kernels are .cubin, .hsaco or .fatbin files",
                details={"path": path},
            )


def machine_codes(kernels: Iterable[tuple[str, Path]], *, library: Path | None) -> list[tuple[Capability, ...]]:
    """Return what each of `kernels` (path, place) is for, and each fat binary in `library`.

    Raises MalformedDocument.
    """
    codes = [machine_targets(path, place) for path, place in kernels]
    return [*codes, *(library_targets(library) if library else ())]


def library_targets(library: Path) -> tuple[tuple[Capability, ...], ...]:
    """Return what the machine code of each fat binary in a shared object is for: nvcc puts them there, as CUTLASS's.

    Raises MalformedDocument.
    """
    return tuple(
        tuple(image.capability for image in images if image.kind is ImageKind.ELF) for images in read_embedded(library)
    )


def fallback_of(kernels: Iterable[tuple[str, Path]], *, library: Path | None) -> Fallback | None:
    """Return the PTX that all `kernels` (path, place) have; None where one has none, or none that a newer card takes.

    Kernels inside `library` are not asked for theirs: with one of them there is none. Raises MalformedDocument.
    """
    if library is not None and next(read_embedded(library), None) is not None:
        return None
    found = [_portable(place) if path.endswith(FATBIN) else None for path, place in kernels]
    if not found or None in found:
        return None
    images = [image for image in found if image is not None]
    highest = max(images, key=lambda image: _number(image.capability))
    version = max((image.ptx or "" for image in images), key=lambda text: tuple(map(int, text.split("."))))
    return Fallback(Capability(f"cuda:{highest.capability.target.replace('sm_', 'compute_')}"), version)


def _portable(fatbin: Path) -> FatImage | None:
    """The PTX of the lowest architecture: it is what the most cards run."""
    images = [
        image
        for image in read_fatbin(fatbin)
        if image.kind is ImageKind.PTX and image.ptx and not image.capability.endswith(("a", "f"))
    ]
    return min(images, key=lambda image: _number(image.capability), default=None)


def _number(capability: Capability) -> int:
    return int(capability.target.removeprefix("sm_"))
