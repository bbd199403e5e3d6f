"""The parent's side of a compile: lays out a child, runs it in the sandbox, and checks what it left behind.

Called by aot.pipeline. Never imports torch: a worker stays small, and survives whatever a source does.
"""

import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import structs

from aot.bundle.hashing import blob_of
from aot.compile.binaries import record_binaries
from aot.compile.cutlass import check_cutlass, report_cutlass
from aot.compile.ends import as_compile_error, explain_exit, failure_of
from aot.compile.headers import SharedCaches
from aot.compile.isa import check_instructions
from aot.compile.job import ARTIFACTS_DIRECTORY, OUTCOME_FILE, CompileJob, CompileOutcome, JobKind
from aot.compile.layout import Layout, package_place
from aot.compile.multi_arch import check_multi_arch
from aot.compile.options import cpu_capability, refuse_other_machine
from aot.compile.toolchain import observe_toolchain
from aot.compile.tuned import MOST_BYTES, TUNING_FILE, TuningStore
from aot.errors import BackendFailed, MalformedDocument, SourceNotLoadable
from aot.recipes import check_recipe
from aot.sandbox import Bubblewrap, ChildExit, OnEvent, ShouldStop, list_gpu_devices, run_child
from aot.sandbox import Limits as ChildLimits
from aot.schema.artifact import Artifact, ConstantMeta
from aot.schema.codec import decode, encode
from aot.schema.digest import Digest
from aot.schema.factor import Fingerprint
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe
from aot.schema.report import CompileReport, Phase
from aot.schema.spec import Limits, Spec
from aot.source import OpenedSource

OUTPUT_BYTES = 64 << 20
OUTCOME_BYTES = 64 << 20
WARM_LIMITS = Limits(wall_seconds=600.0, memory_bytes=8 << 30)


@dataclass(frozen=True)
class Compiled:
    """What a child made. `paths` has every file of every artifact by digest, hashed by the parent.

    `measured` is a file with what tuning knows by now; None where nothing was tuned.
    """

    artifacts: tuple[Artifact, ...]
    fingerprint: Fingerprint
    parameters: tuple[ConstantMeta, ...]
    report: CompileReport
    paths: Mapping[Digest, Path]
    exit: ChildExit
    measured: Path | None = None


def compile_source(
    source: OpenedSource,
    spec: Spec,
    profile: Profile,
    *,
    scratch: Path,
    sandbox: Bubblewrap | None,
    shared_caches: Path | None = None,
    seed: int = 0,
    devices: Sequence[Path] | None = None,
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> Compiled:
    """Compile `source` for `profile`.

    `scratch` is a directory of this build's own, where the results stay. `shared_caches` outlives builds and spares
    later ones the C++ headers, and what tuning has measured already. `devices` are device files that the child may
    use: those of all cards when left out and the profile is a GPU's. `on_event` gets
    `{"phase": …, "step": "2 of 3: …"}` as the child goes on.
    Raises the families InvalidInput and CompileFailed; `details["log"]` then holds the end of the child's stderr.
    """
    cutlass = _check(spec.recipe, profile)
    devices = list_gpu_devices(profile.capability.family) if devices is None else devices
    headers = None
    if shared_caches is not None:
        headers = ensure_headers(
            shared_caches, profile, sandbox=sandbox, devices=devices, on_event=on_event, should_stop=should_stop
        )
    layout = _lay_out(source, scratch, isolated=sandbox is not None, headers=headers, cutlass=cutlass)
    job, store = _job_of(source, spec, profile, layout=layout, seed=seed), None
    if shared_caches is not None and spec.recipe.mode.tunes:
        store = TuningStore(shared_caches.absolute(), profile, spec.namespace)
        layout.write_tuning(encode(store.read()))
        job = structs.replace(job, tuning=str(layout.inside(f"job/{TUNING_FILE}")))
    compiled = run_job(
        job,
        layout,
        limits=spec.limits,
        sandbox=sandbox,
        devices=devices,
        on_event=on_event,
        should_stop=should_stop,
    )
    if store is not None:
        compiled = replace(compiled, measured=_keep_measured(layout, store))
    return replace(compiled, artifacts=check_instructions(compiled.artifacts, compiled.paths, profile))


def _check(recipe: Recipe, profile: Profile) -> Path | None:
    """Refuse what cannot be built here; return where CUTLASS lies for a recipe that asks for it."""
    check_recipe(recipe)
    refuse_other_machine(profile.capability)
    check_multi_arch(recipe, profile)
    return check_cutlass(recipe, profile)


def _keep_measured(layout: Layout, store: TuningStore) -> Path | None:
    """Keep what the child has left, and write what was understood of it to a file for others."""
    # Left by the child, so read with care; without it the build is as good.
    with suppress(OSError, MalformedDocument):
        measured = store.add(_read_plain(layout.scratch / "out" / TUNING_FILE, MOST_BYTES))
        if len(measured):
            path = layout.scratch / TUNING_FILE
            path.write_bytes(encode(measured))
            return path
    return None


def _lay_out(
    source: OpenedSource, scratch: Path, *, isolated: bool, headers: Path | None, cutlass: Path | None
) -> Layout:
    opened = source.tree or source.program
    return Layout(
        scratch=scratch.absolute(),
        isolated=isolated,
        source=opened and opened.absolute(),
        weights=tuple(path.absolute() for path in source.weights),
        headers=headers,
        cutlass=cutlass,
    )


def _job_of(source: OpenedSource, spec: Spec, profile: Profile, *, layout: Layout, seed: int) -> CompileJob:
    """What the child is told, with every place as it sees it."""
    place = str(layout.inside("source"))
    return CompileJob(
        tree=place if source.tree else "",
        entry=source.entry if source.tree else "",
        requirements=spec.source.requirements,
        program="" if source.tree else place,
        recipe=spec.recipe,
        profile=profile,
        weights=layout.weights_inside(),
        seed=seed,
        out=str(layout.inside("out")),
        build=str(layout.inside("build")),
        headers=str(layout.inside("headers")) if layout.headers else "",
    )


def ensure_headers(
    shared_caches: Path,
    profile: Profile,
    *,
    sandbox: Bubblewrap | None,
    devices: Sequence[Path] = (),
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> Path:
    """Return the shared headers for `profile`, building them once in a child of their own: about 20 seconds.

    That child also proves that the toolchain works at all. `on_event` is told when they have to be built or waited
    for. Raises the family CompileFailed.
    """

    def tell(what: str) -> None:
        on_event({"phase": Phase.LOADING.value, "step": f"headers: {what}"})

    def make(scratch: Path) -> Path:
        tell("first build on this machine")
        layout = Layout(scratch=scratch.absolute(), isolated=sandbox is not None)
        out, build = (str(layout.inside(place)) for place in ("out", "build"))
        job = CompileJob(kind=JobKind.WARM, recipe=Recipe(), profile=profile, out=out, build=build)
        run_job(job, layout, limits=WARM_LIMITS, sandbox=sandbox, devices=devices, should_stop=should_stop)
        return scratch / "build" / "headers"

    return SharedCaches(shared_caches.absolute()).ensure(
        profile, make, on_wait=lambda: tell("another build makes them"), should_stop=should_stop
    )


def run_job(
    job: CompileJob,
    layout: Layout,
    *,
    limits: Limits,
    sandbox: Bubblewrap | None,
    devices: Sequence[Path] = (),
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> Compiled:
    """Run one child to its end, and return what it made. Raises as `compile_source`."""
    layout.prepare(_compiler_of(job, on_event), march=cpu_capability(job.profile).level)
    (layout.scratch / "job" / "job.json").write_bytes(encode(job))
    phase = Phase.LOADING

    def note(event: Mapping[str, Any]) -> None:
        nonlocal phase
        if (parsed := _parse_event(event)) is not None:
            phase = Phase(parsed["phase"])
            on_event(parsed)

    ended = run_child(
        [sys.executable, "-P", "-m", "aot.compile", str(layout.inside("job/job.json"))],
        cwd=layout.inside("build/home"),
        env=layout.environment(job.recipe, job.profile),
        limits=_limits_of(limits),
        sandbox=sandbox,
        readable=(package_place(),),
        writable=() if sandbox else (layout.scratch / "out", layout.scratch / "build"),
        binds=layout.binds() if sandbox else (),
        devices=devices,
        stdout=layout.scratch / "stdout.txt",
        stderr=layout.scratch / "stderr.txt",
        on_event=note,
        should_stop=should_stop,
    )
    outcome = read_outcome(layout.scratch / "out", ended, phase=phase, limits=limits)
    made = _accept(outcome, job, out=layout.scratch / "out", ended=ended)
    return replace(made, report=report_cutlass(made.report, layout.cutlass))


def _compiler_of(job: CompileJob, on_event: OnEvent) -> Path:
    """Return the C++ compiler. Kept kernels need none, nor torch: Triton brings its own assembler."""
    if job.kind is JobKind.KEPT:
        return Path("g++")
    observed = observe_toolchain()
    if job.kind is not JobKind.KERNEL:
        # For the build's log, which stays with the registry: a bundle names no place of its builder.
        on_event({"line": f"compiler {observed.compiler} ({observed.toolchain.compiler})"})
    return observed.compiler


def _limits_of(limits: Limits) -> ChildLimits:
    return ChildLimits(
        wall_seconds=limits.wall_seconds,
        memory_bytes=limits.most_memory_bytes,
        processes=limits.processes,
        output_bytes=OUTPUT_BYTES,
        disk_bytes=limits.most_disk_bytes,
    )


def _accept(outcome: CompileOutcome, job: CompileJob, *, out: Path, ended: ChildExit) -> Compiled:
    """Take over what the child made, once its files are those that it recorded. Raises BackendFailed."""
    if outcome.fingerprint is None:
        raise failure_of(BackendFailed, "the child recorded no fingerprint", "build again", ended)
    paths = dict(check_files(out, outcome))
    return Compiled(
        artifacts=tuple(record_binaries(artifact, paths, job.profile) for artifact in outcome.artifacts),
        fingerprint=outcome.fingerprint,
        parameters=outcome.parameters,
        report=outcome.report,
        paths=paths,
        exit=ended,
    )


def read_outcome(out: Path, ended: ChildExit, *, phase: Phase, limits: Limits) -> CompileOutcome:
    """Return the outcome of a child that has made artifacts; raise what happened instead otherwise."""
    if failure := explain_exit(ended, phase=phase, limits=limits):
        raise failure
    try:
        content = _read_plain(out / OUTCOME_FILE, OUTCOME_BYTES)
        outcome = decode(content, CompileOutcome, what="compile outcome")
    except (OSError, MalformedDocument) as error:
        # The source's code runs in the child too, and may end it before it has written anything.
        raise failure_of(
            SourceNotLoadable if phase is Phase.LOADING else BackendFailed,
            f"the child ended without an outcome while {phase}: it {ended.describe()}",
            "a source must not call os._exit, nor end the process in another way",
            ended,
        ) from error
    if outcome.error is not None:
        raise as_compile_error(outcome, ended)
    return outcome


def check_files(out: Path, outcome: CompileOutcome) -> Iterator[tuple[Digest, Path]]:
    """Hash every file again. Raises BackendFailed where the child's word and its files differ."""
    for index, artifact in enumerate(outcome.artifacts):
        for file in artifact.all_files:
            path = PurePosixPath(file.path)
            found = None
            if not path.is_absolute() and not {"..", "."} & set(file.path.split("/")) and "\0" not in file.path:
                found = out.joinpath(ARTIFACTS_DIRECTORY, str(index), *path.parts)
            if found is None or not _is_plain(found, out) or _digest_of(found) != (file.digest, file.size_bytes):
                raise BackendFailed(
                    f"the child's file {file.path!r} is not what it recorded",
                    hint="build again; a source must not touch the build's own files",
                    details={"backend": "inductor", "region": artifact.region, "log": ""},
                )
            yield file.digest, found


def _is_plain(path: Path, root: Path) -> bool:
    """True for a regular file below `root` with no link on the way: a child must not make its parent read elsewhere."""
    try:
        return stat.S_ISREG(path.lstat().st_mode) and path.resolve() == root.resolve() / path.relative_to(root)
    except OSError:
        return False


def _read_plain(path: Path, most_bytes: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or os.fstat(descriptor).st_size > most_bytes:
            raise MalformedDocument(f"{path.name} is no file of at most {most_bytes} bytes")
        return file.read(most_bytes)


def _digest_of(path: Path) -> tuple[Digest, int]:
    blob = blob_of(path)
    return blob.digest, blob.size_bytes


def _parse_event(event: Mapping[str, Any]) -> dict[str, str] | None:
    try:
        return {"phase": Phase(event["phase"]).value, "step": str(event.get("step", ""))[:200]}
    except (KeyError, ValueError):
        return None
