"""Specs: source + profile + recipe, the whole question that a build answers."""

from aot.schema.codec import Document
from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace
from aot.schema.recipe import Recipe


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
    """A packed source tree and the `module:function` in it that returns the module and its example inputs."""

    tree: Blob
    entry: str
    requirements: tuple[str, ...] = ()  # exact pins: "transformers==5.24.0"


class ProgramSource(Document, kw_only=True, tag="program"):
    """An exported program stripped to graph, lifted constants and tensor metadata."""

    program: Blob
    requirements: tuple[str, ...] = ()


Source = FactorySource | ProgramSource


class Limits(Document, kw_only=True):
    """What one child process may use. No factor of the key: limits do not change what comes out."""

    wall_seconds: float = 3600.0
    memory_bytes: int = 16 << 30
    processes: int = 256
    disk_bytes: int = 20 << 30


class Spec(Document, kw_only=True):
    """The whole question. `weights` is a factor of the key only when the recipe freezes them into the code."""

    namespace: Namespace
    name: Name
    source: Source
    profile: Name
    recipe: Recipe = Recipe()
    weights: tuple[File, ...] = ()
    limits: Limits = Limits()

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Everything a worker must have before it starts."""
        packed = self.source.tree if isinstance(self.source, FactorySource) else self.source.program
        return (packed, *(Blob(digest=file.digest, size_bytes=file.size_bytes) for file in self.weights))
