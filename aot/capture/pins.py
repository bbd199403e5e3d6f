"""What a captured command is started with, and the command that gets its entries back: pinned for reuse.

Torch keys an Inductor entry by everything that it reads, but for the CPU's instructions and Python's version: entries
made for one vector width and read under another give wrong numbers or corrupt the heap. So whatever we start has both
in `TORCH_COMPILE_CACHE_KEY_TAG`, which is part of torch's key: entries of another CPU are not found even where
somebody has put them into the directory. The tag is exact about every feature that Inductor generates code for.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from aot.capture.processes import world_size_of
from aot.capture.roots import variables_of
from aot.environment.assembler import ASSEMBLER, LINE_INFO, find_assembler
from aot.schema.capability import CPU_X86_LEVELS, Capability
from aot.schema.environment import Environment, ProcessFacts
from aot.schema.targets import level_features

TAG = "TORCH_COMPILE_CACHE_KEY_TAG"
# torch/_inductor/cpu_vec_isa.py reads it to choose the vector width, as ATen does to choose its kernels.
CAPABILITY = "ATEN_CPU_CAPABILITY"
_LEVELS = {"default": "x86-64", "avx2": "x86-64-v3", "avx512": "x86-64-v4"}
# What Inductor looks for beyond a level, as /proc/cpuinfo spells it (torch/_inductor/cpu_vec_isa.py).
_BEYOND = ("amx_tile", "amx_fp16", "avx512_bf16", "avx512_vnni", "asimd", "bf16", "sve")
_UNKNOWN = "unknown"
# What a bundle says of the assembler that its kernels were made with, which is no path; without it, Triton's was.
ASSEMBLED, TORCHS, OWN = "assembler", "torch's", "the command's own"
OF_KERNELS = (LINE_INFO, ASSEMBLED)
FACTOR = "factor:"  # before the name of each of an artifact's facts that decides whether torch finds an entry


def effective_environment(seen: Environment, environ: Mapping[str, str], *, command: Sequence[str] = ()) -> Environment:
    """Return `seen` as `command` with `environ` uses it: with the lower CPU level that ATEN_CPU_CAPABILITY asks for.

    The guard `isa` of an artifact is compared with that, so that entries of another vector width are refused; the guard
    `world_size` with the number of processes that the command will be. Without a command it is this process.
    """
    cards = len(seen.node.gpus) if seen.node.gpus else None
    world_size = world_size_of(command, environ, cards=cards)
    return _lowered(msgspec.structs.replace(seen, process=ProcessFacts(world_size=world_size)), environ)


def _lowered(seen: Environment, environ: Mapping[str, str]) -> Environment:
    cpu, wanted = seen.node.cpu, environ.get(CAPABILITY, "").strip().lower()
    if not wanted or cpu is None or cpu.level not in CPU_X86_LEVELS:
        return seen
    level = _LEVELS.get(wanted)
    if level is None:  # a word that torch would read in its own way: then the width is not known
        return msgspec.structs.replace(seen, node=msgspec.structs.replace(seen.node, cpu=None))
    if CPU_X86_LEVELS.index(level) >= CPU_X86_LEVELS.index(cpu.level):
        return seen
    lowered = msgspec.structs.replace(
        seen.node, cpu=Capability(f"cpu:{level}"), cpu_features=tuple(sorted(level_features(level) or ()))
    )
    return msgspec.structs.replace(seen, node=lowered)


def key_tag(effective: Environment) -> str:
    """Return what tells entries of this CPU and Python from all others: "aot-x86-64-v4+avx512_vnni-python3.11"."""
    node, python = effective.node, effective.container.python or ".".join(map(str, sys.version_info[:2]))
    level = node.cpu.level if node.cpu is not None else _UNKNOWN
    beyond = sorted(set(_BEYOND) & set(node.cpu_features or ()))
    return f"aot-{'+'.join((level, *beyond))}-python{'.'.join(python.split('.')[:2])}"


def pins(
    effective: Environment, directory: Path, environ: Mapping[str, str], *, recorded: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables to set over `environ` for a command whose caches lie in `directory`.

    A tag, a target or an assembler of the caller's own is kept: the tag with ours behind it. `recorded` are the facts
    of the artifact that it starts on: what the entries were not compiled with would hide them. None on empty caches.
    """
    own = environ.get(TAG, "")
    tag = key_tag(effective)
    # A program that is started by a pinned one is pinned already.
    pinned = {TAG: own if own.endswith(tag) else f"{own}{tag}", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    cpu = effective.node.cpu
    if cpu is not None and cpu.level in CPU_X86_LEVELS:
        # Not the builder's own model: code then needs the level, and the tag has what goes beyond it.
        pinned["TORCHINDUCTOR_CPP_MARCH"] = environ.get("TORCHINDUCTOR_CPP_MARCH", cpu.level)
    return {**pinned, **_of_kernels(effective, environ, recorded), **variables_of(directory)}


def kernels_with(
    effective: Environment, environ: Mapping[str, str], *, recorded: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return what kernels are compiled with under the pins of `environ`, by name, as an artifact records it.

    Both are part of Triton's key, the assembler by its version. Empty without a card.
    """
    if not effective.node.gpus:
        return {}
    pinned = {**environ, **_of_kernels(effective, environ, recorded)}
    found = {LINE_INFO: pinned.get(LINE_INFO)}
    if (assembler := pinned.get(ASSEMBLER)) is not None:
        found[ASSEMBLED] = TORCHS if assembler == str(find_assembler()) else OWN
    return {name: value for name, value in found.items() if value is not None}


def _of_kernels(
    effective: Environment, environ: Mapping[str, str], recorded: Mapping[str, str] | None
) -> dict[str, str]:
    if not effective.node.gpus:
        return {}
    # A kernel with line information names the directory that it was compiled in, in each of its files.
    wanted = {LINE_INFO: "1", ASSEMBLED: TORCHS}
    if recorded is not None:
        wanted = {name: recorded[f"{FACTOR}{name}"] for name in wanted if f"{FACTOR}{name}" in recorded}
    pinned = {}
    if (lines := environ.get(LINE_INFO, wanted.get(LINE_INFO))) is not None:
        pinned[LINE_INFO] = lines
    if ASSEMBLER not in environ and wanted.get(ASSEMBLED) == TORCHS and (assembler := find_assembler()):
        pinned[ASSEMBLER] = str(assembler)
    return pinned
