"""Limits of children that hold weights of many gigabytes, where nobody has set any.

A child opens the program with weights, be they given or drawn from a seed: compiling takes them once and the widest
layers again, and so does a proof, whose references take what room the limit leaves.
"""

from msgspec import structs

from aot.pipeline.source import PackedSource
from aot.schema.spec import Limits

DEFAULT = Limits()
BESIDE_BYTES = 8 << 30  # torch, the compiler's processes, and what the calls compute
TIMES_IN_MEMORY = 2.5
TIMES_ON_DISK = 3  # of frozen ones: as the compiler lays them out, and in the code


def fitting(limits: Limits, packed: PackedSource, *, freeze: bool) -> Limits:
    """`limits`, with room for the weights of `packed` where they are the defaults and these are too large for them."""
    weight_bytes = packed.weight_bytes
    memory_bytes, disk_bytes = limits.memory_bytes, limits.disk_bytes
    if memory_bytes == DEFAULT.memory_bytes:
        memory_bytes = max(memory_bytes, BESIDE_BYTES + int(TIMES_IN_MEMORY * weight_bytes))
    if disk_bytes == DEFAULT.disk_bytes and freeze:
        disk_bytes = max(disk_bytes, BESIDE_BYTES + TIMES_ON_DISK * weight_bytes)
    return structs.replace(limits, memory_bytes=memory_bytes, disk_bytes=disk_bytes)
