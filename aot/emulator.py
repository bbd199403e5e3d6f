"""Emulators: a CPU of exactly one level, for proofs on a host that has more. Layer 1; used by aot.qualify.

Code for x86-64-v3 that holds one AVX-512 instruction runs on the v4 host that built it and dies on the first pod of
its own level. qemu's user mode runs one process on a CPU model of our choice: an instruction that the model lacks
ends it with SIGILL, here. System calls, files and what the process starts stay the host's: /proc/cpuinfo shows the
host's CPU, so whoever observes inside must be told what it runs on (`Emulator.cpu`, `on_cpu`).

Sources of the models: `qemu-x86_64 -cpu help` and target/i386/cpu.c of QEMU 7.2; a level's features are those of the
x86-64 psABI. What is beside the level is switched off, so that AES or RDRAND is found as AVX-512 is. No release of
QEMU up to 10 translates AVX-512 (target/i386/tcg), so there is no model for x86-64-v4.
"""

import functools
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aot.schema.capability import CPU_X86_LEVELS, Capability
from aot.schema.codec import Document
from aot.schema.environment import Environment
from aot.schema.targets import level_features

PROBE_SECONDS = 30
# Below /usr, which every sandbox shows.
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
PROGRAMS = ("qemu-x86_64", "qemu-x86_64-static")
# glibc's loader lists the levels that it finds by CPUID (glibc 2.33 and newer, `ld.so --help`).
LOADER = "/lib64/ld-linux-x86-64.so.2"
_SUPPORTED = re.compile(r"^\s+(x86-64-v\d) \(supported", re.MULTILINE)

# Beside the level, or not translated (which would be warned of at each start).
_OFF = ("pcid", "x2apic", "tsc-deadline", "invpcid", "aes", "pclmulqdq", "rdrand", "fsgsbase", "erms", "smep")
_MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "x86-64": ("Conroe", ()),
    "x86-64-v2": ("Nehalem", ()),
    "x86-64-v3": ("Haswell-noTSX", _OFF),
}


class EmulatedCpu(Document, kw_only=True):
    """What a process on an emulated CPU is to observe in place of the host's."""

    capability: Capability
    model: str
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """A program that runs others on a CPU of exactly `cpu.capability`; `version` is its own name and release."""

    program: Path
    version: str
    cpu: EmulatedCpu
    model: str  # as the program's option spells it

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv`, whose first word is an absolute path, on the emulated CPU."""
        return [str(self.program), "-cpu", self.model, *argv]


@dataclass(frozen=True)
class NoEmulator:
    """Why no CPU of a level can be emulated on this host."""

    reason: str


@functools.cache
def find_emulator(capability: Capability, *, search_path: str = SEARCH_PATH) -> Emulator | NoEmulator:
    """Return an emulator of `capability`, tried: a program that runs on it finds that level, and no higher one."""
    model = _MODELS.get(capability.target) if capability.family == "cpu" else None
    if model is None:
        return NoEmulator(f"no emulator has a CPU of exactly {capability}")
    found = next(filter(None, (shutil.which(name, path=search_path) for name in PROGRAMS)), None)
    if found is None:
        return NoEmulator(f"{PROGRAMS[0]} is not installed (apt-get install qemu-user)")
    if not Path(LOADER).exists():
        return NoEmulator(f"there is no {LOADER} to try the emulator with")
    name, off = model
    emulator = Emulator(
        program=Path(found),
        version=_version_of(found),
        cpu=EmulatedCpu(
            capability=capability,
            model=f"{name} (emulated)",
            features=tuple(sorted(level_features(capability.target) or ())),
        ),
        model=",".join((name, *(f"{feature}=off" for feature in off))),
    )
    fault = _fault_of(emulator)
    return emulator if fault is None else NoEmulator(fault)


def on_cpu(environment: Environment, cpu: EmulatedCpu) -> Environment:
    """Return `environment` as a process on the emulated `cpu` must see it."""
    node = msgspec.structs.replace(environment.node, cpu=cpu.capability, cpu_features=cpu.features, cpu_model=cpu.model)
    return msgspec.structs.replace(environment, node=node)


def _fault_of(emulator: Emulator) -> str | None:
    """Return what is wrong with a CPU that does not have its level, or has a higher one."""
    listed = _ask(emulator.wrap([LOADER, "--help"]))
    if listed is None or "x86-64-v2" not in listed:
        return f"{emulator.version} does not run {LOADER} here"
    level = max(_SUPPORTED.findall(listed), default=CPU_X86_LEVELS[0])
    wanted = emulator.cpu.capability.target
    return None if level == wanted else f"{emulator.version} gives a CPU of level {level} for {wanted}"


def _version_of(program: str) -> str:
    words = (_ask([program, "--version"]) or "").partition("\n")[0].split()
    release = words[words.index("version") + 1] if "version" in words[:-1] else "of an unknown release"
    return f"{Path(program).name} {release}"


def _ask(argv: Sequence[str]) -> str | None:
    try:
        asked = subprocess.run(
            argv,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout if asked.returncode == 0 else None
