"""PTX whose shared memory is the kernel's own, where a launch asks for less than it needs. Pure.

Triton's kernels take all their shared memory from the launch: `.extern .shared` of no size (PTX ISA, "Shared State
Space"). A package's wrapper has the bytes of a launch compiled in, as many as its own card needs. A kernel that needs
more on another card can reserve them itself, which costs a block as much as if the launch had asked.
"""

from aot.compile.kernels.targets import TritonTarget
from aot.errors import BackendFailed

# CUDA programming guide, "Shared Memory" of each compute capability: "static shared memory allocations remain limited
# to 48 KB", and what is beyond must be asked for by the launch.
MOST_STATIC_BYTES = 48 << 10
_FROM_LAUNCH = ".extern .shared .align 16 .b8 global_smem[];"


def own_shared_memory(ptx: str, *, needed: int) -> str:
    """Return the kernel with `needed` bytes of shared memory of its own.

    Raises BackendFailed for PTX that declares its shared memory otherwise.
    """
    if ptx.count(_FROM_LAUNCH) != 1:
        raise BackendFailed(
            "the kernel's PTX does not take its shared memory from the launch as Triton's does",
            hint="report this, with the release of Triton",
            details={"backend": "triton", "log": ""},
        )
    return ptx.replace(_FROM_LAUNCH, f".shared .align 16 .b8 global_smem[{needed}];")


def check_launch_bytes(kernel: str, target: TritonTarget, *, asked: int, needed: int = 0) -> None:
    """Raises BackendFailed where no card of `target` starts a block of the kernel.

    `asked`: what the wrapper asks for at a launch; `needed`: what the kernel needs, which beyond `asked` it reserves.
    """
    own = needed if needed > asked else 0
    if own <= MOST_STATIC_BYTES and asked + own <= target.shared_bytes:
        return
    limit = f"{target.capability} has {target.shared_bytes}"
    if own:
        limit = f"one can reserve {MOST_STATIC_BYTES} itself, and {limit}"
    beside = f" and it needs {needed}" if own else ""
    raise BackendFailed(
        f"{kernel}: its package asks for {asked} bytes of shared memory a block{beside}; {limit}",
        hint="its configuration was chosen for a card with more: build for this card on a worker that has it",
        details={"backend": "triton", "region": "", "log": ""},
    )
