"""The proof once more on a CPU of exactly the profile's level, where this host has a higher one.

A host of x86-64-v4 runs what it built for v3 whatever is in it; a pod of v3 does not. Both processes of the proof
therefore run again under an emulator that ends them with SIGILL where a v3 CPU would. Without one, the bytes of the
code have been read at build (aot.compile.isa), and the proof says that nothing ran there.
"""

import dataclasses
import time

from aot.bundle import StoredBundle
from aot.emulator import Emulator, NoEmulator, find_emulator
from aot.errors import QualificationFailed
from aot.qualify.children import Proving, read_claim
from aot.qualify.crash import with_hint
from aot.qualify.job import Claim
from aot.qualify.steps import judge, prove_pair, run_numerics, start_compiled, start_eagerly
from aot.qualify.verdict import count_misses, list_omissions
from aot.schema.capability import Capability
from aot.schema.environment import NodeFacts, host_cpu
from aot.schema.profile import Profile
from aot.schema.report import Emulation


def needs_emulation(profile: Profile, host: Capability | None) -> bool:
    """True where this host is not known to be a CPU of exactly the profile's level: its running the code is no proof.

    None is a host whose CPU was not observed: it may have any level.
    """
    return profile.capability.family == "cpu" and host != profile.capability


def host_of(profile: Profile, node: NodeFacts) -> Capability | None:
    """Return what this host's CPU is, said as exactly as the profile's: its level, and features beside one with such.

    None where the CPU was not observed.
    """
    return host_cpu(node) if profile.capability.features else node.cpu


def prove_emulated(proving: Proving, stored: StoredBundle, *, seconds: float) -> Emulation | NoEmulator:
    """Return the proof on an emulated CPU of the profile's level, or why there is none.

    Raises QualificationFailed for what fails there; where the program itself does, without the bundle, it says that
    the toolchain is not for CPUs of that level.
    """
    emulator = find_emulator(proving.profile.capability)
    if isinstance(emulator, NoEmulator):
        return emulator
    started = time.monotonic()
    artifacts = stored.manifest.artifacts
    inside = dataclasses.replace(proving, emulator=emulator, scratch=proving.scratch / "emulated")
    try:
        eager = start_eagerly(inside, artifacts)
    except QualificationFailed as error:
        raise _not_for(emulator, error) from error
    try:
        start = prove_pair(inside, eager, start_compiled(inside, stored), stored.manifest.artifacts)
        numerics = run_numerics(inside, stored, seconds=seconds)
        claim = read_claim(numerics, Claim)
    except QualificationFailed as error:
        raise with_hint(error, artifacts, cpu=emulator.cpu.capability) from error
    comparing = dataclasses.replace(proving, scratch=inside.scratch)
    return Emulation(
        emulator=emulator.version,
        model=emulator.cpu.model,
        cpu=emulator.cpu.capability,
        start=start,
        agreements=judge(inside, comparing, numerics, claim, artifacts),
        recompiles=count_misses(claim.cases),
        seconds=round(time.monotonic() - started, 3),
        left_out=list_omissions(claim, artifacts),
    )


def _not_for(emulator: Emulator, error: QualificationFailed) -> QualificationFailed:
    return QualificationFailed(
        f"without the artifact the program does not run on a CPU of {emulator.cpu.capability}: {error.message}",
        hint="torch or another package of this toolchain needs a higher level: ask for a profile of that one",
        details=error.details,
    )
