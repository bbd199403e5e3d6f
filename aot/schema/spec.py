"""Specs: source + profile + recipe, the whole question that a build answers."""

from enum import StrEnum

from aot.schema.codec import Document
from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace
from aot.schema.recipe import Recipe

DEFAULT_MEMORY_BYTES, DEFAULT_DISK_BYTES = 16 << 30, 20 << 30


class Blob(Document, kw_only=True):
    """Bytes known by digest."""

    digest: Digest
    size_bytes: int


class File(Document, kw_only=True):
    """A blob under a name: `path` is relative, with forward slashes, and says the blob's role by its directory."""

    path: str
    digest: Digest
    size_bytes: int


class FactorySource(Document, kw_only=True, tag="factory"):
    """A packed source tree and the `module:function` in it that returns the module and its example inputs.

    Packed is a plain ustar archive of regular files, as `tar --format=ustar -b 1` writes one.
    """

    tree: Blob
    entry: str
    requirements: tuple[str, ...] = ()  # exact pins: "transformers==5.24.0"


class ProgramSource(Document, kw_only=True, tag="program"):
    """An exported program stripped to graph, lifted constants and tensor metadata."""

    program: Blob
    requirements: tuple[str, ...] = ()


class KernelSignature(Document, kw_only=True):
    """One specialisation of a Triton kernel, under the name that its region gets.

    Every argument is in `types` ("*fp32", "i32") or in `constants`. `divisible` names pointers aligned to 16 bytes and
    integers that are multiples of 16: the attribute that makes loads wide.
    """

    name: Name
    types: dict[str, str]
    constants: dict[str, bool | int | float | str | None] = {}
    divisible: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    options: dict[str, bool | int | float | str | None] = {}  # of Triton's backend, like maxnreg or waves_per_eu


class KernelSource(Document, kw_only=True, tag="kernel"):
    """A packed source tree, the `module:function` of a `@triton.jit` kernel in it, and what to compile it for."""

    tree: Blob
    entry: str
    signatures: tuple[KernelSignature, ...]
    requirements: tuple[str, ...] = ()


class Distribution(Document, kw_only=True):
    """One installed distribution, or the standard library as `python`, and which of its modules are compiled.

    `record` is over the paths and hashes of all its modules, as its RECORD lists them.
    """

    name: str
    version: str
    record: Digest
    files: tuple[str, ...]

    @property
    def guard(self) -> str:
        return f"{self.name}=={self.version} {self.record}"


class BytecodeSource(Document, kw_only=True, tag="bytecode"):
    """What is installed where the bundle is made: nothing is sent, and whoever has the same can make it again."""

    interpreter: str  # cache tag and magic number, and " opt-1" where -O: "cpython-311 a70d0d0a"
    distributions: tuple[Distribution, ...]

    @property
    def requirements(self) -> tuple[str, ...]:
        return tuple(f"{one.name}=={one.version}" for one in self.distributions if one.name != "python")


class CommandSource(Document, kw_only=True, tag="command"):
    """A command whose compiler caches are captured, and the packed tree that it runs in, for whoever runs it again.

    `tree` is None of a bundle that never leaves its maker: nobody could prove it. `entries` is over the paths and
    digests of what was captured: one command leaves other entries when it meets other shapes. `union_of`: the bundle
    that the command ran on, whose entries stay beside the new ones.
    """

    command: tuple[str, ...]
    tree: Blob | None = None
    entries: Digest | None = None
    requirements: tuple[str, ...] = ()
    union_of: Digest | None = None


Source = FactorySource | ProgramSource | KernelSource | BytecodeSource | CommandSource


class Limits(Document, kw_only=True):
    """What one child process may use. No factor of the key: limits do not change what comes out.

    None: nobody has set one. Whoever submits may then ask for more than the default, for weights of many gigabytes; a
    limit that somebody has set stays, be it that of the default too.
    """

    wall_seconds: float = 3600.0
    memory_bytes: int | None = None
    processes: int = 256
    disk_bytes: int | None = None

    @property
    def most_memory_bytes(self) -> int:
        return DEFAULT_MEMORY_BYTES if self.memory_bytes is None else self.memory_bytes

    @property
    def most_disk_bytes(self) -> int:
        return DEFAULT_DISK_BYTES if self.disk_bytes is None else self.disk_bytes


class CommitTeller(StrEnum):
    GIT = "git"
    CI = "ci"  # a variable of the CI system: nobody has looked for changes


class Commit(Document, kw_only=True):
    """Where a source comes from, as its submitter says. `dirty`: it was changed since that commit."""

    revision: str
    dirty: bool = False
    told_by: CommitTeller = CommitTeller.GIT


class Spec(Document, kw_only=True):
    """The whole question. `weights` is a factor of the key only when the recipe freezes them into the code.

    `limits` and `commit` are no factors: the same source from another commit is the same build.
    """

    namespace: Namespace
    name: Name
    source: Source
    profile: Name
    recipe: Recipe = Recipe()
    weights: tuple[File, ...] = ()
    limits: Limits = Limits()
    commit: Commit | None = None

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Everything a worker must have before it starts."""
        weights = tuple(Blob(digest=file.digest, size_bytes=file.size_bytes) for file in self.weights)
        match self.source:
            case BytecodeSource() | CommandSource(tree=None):
                return weights
            case ProgramSource(program=packed) | FactorySource(tree=packed) | KernelSource(tree=packed):
                return (packed, *weights)
            case CommandSource(tree=Blob() as packed):
                return (packed, *weights)
