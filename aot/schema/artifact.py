"""Artifacts: the compiled output of one region by one route, with guards, calling convention and facts."""

from enum import StrEnum

from aot.schema.capability import Capability
from aot.schema.codec import Document
from aot.schema.guard import HostGuard, InputGuard, ProgramGuard
from aot.schema.recipe import Dimension, Route
from aot.schema.spec import File


class TensorMeta(Document, kw_only=True):
    """One flat tensor input or output. A size is an integer or the name of a dimension or symbol."""

    path: str  # as a person reads it: "args[0]", "kwargs['mask']"
    dtype: str
    shape: tuple[int | str, ...]
    stride: tuple[int | str, ...] = ()
    device: str = "cpu"


class LeafKind(StrEnum):
    TENSOR = "tensor"
    CONSTANT = "constant"  # must equal what was exported: compiled code ignores it
    NONE = "none"
    INTEGER = "integer"  # outputs only: a 0-dim int64 tensor that eager returns as an int


class Leaf(Document, kw_only=True):
    """One leaf of the call's pytree."""

    kind: LeafKind
    path: str = ""
    constant: bool | int | float | str | None = None
    constant_type: str = ""  # "int", "bool", "float", "str": True == 1 in Python, but not for a guard


class CallSpec(Document, kw_only=True):
    """How a call of the module becomes flat tensors and back. Tree specs as torch.utils._pytree.treespec_dumps."""

    in_spec: str
    out_spec: str
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    parameters: tuple[str, ...] = ()  # names of forward's parameters in order, to accept keywords in any order


class ConstantKind(StrEnum):
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"  # lifted by export; its value travels as a blob of the bundle


class ConstantMeta(Document, kw_only=True):
    """One tensor that the artifact asks for. `name` is the module's dotted name, or the lifted constant's."""

    name: str
    kind: ConstantKind
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str = "cpu"
    mutated: bool = False
    aliases: tuple[str, ...] = ()  # other names of the same tensor, which must still be tied in the live module


class ElfFacts(Document, kw_only=True):
    """Read from the bytes of a shared object."""

    machine: str  # "x86_64", "aarch64"
    soname: str | None = None
    needed: tuple[str, ...]
    libc_floor: str | None = None  # highest GLIBC_ version asked for: "2.34"
    libstdcxx_floor: str | None = None  # highest GLIBCXX_ version asked for: "3.4.30"
    static_libstdcxx: bool = False


class CodeFacts(Document, kw_only=True):
    """What the machine code of a shared object uses, read from its bytes: aot.facts says how.

    `level` is the least one that has every instruction, with `+feature` for each that no level has. `unread_bytes`:
    executable bytes that are in no known function, or follow something that is no instruction.
    """

    level: str  # "x86-64-v3", "x86-64-v4+avx512_vnni", "armv8-a+sve"
    features: tuple[str, ...] = ()  # as /proc/cpuinfo spells them
    vector_bits: int = 0
    unread_bytes: int = 0
    cxx11_abi: bool | None = None  # None: no symbol tells
    torch_symbols: tuple[str, ...] = ()  # of torch's C interface, that a host's torch must have
    shim_floor: str | None = None  # the first torch release with all of those that torch itself dates: "2.12"


class KernelFacts(Document, kw_only=True):
    """One kernel in a file of an artifact, read from its bytes. A number is None where the bytes do not say it.

    `shared_bytes` is what the kernel reserves itself; what a launch asks for beyond is not in the code. `spill_bytes`
    is a thread's stack in local memory: registers that were spilled, and arrays that are indexed at run time.
    """

    name: str  # mangled
    path: str  # of the file in the artifact
    capability: Capability
    size_bytes: int  # of its instructions
    registers: int | None = None  # vector registers on AMD
    scalar_registers: int | None = None  # AMD
    shared_bytes: int | None = None
    spill_bytes: int | None = None


class Kernel(Document, kw_only=True):
    """One generated kernel: its configuration and what tuning measured, where tuning happened."""

    name: str
    choice: str = ""
    candidates: int = 0
    best_us: float | None = None
    next_us: float | None = None
    reused: bool = False  # measured by an earlier build of the profile


class Winner(StrEnum):
    COMPILED = "compiled"
    EAGER = "eager"
    GRAPHS = "graphs"  # compiled, and replayed as one CUDA graph


class Throughput(Document, kw_only=True):
    """Calls finished in a second while `threads` threads call at once, each again as soon as it can."""

    threads: int
    calls_per_second: float


class Latency(Document, kw_only=True):
    """Microseconds a call, over `calls` interleaved calls; `throughput` where calls are quick enough to tell."""

    calls: int
    p25_us: float
    p50_us: float
    p75_us: float
    p90_us: float
    p99_us: float
    peak_memory_bytes: int = 0
    throughput: tuple[Throughput, ...] = ()


class Speed(Document, kw_only=True):
    """Compiled against eager at one point of a coverage. `graphs` is compiled code replayed as a CUDA graph."""

    point: dict[str, int]
    eager: Latency
    compiled: Latency
    winner: Winner
    graphs: Latency | None = None

    @property
    def ratio(self) -> float:
        """Compiled median over eager median, by a graph where that is what runs; below 1 is faster."""
        ours = self.graphs if self.graphs is not None and self.winner is Winner.GRAPHS else self.compiled
        return ours.p50_us / self.eager.p50_us


class CoverageKind(StrEnum):
    EXACT = "exact"
    RANGE = "range"
    BUCKET = "bucket"


class Coverage(Document, kw_only=True):
    """What one artifact answers for. `example` names the example set that it was exported from."""

    kind: CoverageKind
    dimensions: tuple[Dimension, ...] = ()
    example: int = 0
    constraints: tuple[str, ...] = ()  # between dimensions, as people read them


class LaunchArgument(Document, kw_only=True):
    name: str
    type: str  # as Triton spells it: "*fp32", "i32"


class Launch(Document, kw_only=True):
    """How a driver launches the one kernel of an artifact of the route `kernel`.

    The kernel's parameters are `arguments` in their order, then two pointers: global scratch memory of
    `scratch_bytes` a block, and the profiler's (null). `threads` are those of one block.
    """

    entry: str  # the symbol in the code object
    arguments: tuple[LaunchArgument, ...]
    threads: int
    shared_bytes: int
    scratch_bytes: int = 0
    blocks_a_cluster: int = 1


class Artifact(Document, kw_only=True):
    """Compiled output of one region by one route.

    `files` hold what a loader maps: for the package route `lib/…so`, `cubin/…`, and `constants/…` for lifted
    constants. `instances` are the dotted module names that the region stands for: `("",)` for a whole program.
    `kept` is what a build for another card starts from (aot.compile.kernels.kept): no pod fetches it.
    """

    region: str
    instances: tuple[str, ...]
    route: Route
    capability: Capability
    coverage: Coverage
    files: tuple[File, ...]
    host_guards: tuple[HostGuard, ...]
    input_guards: tuple[InputGuard, ...] = ()
    program_guards: tuple[ProgramGuard, ...] = ()
    call: CallSpec | None = None
    inputs: tuple[TensorMeta, ...] = ()
    outputs: tuple[TensorMeta, ...] = ()
    constants: tuple[ConstantMeta, ...] = ()

    elf: ElfFacts | None = None
    code: CodeFacts | None = None
    binaries: tuple[KernelFacts, ...] = ()  # every kernel of `files`, by path and name; none: not read
    kernels: tuple[Kernel, ...] = ()
    speeds: tuple[Speed, ...] = ()
    winner: Winner = Winner.COMPILED
    tuned: bool | None = None  # False: nothing was measured; True needs measured `kernels`; None: as the recipe says
    launch: Launch | None = None
    facts: dict[str, str] = {}  # of the route: "march", "simdlen", "threads", ...; of measurements: aot.schema.measured
    kept: File | None = None

    @property
    def all_files(self) -> tuple[File, ...]:
        """What belongs to it: what a loader maps, then what is kept."""
        return self.files if self.kept is None else (*self.files, self.kept)
