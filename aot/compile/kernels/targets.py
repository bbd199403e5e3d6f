"""What Triton compiles for without the card, and how much shared memory a block of it may ask for.

| rows                | source of the limit                                                                           |
|---------------------|-----------------------------------------------------------------------------------------------|
| sm_75 to sm_89      | CUDA programming guide, compute capabilities, "maximum amount of shared memory a thread block" |
| sm_90 to sm_121     | ptxas 13.4, "uses too much shared data (... max)": 0x38c00 and 0x18c00; as the guide           |
| gfx90a, gfx942,     | ROCm documentation, AMD GPU specifications, column LDS; of gfx1100 the 64 KiB that one         |
| gfx950, gfx1100     | work-group may use (LLVM, AMDGPU usage: addressable local memory)                              |

Triton 3.9 compiled both an addition and a matrix product for each of them. sm_101 is left out: its ptxas no longer
knows that name (sm_110 is the same architecture). From sm_90 on Triton asks for the architecture-specific form, so
`cuda:sm_90` comes out as code for `sm_90a`.
"""

import difflib
from dataclasses import dataclass

from aot.errors import InvalidCapability
from aot.schema.capability import Capability

_KIB = 1024


@dataclass(frozen=True)
class TritonTarget:
    """`backend`, `arch` and `warp_size` make Triton's GPUTarget."""

    capability: Capability
    backend: str
    arch: int | str
    warp_size: int
    shared_bytes: int  # the most that one block may ask for

    @property
    def suffix(self) -> str:
        """Of the code object's file, and what Triton calls it."""
        return "cubin" if self.backend == "cuda" else "hsaco"


_SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
_AMD = {"gfx90a": (64, 64), "gfx942": (64, 64), "gfx950": (64, 160), "gfx1100": (32, 64)}  # warp size, KiB

TARGETS: dict[Capability, TritonTarget] = {
    target.capability: target
    for target in (
        *(
            TritonTarget(Capability(f"cuda:sm_{arch}"), "cuda", arch, 32, kib * _KIB)
            for arch, kib in _SHARED_KIB.items()
        ),
        *(
            TritonTarget(Capability(f"rocm:{arch}"), "hip", arch, warp, kib * _KIB)
            for arch, (warp, kib) in _AMD.items()
        ),
    )
}


def target_for(text: str) -> TritonTarget:
    """Return the target named `cuda:sm_90` or `rocm:gfx942`. Raises InvalidCapability naming the known ones."""
    found = TARGETS.get(Capability(text))
    if found is not None:
        return found
    close = difflib.get_close_matches(text, TARGETS, n=2)
    known = " or ".join(close) if close else ", ".join(TARGETS)
    raise InvalidCapability(
        f"kernels cannot be built for {text[:80]!r}: it is no target that Triton compiles for here",
        hint=f"did you mean {known}?" if close else f"known: {known}",
    )
