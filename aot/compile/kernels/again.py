"""The child's side: kernels that packages keep, lowered for another card. Nothing of a model's source is run.

Triton's parser is C++ and reads other people's bytes here, so it runs where compiles run (aot.sandbox).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aot.bundle.hashing import blob_of
from aot.compile.job import ARTIFACTS_DIRECTORY, CompileJob, CompileOutcome
from aot.compile.kernels.kept import KeptKernel, unpack_kept
from aot.compile.kernels.ptx import check_launch_bytes, own_shared_memory
from aot.compile.kernels.targets import TritonTarget, target_for
from aot.compile.kernels.triton_compile import LOG_CHARACTERS, gpu_target, require_triton
from aot.errors import AotError, BackendFailed
from aot.facts import read_cubin
from aot.keys import fingerprint_of
from aot.schema.artifact import Artifact, Coverage, CoverageKind
from aot.schema.factor import Factor
from aot.schema.recipe import Route
from aot.schema.report import CompileReport, Phase
from aot.schema.spec import File

_OLDEST_DEPENDENT_LAUNCH = 90  # CUDA programming guide, "Programmatic Dependent Launch": compute capability 9.0


class PhaseLog(Protocol):
    seconds: dict[str, float]

    def phase(self, phase: Phase, step: str = "") -> Any:
        """A context in which the work is in `phase`."""


def make_again(job: CompileJob, progress: PhaseLog) -> CompileOutcome:
    """Lower every kernel of every file in the job's tree: one artifact for each file, by name, with cubins alone.

    Raises the families InvalidInput and CompileFailed.
    """
    with progress.phase(Phase.LOADING):
        target = target_for(job.profile.capability)
        kept = [unpack_kept(path.read_bytes()) for path in sorted(Path(job.tree).iterdir())]
        for one in kept:
            require_triton(one.triton)
    count, done = sum(len(one.kernels) for one in kept), 0
    artifacts = []
    for index, one in enumerate(kept):
        files = []
        for kernel in one.kernels:
            done += 1
            step = f"{done} of {count}: {kernel.name[:80]} for {target.capability}"
            with progress.phase(Phase.COMPILING, step):
                files.append(_write(kernel, target, Path(job.out) / ARTIFACTS_DIRECTORY / str(index), Path(job.build)))
        artifacts.append(_of_files(tuple(files), target))
    return CompileOutcome(
        artifacts=tuple(artifacts),
        fingerprint=fingerprint_of([Factor.of("capability", target.capability)]),
        report=CompileReport(phases=dict(progress.seconds)),
    )


def _of_files(files: tuple[File, ...], target: TritonTarget) -> Artifact:
    return Artifact(
        region="",
        instances=(),
        route=Route.PACKAGE,
        capability=target.capability,
        coverage=Coverage(kind=CoverageKind.EXACT),
        files=files,
        host_guards=(),
    )


def _write(kernel: KeptKernel, target: TritonTarget, into: Path, build: Path) -> File:
    path = into / kernel.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compile_kept(kernel, target, build=build))
    found = read_cubin(path).kernels
    if found != (kernel.name,):
        raise _refuse(kernel, target, f"it came out as {', '.join(found) or 'no kernel'}", "report this")
    blob = blob_of(path)
    return File(path=kernel.path, digest=blob.digest, size_bytes=blob.size_bytes)


@dataclass(frozen=True)
class Lowered:
    """What Triton made for a target; `shared_bytes` is what a launch has to ask for."""

    cubin: bytes
    ptx: str
    shared_bytes: int


def compile_kept(kernel: KeptKernel, target: TritonTarget, *, build: Path) -> bytes:
    """Return the cubin that the same wrapper launches on a card of `target`. `build`: a directory for Triton's input.

    Raises BackendFailed naming what of the launch would differ, or what Triton says.
    """
    lowered = lower_kept(kernel, target, build=build)
    if lowered.shared_bytes <= kernel.shared_bytes:
        return lowered.cubin
    return assemble_ptx(own_shared_memory(lowered.ptx, needed=lowered.shared_bytes), kernel, target)


def lower_kept(kernel: KeptKernel, target: TritonTarget, *, build: Path) -> Lowered:
    """Return the kernel for `target`, where its wrapper can launch it there.

    A launch knows nothing of how many loads a loop has under way (`num_stages`), which the shared memory is for: where
    it does not suffice, fewer are. Raises BackendFailed.
    """
    _check_before(kernel, target)
    source = build / "kernel.ttir"
    source.write_text(kernel.ttir)
    stages = kernel.options.num_stages or 1
    while True:
        lowered = _lower(kernel, target, source, stages=stages)
        try:
            check_launch_bytes(kernel.name, target, asked=kernel.shared_bytes, needed=lowered.shared_bytes)
        except BackendFailed:
            if stages <= 1:
                raise
            stages -= 1
            continue
        return lowered


def _lower(kernel: KeptKernel, target: TritonTarget, source: Path, *, stages: int) -> Lowered:
    """Return what Triton makes of the text at `source`, with `stages` in its loops. Raises BackendFailed."""
    import triton
    from triton import knobs

    knobs.compilation.disable_line_info = True  # as for kernels from source: equal text, equal bytes
    options = {**kernel.options.recorded, "num_stages": stages}
    try:
        made = triton.compile(str(source), target=gpu_target(target), options=options)
    except (Exception, SystemExit) as error:
        raise _failed(kernel, target, error) from error
    _check_after(kernel, target, made.metadata)
    return Lowered(bytes(made.asm["cubin"]), made.asm["ptx"], int(made.metadata.shared))


def assemble_ptx(ptx: str, kernel: KeptKernel, target: TritonTarget) -> bytes:
    """Return the cubin of `ptx` from Triton's own assembler, with the kernel's options. Raises BackendFailed."""
    from triton.backends.compiler import Language
    from triton.compiler.compiler import make_backend

    stages: dict[str, Any] = {}
    try:
        backend = make_backend(gpu_target(target))
        backend.add_stages(stages, backend.parse_options(kernel.options.recorded), Language.TRITON)
        return bytes(stages["cubin"](ptx, {}))
    except (Exception, SystemExit) as error:
        raise _failed(kernel, target, error) from error


def _check_before(kernel: KeptKernel, target: TritonTarget) -> None:
    """Raises BackendFailed for what the wrapper does to launch it that hangs on the card it was built on."""
    if kernel.descriptors:
        hint = "build for this card on a worker that has it, with the option triton.use_tensor_descriptor off"
        raise _refuse(kernel, target, "its wrapper makes tensor descriptors for the card it was built on", hint)
    if kernel.options.launch_cooperative_grid:
        hint = "build for this card on a worker that has it"
        raise _refuse(kernel, target, "all blocks of its grid wait for each other, sized for the other card", hint)
    if kernel.options.launch_pdl and int(target.arch) < _OLDEST_DEPENDENT_LAUNCH:
        hint = "build for this card on a worker that has it"
        raise _refuse(kernel, target, "its launch overlaps with the one before, which cards have from sm_90 on", hint)
    check_launch_bytes(kernel.name, target, asked=kernel.shared_bytes)


def _check_after(kernel: KeptKernel, target: TritonTarget, metadata: Any) -> None:
    """Raises BackendFailed where Triton wants another launch than the wrapper does."""
    wanted = {"warps": kernel.warps, "blocks a cluster": kernel.options.num_ctas or 1}
    found = {"warps": int(metadata.num_warps), "blocks a cluster": int(metadata.num_ctas)}
    for what, asked in (
        ("bytes of scratch", (kernel.scratch_bytes, metadata.global_scratch_size)),
        ("bytes of the profiler's scratch", (kernel.profile_scratch_bytes, metadata.profile_scratch_size)),
    ):
        wanted[what], found[what] = asked[0], asked[1] or asked[0]  # one that takes none ignores the argument
    differing = [f"{found[what]} {what} and not {wanted[what]}" for what in wanted if found[what] != wanted[what]]
    if differing or metadata.name != kernel.name:
        finding = f"its wrapper does not launch it so: {', '.join(differing) or metadata.name}"
        raise _refuse(kernel, target, finding, "build for this card on a worker that has it")


def _refuse(kernel: KeptKernel, target: TritonTarget, finding: str, hint: str) -> BackendFailed:
    details = {"backend": "triton", "region": "", "log": "", "kernel": kernel.name}
    return BackendFailed(
        f"{kernel.name} cannot be launched on {target.capability}: {finding}", hint=hint, details=details
    )


def _failed(kernel: KeptKernel, target: TritonTarget, error: BaseException) -> AotError:
    text = str(error).strip()
    first, *more = text.splitlines() or [""]
    details = {"backend": "triton", "region": "", "kernel": kernel.name}
    # Where it is one line, what was wrong stands on stderr, whose end the parent adds.
    details |= {"log": text[:LOG_CHARACTERS]} if more else {}
    return BackendFailed(
        f"{kernel.name} does not compile for {target.capability}: {type(error).__name__}: {first[:300]}",
        hint="the log says what that card lacks: build for it on a worker that has it, where other code may be chosen",
        details=details,
    )
