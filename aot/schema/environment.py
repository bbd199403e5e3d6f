"""Environments: facts observed about one host, each with its scope.

*node* facts hold for every container on the host; *container* facts only for the one that looked. `None` means not
observed, which makes a verdict undecided; an empty tuple means observed, and there are none.
"""

from aot.schema.capability import Capability
from aot.schema.codec import Document, always


class Gpu(Document, kw_only=True):
    capability: Capability
    sku: str
    memory_bytes: int
    sm_count: int | None = None
    mig: str | None = None


class NodeFacts(Document, kw_only=True):
    machine: str | None = None  # "x86_64"
    cpu: Capability | None = None
    cpu_model: str | None = None
    cpu_features: tuple[str, ...] | None = None
    memory_bytes: int | None = None
    kernel: str | None = None
    driver: str | None = None  # of the NVIDIA kernel module
    gpus: tuple[Gpu, ...] | None = None


class ContainerFacts(Document, kw_only=True):
    torch: str | None = None  # with its local part: "2.13.0+cpu"
    triton: str | None = None
    cuda: str | None = None
    python: str | None = None
    libc: str | None = None  # "2.36"
    libstdcxx: str | None = None  # highest GLIBCXX_ version that the loaded library defines: "3.4.30"
    threads: int | None = None  # that torch would use
    cores: int | None = None  # that this process may use


class Environment(Document, kw_only=True):
    format: int = always(1)
    node: NodeFacts = NodeFacts()
    container: ContainerFacts = ContainerFacts()
