"""Sources on their way: packed by whoever submits, fetched and opened by whoever builds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.cache import faults
from aot.cache.incoming import Incoming, incoming
from aot.client import RegistryClient
from aot.errors import BlobNotFound, CompileStopped, DigestMismatch, InvalidSource, SizeMismatch
from aot.sandbox import ShouldStop
from aot.schema.digest import Digest
from aot.schema.spec import Blob, BytecodeSource, CommandSource, FactorySource, File, ProgramSource, Source, Spec
from aot.schema.wire.blobs import Link
from aot.source import OpenedSource, blob_of, pack_tree, unpack_tree


@dataclass(frozen=True)
class PackedSource:
    """A source and its weights as blobs, with the place of each on this disk.

    `left_out`: what packing skipped. `weight_bytes`: of the weights that a child will hold, given or not; 0 where that
    is not known before the source is run.
    """

    source: Source
    weights: tuple[File, ...]
    paths: Mapping[Digest, Path]
    left_out: tuple[str, ...] = ()
    weight_bytes: int = 0

    @property
    def blobs(self) -> tuple[Blob, ...]:
        weights = tuple(Blob(digest=file.digest, size_bytes=file.size_bytes) for file in self.weights)
        if isinstance(self.source, BytecodeSource):
            return weights
        if isinstance(self.source, CommandSource):
            return (*((self.source.tree,) if self.source.tree else ()), *weights)
        return (self.source.program if isinstance(self.source, ProgramSource) else self.source.tree, *weights)


def pack_factory(
    root: Path, entry: str, *, into: Path, requirements: Sequence[str] = (), weights: Sequence[Path] = ()
) -> PackedSource:
    """Pack the tree at `root` into `into`. Raises InvalidSource for what cannot be packed, naming the path."""
    if ":" not in entry:
        raise InvalidSource(f"wanted an entry module:function, found {entry!r}", hint="for example minilm:build")
    into.mkdir(parents=True, exist_ok=True)
    packed = pack_tree(root, into)
    source = FactorySource(tree=packed.blob, entry=entry, requirements=tuple(sorted(requirements)))
    files, paths = _weights(weights)
    left_out, weight_bytes = tuple(map(str, packed.left_out)), sum(file.size_bytes for file in files)
    return PackedSource(source, files, {packed.blob.digest: packed.path, **paths}, left_out, weight_bytes)


def pack_program(
    program: Path, *, into: Path, requirements: Sequence[str] = (), weights: Sequence[Path] = ()
) -> PackedSource:
    """Strip the exported program to graph, lifted constants and tensor metadata. Imports torch.

    Raises InvalidSource when the file is no exported program.
    """
    from aot.compile.strip import strip_program

    into.mkdir(parents=True, exist_ok=True)
    stripped = into / "program.pt2"
    weight_bytes = strip_program(program, stripped)
    blob = blob_of(stripped)
    files, paths = _weights(weights)
    source = ProgramSource(program=blob, requirements=tuple(sorted(requirements)))
    return PackedSource(source, files, {blob.digest: stripped, **paths}, weight_bytes=weight_bytes)


def pack_command(root: Path, command: Sequence[str], *, into: Path, requirements: Sequence[str] = ()) -> PackedSource:
    """Pack the tree at `root` that `command` runs in, for a worker to capture its caches. Raises InvalidSource."""
    into.mkdir(parents=True, exist_ok=True)
    packed = pack_tree(root, into)
    source = CommandSource(command=tuple(command), tree=packed.blob, requirements=tuple(sorted(requirements)))
    return PackedSource(source, (), {packed.blob.digest: packed.path}, tuple(map(str, packed.left_out)))


def pack_again(spec: Spec, *, into: Path, source: Path | None, weights: Sequence[Path] = ()) -> PackedSource:
    """Pack what `spec` was submitted with once more; without a `source`, its weights alone.

    Raises InvalidSource when what is packed now is not what was packed then, naming both digests.
    """
    files, paths = _weights(weights)
    into.mkdir(parents=True, exist_ok=True)
    if source is None:
        packed = PackedSource(spec.source, files, paths)
    elif isinstance(spec.source, ProgramSource):
        packed = pack_program(source, into=into, weights=weights)
    else:
        tree = pack_tree(source, into)
        packed = PackedSource(
            spec.source, files, {tree.blob.digest: tree.path, **paths}, tuple(map(str, tree.left_out))
        )
    wanted = {blob.digest for blob in spec.blobs}
    for digest, path in packed.paths.items():
        if digest not in wanted:
            place = path if path in weights else source
            raise InvalidSource(
                f"{place} is not what {spec.name} was built from: it is {digest}, wanted {' or '.join(sorted(wanted))}",
                hint="check out the commit that was built; `aot inspect` shows the bundle",
            )
    return packed


def fetch_source(
    client: RegistryClient,
    spec: Spec,
    links: Sequence[Link],
    *,
    into: Path,
    should_stop: ShouldStop = lambda: None,
) -> OpenedSource:
    """Fetch every blob of `spec` by its link, verified while it is written, and open the source below `into`.

    A text that `should_stop` returns ends it with CompileStopped, also in the middle of a large blob. Raises
    LocalStorageFull before the first byte where there is no room for all.
    """
    into.mkdir(parents=True, exist_ok=True)
    require_room(spec.blobs, into)
    by_digest = {link.digest: link for link in links}
    places: dict[Digest, Path] = {}
    for blob in spec.blobs:
        link = by_digest.get(blob.digest)
        if link is None:
            raise BlobNotFound(f"the claim has no link for {blob.digest}", hint="submit the build again")
        places[blob.digest] = into / blob.digest.hex
        download(client, link, blob, places[blob.digest], should_stop=should_stop)
    return open_source(spec, places, into=into)


def require_room(blobs: Iterable[Blob], into: Path) -> None:
    """Raises LocalStorageFull where the disk of the directory `into` has no room for the blobs."""
    wanted = sum({blob.digest: blob.size_bytes for blob in blobs}.values())
    faults.require_room(into, wanted, hint="give the worker a larger disk: `scratch` of the chart, or AOT_DATA_DIR")


def download(
    client: RegistryClient, link: Link, blob: Blob, into: Path, *, should_stop: ShouldStop = lambda: None
) -> None:
    """Write the blob behind `link` to the new file `into`.

    Raises DigestMismatch, SizeMismatch and BlobNotFound, with the blob in `details["digest"]`, and CompileStopped with
    the text of `should_stop`; then no file is left.
    """
    try:
        with incoming(into.parent, blob, into) as writer:
            client.get_blob(link, _UntilStopped(writer, should_stop), limit_bytes=blob.size_bytes)
    except (DigestMismatch, SizeMismatch, BlobNotFound) as error:
        error.details["digest"] = blob.digest
        raise


def raise_if_stopped(should_stop: ShouldStop) -> None:
    """Raises CompileStopped with the reason, if there is one."""
    if reason := should_stop():
        raise CompileStopped(f"the build was stopped: {reason}")


class _UntilStopped:
    """A blob on its way in that may be given up at every chunk."""

    def __init__(self, writer: Incoming, should_stop: ShouldStop) -> None:
        self._writer = writer
        self._should_stop = should_stop

    def write(self, chunk: bytes) -> None:
        raise_if_stopped(self._should_stop)
        self._writer.write(chunk)


def open_source(spec: Spec, places: Mapping[Digest, Path], *, into: Path) -> OpenedSource:
    """Open a source whose blobs lie at `places`. Raises InvalidSource for an archive that is not safe to unpack."""
    into.mkdir(parents=True, exist_ok=True)
    weights = tuple(_under_its_suffix(places[file.digest], file, into) for file in spec.weights)
    if isinstance(spec.source, BytecodeSource):
        return OpenedSource(None, "", None, ())
    if isinstance(spec.source, CommandSource):
        if spec.source.tree is None:
            return OpenedSource(None, "", None, weights)
        unpack_tree(places[spec.source.tree.digest], into / "tree")
        return OpenedSource(into / "tree", "", None, weights)
    if isinstance(spec.source, ProgramSource):
        return OpenedSource(None, "", places[spec.source.program.digest], weights)
    tree = into / "tree"
    unpack_tree(places[spec.source.tree.digest], tree)
    return OpenedSource(tree, spec.source.entry, None, weights)


def _under_its_suffix(place: Path, file: File, into: Path) -> Path:
    # Loaders go by the suffix; the file's own name is the submitter's and is not used as a path.
    named = into / f"{file.digest.hex}.safetensors"
    if not named.exists():
        named.symlink_to(place.absolute())
    return named


def _weights(paths: Sequence[Path]) -> tuple[tuple[File, ...], dict[Digest, Path]]:
    files: list[File] = []
    places: dict[Digest, Path] = {}
    for path in paths:
        if path.suffix != ".safetensors":
            raise InvalidSource(f"weights must be safetensors files, found {path.name}", hint="convert the checkpoint")
        blob = blob_of(path)
        files.append(File(path=path.name, digest=blob.digest, size_bytes=blob.size_bytes))
        places[blob.digest] = path
    return tuple(files), places
