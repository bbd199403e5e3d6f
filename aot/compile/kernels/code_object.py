"""What a code object is for, and the kernels in it, read from its bytes: cubins and AMD's hsaco alike."""

from dataclasses import dataclass
from pathlib import Path

from aot.facts import read_cubin
from aot.facts.elf import EM_AMDGPU, Elf
from aot.facts.hsaco import read_hsaco
from aot.facts.image import open_image
from aot.schema.capability import Capability


@dataclass(frozen=True)
class CodeObject:
    """`cuda_major`: the major release of CUDA that assembled it, which the driver must be of or newer."""

    capability: Capability
    kernels: tuple[str, ...]
    cuda_major: str | None = None


def read_code_object(path: Path) -> CodeObject:
    """Return what the file at `path` says. Raises MalformedDocument for what is no code object, and OSError."""
    with open_image(path) as image:
        is_amd = Elf(image).machine == EM_AMDGPU
    if is_amd:
        hsaco = read_hsaco(path)
        return CodeObject(hsaco.capability, tuple(kernel.name for kernel in hsaco.kernels))
    facts = read_cubin(path)
    # CUDA 12 writes ABI version 7 and no note for what is older than sm_100; see aot.facts.cubin.
    major = facts.tool.split(".")[0] if facts.tool else ("12" if facts.abi_version == 7 else None)
    return CodeObject(facts.capability, facts.kernels, major)
