"""Limits of children that hold weights of many gigabytes, where nobody has set any.

A child opens the program with weights, be they given or drawn from a seed: compiling takes them once and the widest
layers again, and so does a proof, whose references take what room the limit leaves.
"""

from msgspec import structs

from aot.pipeline.source import PackedSource
from aot.schema.spec import DEFAULT_DISK_BYTES, DEFAULT_MEMORY_BYTES, Limits

BESIDE_BYTES = 8 << 30  # torch, the compiler's processes, and what the calls compute
TIMES_IN_MEMORY = 2.5
TIMES_ON_DISK = 3  # of frozen ones: as the compiler lays them out, and in the code


def fitting(limits: Limits, packed: PackedSource, *, freeze: bool) -> Limits:
    """`limits`, with room for the weights of `packed` where nobody has set one and the default is too small for them.

    A limit that somebody has set stays as it is: a build that needs more fails, and says so.
    """
    weight_bytes = packed.weight_bytes
    memory_bytes = BESIDE_BYTES + int(TIMES_IN_MEMORY * weight_bytes)
    disk_bytes = BESIDE_BYTES + TIMES_ON_DISK * weight_bytes
    if limits.memory_bytes is None and memory_bytes > DEFAULT_MEMORY_BYTES:
        limits = structs.replace(limits, memory_bytes=memory_bytes)
    if limits.disk_bytes is None and freeze and disk_bytes > DEFAULT_DISK_BYTES:
        limits = structs.replace(limits, disk_bytes=disk_bytes)
    return limits
