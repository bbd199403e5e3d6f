"""Profiles: the named targets that workers are and specs ask for."""

from aot.schema.capability import Capability
from aot.schema.codec import Document
from aot.schema.names import Name


class Toolchain(Document, kw_only=True):
    """What turns a graph into machine code, as versions. `None` where the part is absent."""

    torch: str  # with its local part: "2.13.0+cpu"
    python: str  # "3.11.7"
    compiler: str  # "g++ 12.2.0"
    libc: str  # "glibc 2.36"
    triton: str | None = None
    cuda: str | None = None  # the runtime torch was built for: "13.0"


class Device(Document, kw_only=True):
    """The facts of a card that tuning depends on."""

    sku: str
    sm_count: int
    memory_bytes: int
    mig: str | None = None


class Profile(Document, kw_only=True):
    """A target. `threads` is set only where the profile pins them; otherwise code adapts at run time."""

    name: Name
    capability: Capability
    toolchain: Toolchain
    device: Device | None = None
    threads: int | None = None
    packages: dict[str, str] = {}  # installed distributions that sources may require, by exact version

    @property
    def torch_device(self) -> str:
        """Where programs of this profile live: "cpu" or "cuda", which is torch's word for AMD's cards as well."""
        return "cpu" if self.capability.family == "cpu" else "cuda"

    @property
    def is_for_kernels(self) -> bool:
        """True of a target that kernels are built for without its card: no worker is it, and no model is built for it.

        A worker with a card has that card's facts in its profile, under whatever name.
        """
        if self.device is not None or self.capability.family == "cpu":
            return False
        return self.name == kernel_profile_name(self.capability, self.toolchain.triton or "none")


def kernel_profile_name(capability: Capability, triton: str) -> Name:
    """Return the name of the profile that kernels are built for without its card: what decides their code, no more."""
    words = f"{capability.family}-{capability.target}-triton-{triton}".lower().replace("+", "-")
    return Name.parse(words)
