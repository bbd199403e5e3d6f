"""What a pushed bundle says its files ask of a host, compared with what the files themselves say.

Host guards decide on which machines signed code runs, and of a bundle that was built elsewhere they are its uploader's
word. A proof runs on one host and cannot see a floor that is written too low. So they are derived again, as a build
derives them. Pure but for the files that it reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from aot.compile.binaries import binaries_of
from aot.compile.host import host_guards, kernel_guards, narrowest_of
from aot.compile.isa import offences_in
from aot.compile.kernels.code_object import read_code_object
from aot.compile.kernels.kept import KeptReader
from aot.errors import AotError, QualificationFailed
from aot.facts import read_elf
from aot.facts.targets import fallback_of, machine_codes
from aot.pipeline.recheck_function import faults_of_function
from aot.rules import RULES, Order
from aot.rules.required import falls_back
from aot.sandbox import ShouldStop
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard
from aot.schema.manifest import Manifest
from aot.schema.recipe import Route
from aot.schema.spec import FactorySource, File

LIBRARY, CUBINS = "lib/", "cubin/"
MOST_LISTED = 20


def refuse_false_facts(
    manifest: Manifest, paths: Mapping[Digest, Path], *, should_stop: ShouldStop = lambda: None
) -> None:
    """Raise QualificationFailed where an artifact's facts or host guards are not those of its files at `paths`.

    `should_stop` is asked before each artifact.
    """
    kept = KeptReader(paths)
    wrong = []
    for index, artifact in enumerate(manifest.artifacts):
        should_stop()
        wrong += [f"artifact {index}: {fault}" for fault in _faults(artifact, manifest, paths, kept)]
    if wrong:
        raise QualificationFailed(
            f"the pushed bundle says of its files what they do not say themselves: {wrong[0]}",
            hint="build it again with this version of aot, and push that",
            details={"differences": wrong[:MOST_LISTED]},
        )


def _faults(artifact: Artifact, manifest: Manifest, paths: Mapping[Digest, Path], kept: KeptReader) -> Iterator[str]:
    yield from _faults_of_binaries(artifact, manifest, paths)
    if artifact.route is Route.KERNEL:
        yield from _faults_of_kernel(artifact, manifest, paths)
        return
    if artifact.route is Route.FUNCTION:
        yield from faults_of_function(artifact, manifest, paths)
        return
    if artifact.route is not Route.PACKAGE:
        yield f"nothing can be read from the files of route {artifact.route}"
        return
    libraries = [paths[file.digest] for file in artifact.files if file.path.startswith(LIBRARY)]
    if len(libraries) != 1:
        yield f"wanted one library, found {len(libraries)}"
        return
    yield from _faults_of_package(artifact, manifest, libraries[0], paths)
    yield from _faults_of_kept(artifact, kept)


def _faults_of_kept(artifact: Artifact, kept: KeptReader) -> Iterator[str]:
    """What is kept for other cards must be of this artifact's kernels; what comes of it is proven like every build."""
    if artifact.kept is None:
        return
    try:
        names = kept.names(artifact.kept.digest, (file.path for file in _kernel_files(artifact)))
    except AotError as error:
        yield f"what it keeps for other cards cannot be used: {error.message}"
        return
    held = {(kernel.path, kernel.name) for kernel in artifact.binaries if kernel.path.startswith(CUBINS)}
    if held and held != names:
        yield "what it keeps for other cards is of other kernels than its files hold"


def _kernel_files(artifact: Artifact) -> list[File]:
    return [file for file in artifact.files if file.path.startswith(CUBINS)]


def _faults_of_package(
    artifact: Artifact, manifest: Manifest, library: Path, paths: Mapping[Digest, Path]
) -> Iterator[str]:
    profile = manifest.profile
    try:
        elf = read_elf(library)
        offences = offences_in(library, profile) if profile.capability.family == "cpu" else ()
        kernels = [(file.path, paths[file.digest]) for file in _kernel_files(artifact)]
        codes = machine_codes(kernels, library=library)
        usable = [[one for one in images if profile.capability.runs(one)] for images in codes]
        capability = narrowest_of(profile, {one for images in usable for one in images})
        guards = host_guards(
            elf,
            profile,
            torch=profile.toolchain.torch,
            capability=capability,
            # Who claims less than his files could do claims nothing false.
            fallback=fallback_of(kernels, library=library) if falls_back(artifact) else None,
            of_module=isinstance(manifest.spec.source, FactorySource),
        )
    except AotError as error:
        yield f"its files cannot be used: {error.message}"
        return
    if artifact.elf != elf:
        yield f"it says {artifact.elf}, its library says {elf}"
    if artifact.capability != capability:
        yield f"it says it is for {artifact.capability}, its code is for {capability}"
    for offence in offences[:MOST_LISTED]:
        yield f"its code is not for {profile.capability}: {offence}"
    foreign = {one for images, fitting in zip(codes, usable, strict=True) if not fitting for one in images}
    if foreign:
        yield f"it holds kernels for {', '.join(sorted(foreign))}, which {profile.capability} does not run"
    yield from _faults_of_guards(artifact, guards)


def _faults_of_guards(artifact: Artifact, wanted: Iterable[HostGuard]) -> Iterator[str]:
    for guard in wanted:
        found = [own.value for own in artifact.host_guards if own.kind == guard.kind]
        if not found and RULES[guard.kind].order is Order.ADVISORY:
            continue  # it says where the code was tuned; an older version did not write all of it down
        if found != [guard.value]:
            yield f"its guard {guard.kind} is {', '.join(map(str, found)) or 'not there'}, wanted {guard.value}"


def _faults_of_binaries(artifact: Artifact, manifest: Manifest, paths: Mapping[Digest, Path]) -> Iterator[str]:
    """What an artifact says of its kernels and its code must be so; one made before they were read says nothing."""
    if artifact.code is None and not artifact.binaries:
        return
    try:
        code, binaries = binaries_of(artifact, paths, manifest.profile)
    except AotError as error:
        yield f"its files cannot be read: {error.message}"
        return
    if artifact.binaries != binaries:
        differing = sorted({kernel.name for kernel in set(artifact.binaries) ^ set(binaries)})
        yield f"it says of its kernels what its files do not say: {', '.join(differing[:MOST_LISTED])}"
    if artifact.code is not None and code is not None and artifact.code != code:
        yield f"it says its code is {artifact.code}, its library says {code}"


def _faults_of_kernel(artifact: Artifact, manifest: Manifest, paths: Mapping[Digest, Path]) -> Iterator[str]:
    if len(artifact.files) != 1 or artifact.launch is None:
        yield f"wanted one code object and its launch, found {len(artifact.files)} file(s)"
        return
    try:
        found = read_code_object(paths[artifact.files[0].digest])
    except AotError as error:
        yield f"its code object cannot be used: {error.message}"
        return
    if found.kernels != (artifact.launch.entry,):
        yield f"it launches {artifact.launch.entry}, its code object holds {', '.join(found.kernels) or 'no kernel'}"
    if artifact.capability != found.capability:
        yield f"it says it is for {artifact.capability}, its code is for {found.capability}"
    if not manifest.profile.capability.runs(found.capability):
        yield f"its code is for {found.capability}, which {manifest.profile.capability} does not run"
    wanted = kernel_guards(found.capability, cuda_major=found.cuda_major)
    if artifact.host_guards != wanted:
        yield f"its guards are {_spell(artifact.host_guards)}, wanted {_spell(wanted)}"


def _spell(guards: Iterable[HostGuard]) -> str:
    return ", ".join(f"{guard.kind} {guard.value}" for guard in guards) or "none"
