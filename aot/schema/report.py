"""Reports: what a build did and what its proof measured. Part of the manifest, and kept beside a failed build."""

from enum import StrEnum

from aot.schema.artifact import Kernel
from aot.schema.capability import Capability
from aot.schema.codec import Document


class Phase(StrEnum):
    """Where a running build stands; progress events carry one."""

    FETCHING = "fetching"
    LOADING = "loading"
    EXPORTING = "exporting"
    COMPILING = "compiling"
    TUNING = "tuning"
    QUALIFYING = "qualifying"
    UPLOADING = "uploading"
    PUBLISHING = "publishing"


class RegionReport(Document, kw_only=True):
    """One compiled region: seconds, sizes in bytes, floating-point operations of one call on the example.

    `graph_breaks` is 0 on the route `package` by construction, not by counting: export takes the whole region as one
    graph or fails.
    """

    region: str
    instances: int
    coverage: str
    export_seconds: float
    compile_seconds: float
    library_bytes: int
    strict_export: bool = False
    flops: int | None = None
    graph_nodes: int = 0
    graph_breaks: int = 0
    kernels: tuple[Kernel, ...] = ()


class CompileReport(Document, kw_only=True):
    """What the compile child did."""

    regions: tuple[RegionReport, ...] = ()
    toolchain: dict[
        str, str
    ] = {}  # torch, triton, compiler, march, simdlen; highest floors and NEEDED of all artifacts
    phases: dict[str, float] = {}  # seconds by phase
    options: dict[str, str] = {}  # every inductor option that was set
    warnings: tuple[str, ...] = ()
    refused_routes: dict[str, str] = {}  # allowed routes that could not take the program, each with the reason


class StartProof(Document, kw_only=True):
    """One fresh process on the pod's code path, watched from outside."""

    seconds: float  # process start to first output
    eager_seconds: float  # the same program without the artifact
    processes: tuple[str, ...]  # executables that the process started: must be empty
    counted_by: str  # "ptrace" or "polling"
    compiler_modules: tuple[str, ...]  # torch._dynamo / torch._inductor beyond what eager imports: must be empty
    peak_memory_bytes: int


class Agreement(Document, kw_only=True):
    """How close the compiled output is to eager and to a float64 reference, at one point with one set of weights."""

    artifact: int
    point: dict[str, int]
    weights: str  # "given", "factory", "seeded", "perturbed"
    variant: str = ""  # "", "non-contiguous", "second call", "replay"
    max_error: float = 0.0  # compiled against the reference, largest absolute difference
    eager_error: float = 0.0  # eager against the same reference
    reference: str = "float64"  # "float32" where the module cannot run in that, "eager" where in neither
    agrees: bool = True
    note: str = ""


class Emulation(Document, kw_only=True):
    """The start proof and the numerics once more, on an emulated CPU of exactly the profile's level.

    Seconds and memory are the emulator's: speed is measured on the host itself, and never judged from here.
    """

    emulator: str  # "qemu-x86_64 7.2.22"
    model: str  # of the emulated CPU: "Haswell-noTSX (emulated)"
    cpu: Capability
    start: StartProof
    agreements: tuple[Agreement, ...] = ()
    recompiles: int = 0
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()


class Qualification(Document, kw_only=True):
    """The proof that a bundle carries."""

    start: StartProof | None = None
    agreements: tuple[Agreement, ...] = ()
    recompiles: int = 0
    seconds: float = 0.0
    numerics: str = "checked"  # or "unchecked: draws random numbers"
    profile: str = ""  # name of the profile it ran on
    torch: str = ""
    left_out: tuple[str, ...] = ()  # boundary points that were not tried, or not in full, for lack of time
    host_cpu: Capability | None = None  # what the CPU that it ran on is; None: not observed, or the profile is a card's
    emulation: Emulation | None = None  # on a CPU of the profile's own level, where the host has a higher one
    not_run: str = ""  # why nothing has run on a CPU of the profile's own level, and what stands for it


class Provenance(Document, kw_only=True):
    """Who built what from which commit with which toolchain."""

    builder: str = ""  # name of the worker or user
    commit: str = ""
    dirty: bool = False
    commit_told_by: str = ""  # "git"; "ci": a CI system's variable, and nobody has looked for changes
    aot_version: str = ""
    built_at: str = ""  # RFC 3339, UTC
