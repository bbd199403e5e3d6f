"""Values for tests: complete, consistent and small. Each builder takes the deviation that the test is about.

    a_manifest(spec=a_spec(name="gpt"))                              # key and factors follow the spec
    a_manifest(artifacts=(an_artifact(capability="cuda:sm_80"),))
    a_manifest(qualification=a_qualification(recompiles=1))          # a proof that failed

`BYTES` holds the content of every blob that a builder names, by digest, so that a test can upload it.
"""

from typing import Any

import msgspec

from aot.keys import factors_of, fingerprint_of, key_of
from aot.schema.artifact import (
    Artifact,
    CallSpec,
    ConstantKind,
    ConstantMeta,
    Coverage,
    CoverageKind,
    ElfFacts,
    Latency,
    Leaf,
    LeafKind,
    Speed,
    TensorMeta,
    Winner,
)
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.environment import ContainerFacts, Environment, Gpu, NodeFacts
from aot.schema.factor import Factor, Fingerprint
from aot.schema.guard import HostGuard, InputGuard
from aot.schema.manifest import Canary, Manifest, encode_manifest
from aot.schema.names import Name, Namespace
from aot.schema.profile import Device, Profile, Toolchain
from aot.schema.recipe import Dimension, Recipe, Route
from aot.schema.report import Agreement, CompileReport, Provenance, Qualification, RegionReport, StartProof
from aot.schema.spec import Blob, FactorySource, File, ProgramSource, Source, Spec
from tests.elf_files import an_elf_file

BYTES: dict[Digest, bytes] = {}

# The tree specs that torch.utils._pytree.treespec_dumps writes for f(x) and for one tensor.
ONE_ARGUMENT = (
    '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", '
    '"context": "null", "children_spec": [{"type": null, "context": null, "children_spec": []}]}, '
    '{"type": "builtins.dict", "context": "[]", "children_spec": []}]}]'
)
ONE_TENSOR = '[1, {"type": null, "context": null, "children_spec": []}]'


def a_blob(content: bytes = b"source tree") -> Blob:
    """A blob whose bytes are in `BYTES`."""
    digest = Digest.of(content)
    BYTES[digest] = content
    return Blob(digest=digest, size_bytes=len(content))


def a_file(path: str = "lib/model.so", content: bytes = b"\x7fELF library") -> File:
    """A file whose bytes are in `BYTES`."""
    blob = a_blob(content)
    return File(path=path, digest=blob.digest, size_bytes=blob.size_bytes)


def a_toolchain(**deviations: Any) -> Toolchain:
    fields = {"torch": "2.13.0+cpu", "python": "3.11.7", "compiler": "g++ 12.2.0", "libc": "glibc 2.36"}
    return Toolchain(**(fields | deviations))


def a_device(**deviations: Any) -> Device:
    fields = {"sku": "NVIDIA H100 80GB HBM3", "sm_count": 132, "memory_bytes": 80 << 30}
    return Device(**(fields | deviations))


def a_profile(name: str = "cpu-v3", *, capability: str = "cpu:x86-64-v3", **deviations: Any) -> Profile:
    fields: dict[str, Any] = {"toolchain": a_toolchain()}
    return Profile(name=Name(name), capability=Capability(capability), **(fields | deviations))


def a_gpu_profile(name: str = "h100", *, capability: str = "cuda:sm_90", **deviations: Any) -> Profile:
    toolchain = a_toolchain(torch="2.13.0+cu130", cuda="13.0", triton="3.7.0")
    return a_profile(name, capability=capability, **({"toolchain": toolchain, "device": a_device()} | deviations))


def a_source(content: bytes = b"source tree", **deviations: Any) -> FactorySource:
    return FactorySource(**({"tree": a_blob(content), "entry": "model:make"} | deviations))


def a_program(content: bytes = b"stripped program", **deviations: Any) -> ProgramSource:
    return ProgramSource(**({"program": a_blob(content)} | deviations))


def a_spec(
    name: str = "mini",
    *,
    namespace: str = "default",
    profile: str = "cpu-v3",
    source: Source | None = None,
    **deviations: Any,
) -> Spec:
    return Spec(
        namespace=Namespace(namespace),
        name=Name(name),
        source=source or a_source(),
        profile=Name(profile),
        **deviations,
    )


def a_frozen_spec(name: str = "mini", **deviations: Any) -> Spec:
    weights = (a_file("model.safetensors", b"weights"),)
    return a_spec(name, **({"recipe": Recipe(freeze=True), "weights": weights} | deviations))


def a_fingerprint(**parts: str) -> Fingerprint:
    """A fingerprint made of the given parts."""
    named = {"tree": "Linear", "parameters": "weight float32 (4, 4)"} | parts
    return fingerprint_of(Factor.of(part, value) for part, value in named.items())


def a_call(**deviations: Any) -> CallSpec:
    """The call `forward(x)` that returns one tensor."""
    fields: dict[str, Any] = {
        "in_spec": ONE_ARGUMENT,
        "out_spec": ONE_TENSOR,
        "inputs": (Leaf(kind=LeafKind.TENSOR, path="args[0]"),),
        "outputs": (Leaf(kind=LeafKind.TENSOR, path="output"),),
        "parameters": ("x",),
    }
    return CallSpec(**(fields | deviations))


def a_coverage(**deviations: Any) -> Coverage:
    fields: dict[str, Any] = {
        "kind": CoverageKind.RANGE,
        "dimensions": (Dimension(name="batch", low=1, high=32),),
    }
    return Coverage(**(fields | deviations))


def an_exact_coverage() -> Coverage:
    return Coverage(kind=CoverageKind.EXACT)


def a_latency(p50_us: float = 100.0, *, calls: int = 50) -> Latency:
    return Latency(
        calls=calls,
        p25_us=0.98 * p50_us,
        p50_us=p50_us,
        p75_us=1.02 * p50_us,
        p90_us=1.1 * p50_us,
        p99_us=1.3 * p50_us,
    )


def a_speed(*, eager_us: float = 200.0, compiled_us: float = 100.0, point: dict[str, int] | None = None) -> Speed:
    winner = Winner.COMPILED if compiled_us <= 1.03 * eager_us else Winner.EAGER
    return Speed(
        point={"batch": 1} if point is None else point,
        eager=a_latency(eager_us),
        compiled=a_latency(compiled_us),
        winner=winner,
    )


def an_elf(**deviations: Any) -> ElfFacts:
    fields: dict[str, Any] = {
        "machine": "x86_64",
        "needed": ("libtorch.so", "libstdc++.so.6", "libc.so.6"),
        "libc_floor": "2.34",
        "libstdcxx_floor": "3.4.30",
    }
    return ElfFacts(**(fields | deviations))


def host_guards(capability: str = "cpu:x86-64-v3", *, torch: str = "2.13.0+cpu") -> tuple[HostGuard, ...]:
    return (
        HostGuard(kind="capability", value=capability),
        HostGuard(kind="torch", value=torch),
        HostGuard(kind="libc", value="2.34"),
        HostGuard(kind="libstdcxx", value="3.4.30"),
        HostGuard(kind="machine", value="x86_64"),
    )


def an_artifact(*, capability: str = "cpu:x86-64-v3", torch: str = "2.13.0+cpu", **deviations: Any) -> Artifact:
    """A whole-program artifact: f(x) = x @ weight for x of shape [batch, 4]."""
    fields: dict[str, Any] = {
        "region": "",
        "instances": ("",),
        "route": Route.PACKAGE,
        "coverage": a_coverage(),
        "files": (a_file(),),
        "host_guards": host_guards(capability, torch=torch),
        "input_guards": (
            InputGuard(kind="dtype", input=0, value="float32"),
            InputGuard(kind="rank", input=0, low=2),
            InputGuard(kind="range", input=0, dim=0, low=1, high=32),
            InputGuard(kind="size", input=0, dim=1, low=4),
            InputGuard(kind="no-grad"),
        ),
        "call": a_call(),
        "inputs": (TensorMeta(path="args[0]", dtype="float32", shape=("batch", 4), stride=(4, 1)),),
        "outputs": (TensorMeta(path="output", dtype="float32", shape=("batch", 4), stride=(4, 1)),),
        "constants": (
            ConstantMeta(name="weight", kind=ConstantKind.PARAMETER, dtype="float32", shape=(4, 4), stride=(4, 1)),
        ),
        "elf": an_elf(),
        "speeds": (a_speed(),),
        "facts": {"march": "x86-64-v3", "simdlen": "256", "threads": "dynamic"},
    }
    return Artifact(capability=Capability(capability), **(fields | deviations))


def a_readable_artifact(**deviations: Any) -> Artifact:
    """An artifact whose facts and guards are those of its library, which is an ELF file, as of a factory's build."""
    library = an_elf_file(
        needed=an_elf().needed, asked={"libc.so.6": ("GLIBC_2.34",), "libstdc++.so.6": ("GLIBCXX_3.4.30",)}
    )
    fields = {
        "files": (a_file(content=library),),
        "host_guards": (*host_guards(), HostGuard(kind="python", value="3.11")),
    }
    return an_artifact(**(fields | deviations))


def a_start_proof(**deviations: Any) -> StartProof:
    fields: dict[str, Any] = {
        "seconds": 1.9,
        "eager_seconds": 2.0,
        "processes": (),
        "counted_by": "ptrace",
        "compiler_modules": (),
        "peak_memory_bytes": 400 << 20,
    }
    return StartProof(**(fields | deviations))


def an_agreement(**deviations: Any) -> Agreement:
    fields: dict[str, Any] = {
        "artifact": 0,
        "point": {"batch": 1},
        "weights": "perturbed",
        "max_error": 1e-6,
        "eager_error": 1e-6,
    }
    return Agreement(**(fields | deviations))


def a_qualification(**deviations: Any) -> Qualification:
    """A proof that passes."""
    fields: dict[str, Any] = {
        "start": a_start_proof(),
        "agreements": (an_agreement(), an_agreement(variant="second call"), an_agreement(point={"batch": 32})),
        "seconds": 8.0,
        "profile": "cpu-v3",
        "torch": "2.13.0+cpu",
    }
    return Qualification(**(fields | deviations))


def a_report(**deviations: Any) -> CompileReport:
    region = RegionReport(
        region="",
        instances=1,
        coverage="batch 1..32",
        export_seconds=0.5,
        compile_seconds=7.0,
        library_bytes=12,
    )
    return CompileReport(**({"regions": (region,), "phases": {"exporting": 0.5, "compiling": 7.0}} | deviations))


def a_manifest(spec: Spec | None = None, *, profile: Profile | None = None, **deviations: Any) -> Manifest:
    """A bundle with one artifact and a proof that passes. Factors and key are those of `spec` on `profile`."""
    profile = profile or a_profile()
    spec = spec or a_spec(profile=profile.name)
    factors = factors_of(spec, profile)
    fields: dict[str, Any] = {
        "namespace": spec.namespace,
        "name": spec.name,
        "build_key": key_of(factors),
        "factors": factors,
        "spec": spec,
        "profile": profile,
        "fingerprint": a_fingerprint(),
        "artifacts": (an_artifact(capability=profile.capability, torch=profile.toolchain.torch),),
        "qualification": a_qualification(profile=profile.name, torch=profile.toolchain.torch),
        "compile_report": a_report(),
        "canaries": (Canary(artifact=0, seed=7, point={"batch": 2}),),
        "provenance": Provenance(builder="worker-1", commit="0" * 40, aot_version="0.1.0"),
    }
    return Manifest(**(fields | deviations))


def manifest_text(manifest: Manifest) -> tuple[str, Digest]:
    """The text that travels, and its digest."""
    content, digest = encode_manifest(manifest)
    return content.decode(), digest


def altered(value: Any, **changes: Any) -> Any:
    """The same struct with other fields."""
    return msgspec.structs.replace(value, **changes)


def a_node(**deviations: Any) -> NodeFacts:
    fields: dict[str, Any] = {
        "machine": "x86_64",
        "cpu": Capability("cpu:x86-64-v3"),
        "cpu_model": "Example CPU",
        "cpu_features": ("avx2", "fma"),
        "memory_bytes": 16 << 30,
        "kernel": "6.1.0",
        "gpus": (),
    }
    return NodeFacts(**(fields | deviations))


def a_gpu(**deviations: Any) -> Gpu:
    fields: dict[str, Any] = {
        "capability": Capability("cuda:sm_90"),
        "sku": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 80 << 30,
        "sm_count": 132,
    }
    return Gpu(**(fields | deviations))


def a_container(**deviations: Any) -> ContainerFacts:
    fields: dict[str, Any] = {
        "torch": "2.13.0+cpu",
        "python": "3.11.7",
        "libc": "2.36",
        "libstdcxx": "3.4.30",
        "threads": 2,
        "cores": 2,
    }
    return ContainerFacts(**(fields | deviations))


def an_environment(*, node: NodeFacts | None = None, container: ContainerFacts | None = None) -> Environment:
    """A host that runs `an_artifact()`."""
    return Environment(node=node or a_node(), container=container or a_container())
