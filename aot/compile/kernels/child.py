"""The child's side: one artifact for each signature of a kernel, untuned, for a card that need not be here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from aot.bundle.hashing import blob_of
from aot.compile.host import kernel_guards
from aot.compile.job import ARTIFACTS_DIRECTORY, CompileJob, CompileOutcome
from aot.compile.kernels.code_object import read_code_object
from aot.compile.kernels.signature import check_signatures
from aot.compile.kernels.targets import TritonTarget, target_for
from aot.compile.kernels.triton_compile import CompiledKernel, compile_signature, load_kernel
from aot.errors import BackendFailed, InvalidProfile
from aot.facts import find_absolute_paths
from aot.keys import fingerprint_of
from aot.schema.artifact import Artifact, Coverage, CoverageKind, Kernel, Launch, LaunchArgument
from aot.schema.factor import Factor
from aot.schema.recipe import Route
from aot.schema.report import CompileReport, Phase
from aot.schema.spec import File, KernelSignature


class PhaseLog(Protocol):
    seconds: dict[str, float]

    def phase(self, phase: Phase, step: str = "") -> Any:
        """A context in which the work is in `phase`."""


def make_kernels(job: CompileJob, progress: PhaseLog) -> CompileOutcome:
    """Compile every signature of the job. Raises the families InvalidInput and CompileFailed."""
    with progress.phase(Phase.LOADING):
        check_signatures(job.signatures)
        target = target_for(job.profile.capability)
        _require_toolchain(job)
        kernel = load_kernel(Path(job.tree), job.entry)
        # Triton's own key: the source of the kernel and of all that it calls, with the constants that they use.
        identity = fingerprint_of([Factor.of("entry", job.entry), Factor.of("kernel", kernel.cache_key)])
    artifacts = tuple(_make_all(job, kernel, target, progress))
    return CompileOutcome(
        artifacts=artifacts,
        fingerprint=identity,
        report=CompileReport(
            toolchain={"triton": job.profile.toolchain.triton or ""},
            phases=dict(progress.seconds),
            warnings=("untuned: compiled without the card, and not run",),
        ),
    )


def _require_toolchain(job: CompileJob) -> None:
    import triton

    if triton.__version__ != job.profile.toolchain.triton:
        raise InvalidProfile(
            f"profile {job.profile.name} is for triton {job.profile.toolchain.triton}, this is {triton.__version__}",
            hint="build with the profile of this machine's Triton",
        )


def _make_all(job: CompileJob, kernel: Any, target: TritonTarget, progress: PhaseLog) -> Iterator[Artifact]:
    for index, signature in enumerate(job.signatures):
        step = f"{index + 1} of {len(job.signatures)}: {signature.name} for {target.capability}"
        with progress.phase(Phase.COMPILING, step):
            made = compile_signature(kernel, signature, target)
            into = Path(job.out) / ARTIFACTS_DIRECTORY / str(index)
            artifact = _record(made, signature, target, into)
            _refuse_places(into / artifact.files[0].path, job, signature)
            yield artifact


def _refuse_places(path: Path, job: CompileJob, signature: KernelSignature) -> None:
    """Raise BackendFailed for a code object that names where it was built: elsewhere it would have other bytes."""
    if places := find_absolute_paths(path, (job.tree, job.build)):
        raise BackendFailed(
            f"the code object of signature {signature.name} holds a path of the build: {places[0]}",
            hint="leave __file__ out of what the kernel prints or asserts",
            details={"backend": "triton", "region": signature.name, "log": "\n".join(places)},
        )


def _record(made: CompiledKernel, signature: KernelSignature, target: TritonTarget, into: Path) -> Artifact:
    name = f"{target.suffix}/{signature.name}.{target.suffix}"
    path = into / name
    path.parent.mkdir(parents=True)
    path.write_bytes(made.content)
    blob, found = blob_of(path), read_code_object(path)
    return Artifact(
        region=signature.name,
        instances=(),
        route=Route.KERNEL,
        capability=found.capability,
        coverage=Coverage(kind=CoverageKind.EXACT),
        files=(File(path=name, digest=blob.digest, size_bytes=blob.size_bytes),),
        host_guards=kernel_guards(found.capability, cuda_major=found.cuda_major),
        kernels=(Kernel(name=made.entry, choice=_spell(made.options)),),
        tuned=False,
        launch=Launch(
            entry=made.entry,
            arguments=tuple(LaunchArgument(name=name, type=kind) for name, kind in made.arguments),
            threads=made.num_warps * target.warp_size,
            shared_bytes=made.shared_bytes,
            scratch_bytes=made.scratch_bytes,
            blocks_a_cluster=made.blocks_a_cluster,
        ),
        facts={"constants": _spell(signature.constants), "divisible": ", ".join(signature.divisible)},
    )


def _spell(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={values[name]}" for name in sorted(values))
