"""What a pushed bundle says its files ask of a host, compared with what the files themselves say.

Host guards decide on which machines signed code runs, and of a bundle that was built elsewhere they are its uploader's
word. A proof runs on one host and cannot see a floor that is written too low. So they are derived again, as a build
derives them. Pure but for the files that it reads.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from aot.compile.host import capability_of, host_guards
from aot.errors import AotError, QualificationFailed
from aot.facts import read_cubin, read_elf
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.recipe import Route
from aot.schema.spec import FactorySource

LIBRARY, CUBINS, CUBIN_SUFFIX = "lib/", "cubin/", ".cubin"
MOST_LISTED = 20


def refuse_false_facts(manifest: Manifest, paths: Mapping[Digest, Path]) -> None:
    """Raise QualificationFailed where an artifact's facts or host guards are not those of its files at `paths`."""
    wrong = [
        f"artifact {index}: {fault}"
        for index, artifact in enumerate(manifest.artifacts)
        for fault in _faults(artifact, manifest, paths)
    ]
    if wrong:
        raise QualificationFailed(
            f"the pushed bundle says of its files what they do not say themselves: {wrong[0]}",
            hint="build it again with this version of aot, and push that",
            details={"differences": wrong[:MOST_LISTED]},
        )


def _faults(artifact: Artifact, manifest: Manifest, paths: Mapping[Digest, Path]) -> Iterator[str]:
    if artifact.route is not Route.PACKAGE:
        yield f"nothing can be read from the files of route {artifact.route}"
        return
    libraries = [paths[file.digest] for file in artifact.files if file.path.startswith(LIBRARY)]
    if len(libraries) != 1:
        yield f"wanted one library, found {len(libraries)}"
        return
    cubins = [
        paths[file.digest]
        for file in artifact.files
        if file.path.startswith(CUBINS) and file.path.endswith(CUBIN_SUFFIX)
    ]
    profile = manifest.profile
    try:
        elf = read_elf(libraries[0])
        capability = capability_of(profile, cubins)
        foreign = {found for path in cubins if not profile.capability.covers(found := read_cubin(path).capability)}
        guards = host_guards(
            elf,
            profile,
            torch=profile.toolchain.torch,
            capability=capability,
            of_module=isinstance(manifest.spec.source, FactorySource),
        )
    except AotError as error:
        yield f"its files cannot be used: {error.message}"
        return
    if artifact.elf != elf:
        yield f"it says {artifact.elf}, its library says {elf}"
    if artifact.capability != capability:
        yield f"it says it is for {artifact.capability}, its code is for {capability}"
    if foreign:
        yield f"it holds kernels for {', '.join(sorted(foreign))}, which {profile.capability} does not run"
    for guard in guards:
        found = [own.value for own in artifact.host_guards if own.kind == guard.kind]
        if found != [guard.value]:
            yield f"its guard {guard.kind} is {', '.join(map(str, found)) or 'not there'}, wanted {guard.value}"
