"""What a package keeps of its kernels, so that another card's code can be made of them: Triton's form before any card.

A package's wrapper loads each kernel from a file of its own by name, and has compiled in how it launches it. Triton's
cache of the build has each of them as TTIR, with the configuration that tuning chose. That is kept beside the package,
compressed and without source locations; `aot.compile.kernels.again` lowers it for another card.
"""

import json
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Raw
from msgspec.structs import asdict

from aot.bundle.hashing import blob_of
from aot.compile.job import CompileJob
from aot.compile.kernels.locations import strip_locations
from aot.errors import MalformedDocument
from aot.facts import read_cubin
from aot.schema.codec import Document, always, convert, decode, encode
from aot.schema.digest import Digest
from aot.schema.spec import File

TRITON_CACHE = "cache/triton"  # in a build's directory: aot.compile.layout sets TRITON_CACHE_DIR so
KEPT_FILE = "kept/kernels.json.xz"
# Of plain text: of a kernel (a product's has tens of KiB), of an artifact, of a bundle. It is read outside a sandbox
# too, and may be some thousand times as large as the bytes that were sent for it.
MOST_KERNEL_BYTES, MOST_BYTES, MOST_OF_BUNDLE = 2 << 20, 32 << 20, 256 << 20
MOST_KERNELS = 65_536
_MOST_MEMORY = 16 << 20  # of the decompressor: `pack_kept`'s preset takes 9 MiB (xz(1), "Preset ... DecMem")
_CUBIN = re.compile(r"cubin/[A-Za-z0-9_-]{1,200}\.cubin")
_MOST_NAMED = 150  # letters of a kernel's name in its files' names (triton/compiler/compiler.py)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,1023}")
# With one of these the code is not made of TTIR and the options above alone.
_ELSEWHERE = ("ir_override", "ptx_options", "ptx_version", "instrumentation_mode")


class KernelOptions(Document, kw_only=True):
    """What lowering reads of all that Triton records of a kernel; each release takes those options that it knows."""

    num_warps: int | None = None
    num_stages: int | None = None
    num_ctas: int | None = None
    maxnreg: int | None = None
    enable_fp_fusion: bool | None = None
    enable_reflect_ftz: bool | None = None
    launch_cooperative_grid: bool | None = None
    launch_pdl: bool | None = None
    debug: bool | None = None
    sanitize_overflow: bool | None = None

    @property
    def recorded(self) -> dict[str, Any]:
        """Those that Triton recorded, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class KeptKernel(Document, kw_only=True):
    """One kernel. Bytes are those of a block's launch, as the wrapper has them compiled in."""

    path: str  # of its cubin in the artifact
    name: str  # the symbol that the wrapper looks for
    options: KernelOptions
    shared_bytes: int
    scratch_bytes: int = 0
    profile_scratch_bytes: int = 0
    descriptors: int = 0  # tensor descriptors among its arguments, whose form depends on the card
    ttir: str

    @property
    def warps(self) -> int:
        return self.options.num_warps or 0


class KeptKernels(Document, kw_only=True):
    """All kernels of one artifact, by path. `triton`: the release whose TTIR this is; another reads it otherwise."""

    format: int = always(1)
    triton: str
    kernels: tuple[KeptKernel, ...]


def pack_kept(kept: KeptKernels) -> bytes:
    """Return the bytes to keep; equal kernels give equal bytes."""
    # No check sum of the container's own: the blob has a digest.
    return lzma.compress(encode(kept), check=lzma.CHECK_NONE, preset=6)


class _Unread(Document, kw_only=True):
    """`KeptKernels` whose kernels are bytes yet: they are counted before anything is made of them."""

    format: int
    triton: str
    kernels: tuple[Raw, ...]


def unpack_kept(content: bytes, *, most_kernels: int = MOST_KERNELS) -> KeptKernels:
    """Read what `pack_kept` wrote. Raises MalformedDocument for anything else; nothing of it is run.

    `most_kernels` bounds what is made of it, before it is made.
    """
    return _parse(_unpack(content, _most_bytes(most_kernels)), most_kernels)


def _most_bytes(most_kernels: int) -> int:
    return min(MOST_BYTES, most_kernels * MOST_KERNEL_BYTES)


def _unpack(content: bytes, most: int) -> bytes:
    """Raises MalformedDocument where it has more than `most` plain bytes, of which no more are made."""
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
    try:
        plain = reader.decompress(content, max_length=most + 1)
    except (lzma.LZMAError, MemoryError) as error:
        raise _malformed(f"cannot be unpacked: {error}") from error
    if len(plain) > most or not reader.eof or reader.unused_data:
        raise _malformed(f"are cut off, or have more than {most} bytes")
    return plain


def _parse(plain: bytes, most_kernels: int) -> KeptKernels:
    unread = decode(plain, _Unread, what="kept kernels")
    if len(unread.kernels) > most_kernels:
        raise _malformed(f"are {len(unread.kernels)}, wanted at most {most_kernels}")
    kernels = tuple(decode(bytes(kernel), KeptKernel, what="kept kernel") for kernel in unread.kernels)
    if len({kernel.path for kernel in kernels}) != len(kernels):
        raise _malformed("have two of one path")
    for kernel in kernels:
        if not (_CUBIN.fullmatch(kernel.path) and _NAME.fullmatch(kernel.name)):
            raise _malformed(f"name what no package has: {kernel.path[:100]!r}, {kernel.name[:100]!r}")
    return KeptKernels(format=unread.format, triton=unread.triton, kernels=kernels)


class KeptReader:
    """Reads what the artifacts of one bundle keep: each blob once, and MOST_OF_BUNDLE plain bytes of all together.

    Who names one blob in a thousand artifacts, or a thousand blobs, so takes no more of a reader than that.
    """

    def __init__(self, paths: Mapping[Digest, Path]) -> None:
        self._paths = paths
        self._left = MOST_OF_BUNDLE
        self._found: dict[Digest, frozenset[tuple[str, str]] | MalformedDocument] = {}

    def names(self, digest: Digest, cubins: Iterable[str]) -> frozenset[tuple[str, str]]:
        """Return path and symbol of every kernel in the blob, for the artifact that has these `cubins`.

        Raises MalformedDocument for what cannot be read, and where it is not of exactly these.
        """
        wanted = {*cubins}
        if digest not in self._found:
            try:
                self._found[digest] = self._read(self._paths[digest], len(wanted))
            except MalformedDocument as error:
                self._found[digest] = error
        found = self._found[digest]
        if isinstance(found, MalformedDocument):
            raise found
        if wanted != {path for path, _ in found}:
            raise _malformed("are not those that the artifact has")
        return found

    def _read(self, place: Path, cubins: int) -> frozenset[tuple[str, str]]:
        most = min(_most_bytes(cubins), self._left)
        # Packed it is never larger: a file of more bytes is not even read.
        if place.stat().st_size > most:
            raise _malformed(f"have more than {most} bytes, or those of the bundle more than {MOST_OF_BUNDLE}")
        self._left -= most
        plain = _unpack(place.read_bytes(), most)
        self._left += most - len(plain)
        return frozenset((kernel.path, kernel.name) for kernel in _parse(plain, cubins).kernels)


def collect_kept(cubins: Mapping[str, Path], cache: Path, *, places: Sequence[str] = ()) -> KeptKernels:
    """Return what Triton's `cache` has of each packaged cubin (path in the artifact, place), matched by its bytes.

    Raises MalformedDocument where it lacks one, where a kernel is not made of its TTIR alone, and where its text names
    one of `places`, which are the builder's.
    """
    sizes = {place.stat().st_size for place in cubins.values()}
    found = {
        blob_of(path).digest: path
        for path in sorted(cache.glob("*/*.cubin"), reverse=True)
        if path.stat().st_size in sizes
    }
    releases: set[str] = set()
    kernels = []
    for path, place in sorted(cubins.items()):
        origin = found.get(blob_of(place).digest)
        if origin is None:
            raise _malformed(f"lack {path}: {_missing(place, cache)}")
        release, kernel = _read(path, origin)
        if told := [named for named in places if named in kernel.ttir]:
            raise _malformed(f"would hold a path of the build: {kernel.name} names {told[0]}")
        releases.add(release)
        kernels.append(kernel)
    if len(releases) != 1:
        raise _malformed(f"are of {len(releases)} releases of Triton")
    return KeptKernels(triton=releases.pop(), kernels=tuple(kernels))


def _missing(cubin: Path, cache: Path) -> str:
    """What Triton's `cache` has instead of the bytes of `cubin`."""
    names = {name[:_MOST_NAMED] for name in read_cubin(cubin).kernels}
    others = sum(path.stem in names for path in cache.glob("*/*.cubin"))
    return f"Triton's cache has no such bytes, and {others} other(s) of the kernel {', '.join(sorted(names))}"


def keep_kernels(cubins: Mapping[str, Path], directory: Path, job: CompileJob) -> tuple[File | None, str]:
    """Write what is kept of `cubins` into the artifact's `directory`: its file; else None, and why there is none.

    Nothing to keep, as of fat binaries or of a package without kernels, is no reason to be told.
    """
    if not cubins or any(not path.endswith(".cubin") for path in cubins):
        return None, ""
    cache, places = Path(job.build) / TRITON_CACHE, [place for place in (job.build, job.tree) if place]
    try:
        content = pack_kept(collect_kept(cubins, cache, places=places))
        unpack_kept(content, most_kernels=len(cubins))  # what no reader takes is not kept
    except MalformedDocument as error:
        return None, f"nothing is kept for other cards: {error.message}"
    path = directory / KEPT_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    blob = blob_of(path)
    return File(path=KEPT_FILE, digest=blob.digest, size_bytes=blob.size_bytes), ""


def _read(path: str, cubin: Path) -> tuple[str, KeptKernel]:
    """Return the release of Triton and the kernel whose `cubin` lies in its cache."""
    try:
        recorded = json.loads(cubin.with_suffix(".json").read_bytes())
        text = cubin.with_suffix(".ttir").read_text()
        if set_elsewhere := [name for name in _ELSEWHERE if recorded.get(name)]:
            raise _malformed(f"would lack what made {recorded['name']}: its {', '.join(set_elsewhere)}")
        kernel = convert(dict(_fields(path, recorded), ttir=strip_locations(text)), KeptKernel, what="kept kernel")
        return str(recorded["triton_version"]), kernel
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _malformed(f"lack {path}: Triton recorded it otherwise ({type(error).__name__}: {error})") from error


def _fields(path: str, recorded: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "path", path
    yield "name", recorded["name"]
    options = KernelOptions.__struct_fields__
    yield "options", {name: recorded[name] for name in options if recorded.get(name) is not None}
    yield "shared_bytes", recorded["shared"]
    yield "scratch_bytes", recorded.get("global_scratch_size") or 0
    yield "profile_scratch_bytes", recorded.get("profile_scratch_size") or 0
    yield "descriptors", len(recorded.get("tensordesc_meta") or ())


def _malformed(finding: str) -> MalformedDocument:
    return MalformedDocument(f"the kept kernels {finding}", hint="build the bundle again to have them")
