"""What belongs to what in a cache: the files that are of use only together, and those of no use to anybody else.

Pure, over paths. Kept is what a start from the restored entries has opened, with everything that belongs to it: a
kernel of Triton's is only found where all files of its group exist, even those that are never read.
"""

from collections.abc import Iterable
from pathlib import PurePosixPath

from aot.capture.entries import within_caches

# Locks, half-written files, compile logs, and headers that are compiled for one directory.
_LITTER_PARTS = frozenset({"locks", "lock", "precompiled_headers", "tmp", "__pycache__", "torch_compile_debug"})
# What NFS calls a file that was removed while it was open (Linux: fs/nfs/unlink.c).
_LITTER_PREFIXES = ("tmp.pid_", ".tmp", ".aot-", ".nfs")
_LITTER_SUFFIXES = (".lock", ".tmp", ".log", ".o.d", ".gch", ".pyc")


def is_litter(path: str) -> bool:
    """Whether the file is of no use to another process: a lock, a half-written file, bytecode, a debug trace.

    Nor are facts of one host: which of its cards reach each other's memory (vllm/distributed/device_communicators,
    gpu_p2p_access_check) has another answer elsewhere, and is believed where it is read.
    """
    parts = path.split("/")
    return (
        path.startswith("vllm/gpu_p2p_access_cache_for_")
        or bool(_LITTER_PARTS & set(parts))
        or parts[-1].endswith(_LITTER_SUFFIXES)
        or any(part.startswith(_LITTER_PREFIXES) for part in parts)
    )


def unit_of(path: str) -> str:
    """Return the name of what `path` is a part of; files of one unit are kept or left out together."""
    below, parts = within_caches(path)
    match parts:
        case ["inductor", "fxgraph", _, key, *_]:
            return f"{below}inductor/fxgraph/{key}"
        case ["inductor", "triton", device, key, *rest] if rest:
            return f"{below}inductor/triton/{device}/{key}"
        case ["triton", key, *rest] if rest:
            return f"{below}triton/{key}"
        case ["inductor", short, name] if len(short) == 2:
            return f"{below}inductor/{PurePosixPath(name).name.partition('.')[0]}"
        case ["extensions", name, *rest] if rest:
            return f"extensions/{name}"
    return path


def used_of(paths: Iterable[str], opened: frozenset[str]) -> frozenset[str]:
    """Return those of `paths` that belong to something of which a file was opened."""
    units = {unit_of(path) for path in opened}
    return frozenset(path for path in paths if unit_of(path) in units)
