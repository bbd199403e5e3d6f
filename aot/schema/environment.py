"""Environments: facts observed about one host, each with its scope.

*node* facts hold for every container on the host; *container* facts only for the one that looked; *process* facts only
for the process that runs the model, and only after it has set itself up. `None` means not observed, which makes a
verdict undecided; an empty tuple means observed, and there are none.
"""

from aot.schema.capability import Capability
from aot.schema.codec import Document, always


class Gpu(Document, kw_only=True):
    """One card, or one MIG slice of it: then `sm_count` and `memory_bytes` are the slice's."""

    capability: Capability
    sku: str  # the driver's name of the product: "NVIDIA H100 80GB HBM3"
    memory_bytes: int
    sm_count: int | None = None  # multiprocessors, or AMD compute units
    mig: str | None = None  # "3g.40gb"


class Clocks(Document, kw_only=True):
    """Megahertz of a card's multiprocessors and memory, as its driver told them at one moment; None where it did not.

    `most_...` is the highest that the card can run at, `application_...` what its driver was told to run programs at.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    most_sm_mhz: int | None = None
    most_memory_mhz: int | None = None
    application_sm_mhz: int | None = None
    application_memory_mhz: int | None = None


class NodeFacts(Document, kw_only=True):
    machine: str | None = None  # "x86_64"
    cpu: Capability | None = None
    cpu_model: str | None = None
    cpu_features: tuple[str, ...] | None = None
    sve_bits: int | None = None  # vector length that SVE code gets here; of Arm CPUs that have SVE
    memory_bytes: int | None = None
    kernel: str | None = None
    driver: str | None = None  # of the NVIDIA kernel module: "550.54.15"
    amd_driver: str | None = None  # of the amdgpu kernel module, where it is not the kernel's own: "6.12.12"
    gpus: tuple[Gpu, ...] | None = None


class ContainerFacts(Document, kw_only=True):
    torch: str | None = None  # with its local part: "2.13.0+cpu"
    triton: str | None = None
    cuda: str | None = None  # the CUDA runtime that torch was built for: "12.8"
    hip: str | None = None  # the ROCm runtime that torch was built for: "6.4.43482"
    cxx11_abi: bool | None = None  # torch's std::string is the one of GCC 5 and newer
    python: str | None = None
    libc: str | None = None  # of glibc: "2.36"; or "musl"
    libstdcxx: str | None = None  # highest GLIBCXX_ version that the loaded library defines: "3.4.30"
    threads: int | None = None  # that torch would use
    cores: int | None = None  # that this process may use
    bytecode: str | None = None  # that the interpreter reads: "cpython-311 a70d0d0a"
    distributions: tuple[str, ...] | None = None  # those that somebody asked for: "torch==2.13.0+cpu sha256:..."


class ProcessFacts(Document, kw_only=True):
    """What a program sets for itself, and what changes the code that is right for it. Only `load` can observe these."""

    deterministic: bool | None = None  # torch.use_deterministic_algorithms
    matmul_precision: str | None = None  # of float32: "highest", "high" or "medium"
    conv_precision: str | None = None  # of float32 convolutions on a card: "tf32" or "ieee"
    default_dtype: str | None = None  # "float32"
    autocast: str | None = None  # "off", or "cuda:bfloat16"
    grad: bool | None = None  # gradients are recorded
    world_size: int | None = None  # 1 without torch.distributed
    rank: int | None = None


class Environment(Document, kw_only=True):
    format: int = always(1)
    node: NodeFacts = NodeFacts()
    container: ContainerFacts = ContainerFacts()
    process: ProcessFacts = ProcessFacts()


def host_cpu(node: NodeFacts) -> Capability | None:
    """Return the most that code for this node's CPU may use: its level with its features; None where not observed.

    Where features were not observed it is the level alone: whether the CPU has more is then not known.
    """
    if node.cpu is None or node.cpu.features:
        return node.cpu
    width = () if node.sve_bits is None else (f"sve_vl{node.sve_bits}",)
    return Capability.of_cpu(node.cpu.level, (*(node.cpu_features or ()), *width))
