"""The instructions of what was compiled, held against the profile's level, on the bytes. Runs in the parent.

Options say what a compiler was asked for; what a CPU of that level runs is decided by the instructions alone. A pod
without the feature dies of SIGILL, so one such instruction fails the build.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from aot.compile.options import cpu_capability
from aot.errors import BackendFailed, InvalidConfig
from aot.facts.isa import IsaFacts, read_isa
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.profile import Profile

LIBRARIES = "lib/"
MOST_NAMED = 20
# Facts of an artifact, beside its other ones.
USED, VECTOR_BITS = "isa_used", "vector_bits"


def check_instructions(
    artifacts: Sequence[Artifact], paths: Mapping[Digest, Path], profile: Profile
) -> tuple[Artifact, ...]:
    """Return the artifacts with the level and the vector width that their code uses among their facts.

    Host code beside GPU kernels is not looked at: its level is no guard of such an artifact.
    Raises BackendFailed naming function, instruction and feature where code is above the profile's level.
    """
    if profile.capability.family != "cpu":
        return tuple(artifacts)
    return tuple(_checked(artifact, paths, profile) for artifact in artifacts)


def offences_in(library: Path, profile: Profile) -> tuple[str, ...]:
    """Return every reason, in words, why the code is not for the profile's level; raises MalformedDocument."""
    return _reasons(_read(library), cpu_capability(profile).target)


def _checked(artifact: Artifact, paths: Mapping[Digest, Path], profile: Profile) -> Artifact:
    level = cpu_capability(profile).target
    found = [_read(paths[file.digest]) for file in artifact.files if file.path.startswith(LIBRARIES)]
    wrong = [reason for facts in found for reason in _reasons(facts, level)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BackendFailed(
            f"{artifact.region or 'the program'} is compiled for {level}, and its code is not: {wrong[0]}{more}",
            hint="leave out compiler options and custom kernels that ask for more, or name a profile of a higher level",
            details={"backend": "g++", "region": artifact.region, "log": "\n".join(wrong[:MOST_NAMED])},
        )
    if not found:
        return artifact
    facts = {
        USED: max((facts.level for facts in found), key=lambda used: (used.count("-"), used)),
        VECTOR_BITS: str(max(facts.vector_bits for facts in found)),
    }
    return msgspec.structs.replace(artifact, facts={**artifact.facts, **facts})


def _reasons(facts: IsaFacts, level: str) -> tuple[str, ...]:
    # What cannot be decoded may be anything, so it counts as well.
    return tuple(str(fault) for fault in (*facts.offenders(level), *facts.undecoded))


def _read(library: Path) -> IsaFacts:
    try:
        return read_isa(library)
    except ImportError as error:
        raise InvalidConfig(
            f"the instructions of {library.name} cannot be read: {error}", hint="install aot-registry[compile]"
        ) from error
