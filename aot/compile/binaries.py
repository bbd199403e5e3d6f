"""What a build's files hold, read from the bytes that arrived: kernels, and what the host code uses. In the parent.

The same function fills the artifacts of a build and checks those of a pushed bundle.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from aot.compile.options import cpu_capability
from aot.facts.kernels import read_code_facts, read_kernels
from aot.schema.artifact import Artifact, CodeFacts, KernelFacts
from aot.schema.digest import Digest
from aot.schema.profile import Profile
from aot.schema.recipe import Route

LIBRARY = "lib/"
_COMPILED = (Route.PACKAGE, Route.KERNEL)


def record_binaries(artifact: Artifact, paths: Mapping[Digest, Path], profile: Profile) -> Artifact:
    """Return the artifact with its kernels and what its library's code uses. Raises MalformedDocument, and OSError."""
    code, binaries = binaries_of(artifact, paths, profile)
    return msgspec.structs.replace(artifact, code=code, binaries=binaries)


def binaries_of(
    artifact: Artifact, paths: Mapping[Digest, Path], profile: Profile
) -> tuple[CodeFacts | None, tuple[KernelFacts, ...]]:
    """Return what the files at `paths` say: facts of the one library (None without one, or without the decoder of its
    instructions), and every kernel. Nothing is read of routes whose files are no machine code.
    """
    if artifact.route not in _COMPILED:
        return None, ()
    places = [(file.path, paths[file.digest]) for file in artifact.files]
    libraries = [place for path, place in places if path.startswith(LIBRARY)]
    return _code_of(libraries), read_kernels(places, cpu_capability(profile))


def _code_of(libraries: list[Path]) -> CodeFacts | None:
    if len(libraries) != 1:
        return None
    try:
        return read_code_facts(libraries[0])
    except ImportError:
        # Beside a GPU, where no level is a guard, a worker may do without the decoder; for a CPU the build has failed.
        return None
