"""Code for a card that is not here, out of a proven bundle for another: its kernels lowered again in its own wrapper.

A package's wrapper loads each kernel from a file by name, so another card's cubins can stand under the same names.
Block sizes are those that tuning chose on the other card: the bundle is untuned, unproven, and pending in the registry
until a worker with the card has proven it (`requalify_bundle`). It goes live by no other way.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from aot.bundle import write_bundle
from aot.bundle.assemble import assemble
from aot.compile.binaries import record_binaries
from aot.compile.host import capability_of, host_guards
from aot.compile.kernels.code_object import read_code_object
from aot.compile.kernels.kept import KeptReader
from aot.compile.kernels.run import compile_kept_kernels
from aot.compile.options import captures_graphs
from aot.compile.run import Compiled
from aot.errors import BackendFailed
from aot.facts import read_elf
from aot.pipeline.build import Staged, provenance_of, read_staged
from aot.pipeline.known import Known, is_untuned
from aot.pipeline.recheck import CUBINS, LIBRARY, refuse_false_facts
from aot.rules import RULES, Order
from aot.runtime.winner import GRAPHS_FACT
from aot.sandbox import Bubblewrap, OnEvent, ShouldStop
from aot.schema.artifact import Artifact, Kernel, Winner
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard
from aot.schema.manifest import Manifest
from aot.schema.measured import without_measured
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe
from aot.schema.report import CompileReport, Qualification
from aot.schema.spec import FactorySource, File, Limits

LIMITS = Limits(wall_seconds=3600.0, memory_bytes=8 << 30)
# What the program and its recipe have set (aot.compile.host, `program_guards`); all else is of bytes and profile.
_OF_PROGRAM = ("deterministic", "default_dtype", "matmul_precision", "conv_precision")

# How a report says where configurations come from, however often code was made of code.
_UNTUNED, _FOR = "untuned: configurations chosen on ", ", compiled for "


def build_for_card(
    known: Known,
    profile: Profile,
    *,
    scratch: Path,
    sandbox: Bubblewrap | None,
    builder: str,
    limits: Limits = LIMITS,
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> Staged:
    """Stage the bundle of `known` for `profile` below `scratch`: the same program and recipe, untuned and unproven.

    Raises InvalidProfile where Triton here is another release, BackendFailed naming the kernel that the card cannot
    run or the wrapper could not launch, the families InvalidInput and CompileFailed besides, and QualificationFailed
    where code and manifest differ.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with_kernels = [artifact for artifact in known.manifest.artifacts if artifact.kept is not None]
    reader, places = KeptReader(known.paths), []
    for artifact in with_kernels:
        should_stop()
        assert artifact.kept is not None
        reader.names(artifact.kept.digest, (file.path for file in artifact.files if file.path.startswith(CUBINS)))
        places.append(known.paths[artifact.kept.digest])
    made = None
    if places:
        made = compile_kept_kernels(
            places,
            profile,
            scratch=scratch / "compile",
            limits=limits,
            sandbox=sandbox,
            on_event=on_event,
            should_stop=should_stop,
        )
    paths = {**known.paths, **(made.paths if made else {})}
    fresh = iter(made.artifacts if made else ())
    artifacts = tuple(
        _for_card(one, known.manifest, profile, next(fresh).files if one.kept else (), paths)
        for one in known.manifest.artifacts
    )
    manifest = _assemble(known, profile, artifacts, made, builder=builder)
    # Other people's text was compiled in the child that wrote this, so what it says is read from the bytes once more.
    refuse_false_facts(manifest, paths, should_stop=should_stop)
    return read_staged(write_bundle(scratch / "bundle", manifest=manifest, files=paths).directory)


def nothing_run(profile: Profile) -> Qualification:
    """Return what is known where no kernel has run: nothing of it counts as a proof."""
    return Qualification(
        numerics="not run",
        profile=profile.name,
        torch=profile.toolchain.torch,
        not_run=f"compiled without the card; no {profile.capability} device has run it",
    )


def _for_card(
    artifact: Artifact, manifest: Manifest, profile: Profile, cubins: Sequence[File], paths: Mapping[Digest, Path]
) -> Artifact:
    """The artifact with other cubins, and what follows from their bytes and the profile; nothing of a measurement."""
    swapped = {file.path: file for file in cubins}
    files = tuple(swapped.get(file.path, file) for file in artifact.files)
    library = next(paths[file.digest] for file in files if file.path.startswith(LIBRARY))
    kernels = [paths[file.digest] for file in cubins]
    _refuse_newer_driver(kernels, profile)
    capability = capability_of(profile, kernels, library=library)
    return record_binaries(
        replace(
            artifact,
            capability=capability,
            files=files,
            host_guards=(*_guards(library, manifest, profile, capability), *_of_program(artifact)),
            elf=read_elf(library),
            kernels=tuple(Kernel(name=kernel.name, choice=kernel.choice) for kernel in artifact.kernels),
            facts=_facts(artifact, manifest.spec.recipe, profile),
            speeds=(),
            winner=Winner.COMPILED,
            tuned=False,
        ),
        paths,
        profile,
    )


def _refuse_newer_driver(kernels: Sequence[Path], profile: Profile) -> None:
    """Raises BackendFailed for cubins of a newer CUDA than the profile's, whose drivers may not load them.

    A driver loads what assemblers of its own major release and of older ones have written (CUDA compatibility guide).
    """
    wanted = (profile.toolchain.cuda or "0").split(".")[0]
    found = [read_code_object(place).cuda_major for place in kernels]
    if newer := [major for major in found if major is not None and int(major) > int(wanted)]:
        raise BackendFailed(
            f"the assembler here is of CUDA {newer[0]}, hosts of {profile.name} have CUDA {profile.toolchain.cuda}",
            hint="install the Triton and torch of the profile's toolchain here",
            details={"backend": "triton", "region": "", "log": ""},
        )


def _guards(library: Path, manifest: Manifest, profile: Profile, capability: Capability) -> Iterator[HostGuard]:
    """Yield what bytes and profile ask of a host, but for what tells where code was tuned: this was tuned nowhere."""
    torch, of_module = profile.toolchain.torch, isinstance(manifest.spec.source, FactorySource)
    for guard in host_guards(read_elf(library), profile, torch=torch, capability=capability, of_module=of_module):
        if RULES[guard.kind].order is not Order.ADVISORY:
            yield guard


def _facts(artifact: Artifact, recipe: Recipe, profile: Profile) -> dict[str, str]:
    """The artifact's facts; whether a graph is to be captured is the recipe's and this profile's, and no finding."""
    facts = {name: value for name, value in without_measured(artifact.facts).items() if name != GRAPHS_FACT}
    return facts | ({GRAPHS_FACT: "capture"} if captures_graphs(recipe, profile) else {})


def _of_program(artifact: Artifact) -> tuple[HostGuard, ...]:
    return tuple(guard for guard in artifact.host_guards if guard.kind in _OF_PROGRAM)


def _tuned_on(source: Manifest) -> str:
    """Where the configurations of `source` were chosen; what was made without its card itself says so in its report."""
    if not is_untuned(source):
        return str(source.profile.device.sku if source.profile.device else source.profile.capability)
    lines = (line for line in source.compile_report.warnings if line.startswith(_UNTUNED))
    line = next(lines, f"{_UNTUNED}a card that its report does not name")
    return line.removeprefix(_UNTUNED).partition(_FOR)[0]


def _assemble(
    known: Known, profile: Profile, artifacts: tuple[Artifact, ...], made: Compiled | None, *, builder: str
) -> Manifest:
    source = known.manifest
    told = f"{_UNTUNED}{_tuned_on(source)}{_FOR}{profile.capability} without the card, not run"
    return assemble(
        replace(source.spec, profile=profile.name),
        profile,
        fingerprint=source.fingerprint,
        artifacts=artifacts,
        qualification=nothing_run(profile),
        compile_report=CompileReport(
            toolchain=source.compile_report.toolchain,
            options=source.compile_report.options,
            phases=made.report.phases if made else {},
            warnings=(told,),
        ),
        provenance=replace(
            provenance_of(source.spec, builder=f"{builder}, from {known.digest.short}"),
            commit=source.provenance.commit,
            dirty=source.provenance.dirty,
            commit_told_by=source.provenance.commit_told_by,
        ),
    )
