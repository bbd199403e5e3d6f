"""What a child may use. Stands between the callers of `run_child` and its supervisor."""

from dataclasses import dataclass
from enum import StrEnum

from aot.errors import InvalidInput


class SandboxKind(StrEnum):
    """`process` has limits but no isolation: the child sees the files and the network of its parent."""

    BUBBLEWRAP = "bubblewrap"
    PROCESS = "process"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the whole tree of a child may use; the tree is killed beyond it.

    `memory_bytes` bounds resident memory, sampled ten times a second: address space is not bounded, because torch
    and CUDA reserve far more than they touch. What there is bounds a child as well (`aot.sandbox.room`).
    `output_bytes` bounds standard output and error together, and the event lines once more. `disk_bytes` bounds the
    writable places together, sampled at most once a second.
    """

    wall_seconds: float
    memory_bytes: int
    processes: int
    output_bytes: int
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value <= 0:
                raise InvalidInput(f"limit {name} must be above 0, found {value}")
