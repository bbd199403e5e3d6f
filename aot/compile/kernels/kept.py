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

from aot.bundle.hashing import blob_of
from aot.compile.job import CompileJob
from aot.compile.kernels.locations import strip_locations
from aot.errors import MalformedDocument
from aot.schema.codec import Document, always, convert, decode, encode
from aot.schema.spec import File

TRITON_CACHE = "cache/triton"  # in a build's directory: aot.compile.layout sets TRITON_CACHE_DIR so
KEPT_FILE = "kept/kernels.json.xz"
MOST_BYTES, MOST_PACKED_BYTES, MOST_KERNELS = 256 << 20, 32 << 20, 65_536
_CUBIN = re.compile(r"cubin/[A-Za-z0-9_-]{1,200}\.cubin")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,1023}")
# Of what Triton records of a kernel, the options that its lowering reads; each release takes those that it knows.
OPTIONS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "enable_fp_fusion",
    "enable_reflect_ftz",
    "launch_cooperative_grid",
    "launch_pdl",
    "debug",
    "sanitize_overflow",
)
# With one of these the code is not made of TTIR and the options above alone.
_ELSEWHERE = ("ir_override", "ptx_options", "ptx_version", "instrumentation_mode")


class KeptKernel(Document, kw_only=True):
    """One kernel. Bytes are those of a block's launch, as the wrapper has them compiled in."""

    path: str  # of its cubin in the artifact
    name: str  # the symbol that the wrapper looks for
    options: dict[str, bool | int | float | str]
    shared_bytes: int
    scratch_bytes: int = 0
    profile_scratch_bytes: int = 0
    descriptors: int = 0  # tensor descriptors among its arguments, whose form depends on the card
    ttir: str

    @property
    def warps(self) -> int:
        return int(self.options.get("num_warps", 0))


class KeptKernels(Document, kw_only=True):
    """All kernels of one artifact, by path. `triton`: the release whose TTIR this is; another reads it otherwise."""

    format: int = always(1)
    triton: str
    kernels: tuple[KeptKernel, ...]


def pack_kept(kept: KeptKernels) -> bytes:
    """Return the bytes to keep; equal kernels give equal bytes."""
    # No check sum of the container's own: the blob has a digest.
    return lzma.compress(encode(kept), check=lzma.CHECK_NONE, preset=6)


def unpack_kept(content: bytes) -> KeptKernels:
    """Read what `pack_kept` wrote. Raises MalformedDocument for anything else; nothing of it is run."""
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MOST_BYTES)
    try:
        plain = reader.decompress(content, max_length=MOST_BYTES)
    except (lzma.LZMAError, MemoryError) as error:
        raise _malformed(f"cannot be unpacked: {error}") from error
    if not reader.eof or reader.unused_data:
        raise _malformed(f"are cut off, or have more than {MOST_BYTES} bytes")
    kept = decode(plain, KeptKernels, what="kept kernels")
    paths = [kernel.path for kernel in kept.kernels]
    if len(paths) > MOST_KERNELS or len(set(paths)) != len(paths):
        raise _malformed("are too many, or two have one path")
    for kernel in kept.kernels:
        if not (_CUBIN.fullmatch(kernel.path) and _NAME.fullmatch(kernel.name) and kernel.options.keys() <= {*OPTIONS}):
            raise _malformed(f"name what no package has: {kernel.path[:100]!r}, {kernel.name[:100]!r}")
    return kept


def read_kept(place: Path, cubins: Iterable[str]) -> KeptKernels:
    """Return what the file at `place` keeps. Raises MalformedDocument where it is not of exactly these `cubins`."""
    if place.stat().st_size > MOST_PACKED_BYTES:
        raise _malformed(f"have more than {MOST_PACKED_BYTES} bytes")
    kept = unpack_kept(place.read_bytes())
    if {*cubins} != {kernel.path for kernel in kept.kernels}:
        raise _malformed("are not those that the artifact has")
    return kept


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
            raise _malformed(f"lack {path}: Triton's cache has no such bytes")
        release, kernel = _read(path, origin)
        if told := [named for named in places if named in kernel.ttir]:
            raise _malformed(f"would hold a path of the build: {kernel.name} names {told[0]}")
        releases.add(release)
        kernels.append(kernel)
    if len(releases) != 1:
        raise _malformed(f"are of {len(releases)} releases of Triton")
    return KeptKernels(triton=releases.pop(), kernels=tuple(kernels))


def keep_kernels(cubins: Mapping[str, Path], directory: Path, job: CompileJob) -> tuple[File | None, str]:
    """Write what is kept of `cubins` into the artifact's `directory`: its file; else None, and why there is none.

    Nothing to keep, as of fat binaries or of a package without kernels, is no reason to be told.
    """
    if not cubins or any(not path.endswith(".cubin") for path in cubins):
        return None, ""
    cache, places = Path(job.build) / TRITON_CACHE, [place for place in (job.build, job.tree) if place]
    try:
        content = pack_kept(collect_kept(cubins, cache, places=places))
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
    yield "options", {name: recorded[name] for name in OPTIONS if recorded.get(name) is not None}
    yield "shared_bytes", recorded["shared"]
    yield "scratch_bytes", recorded.get("global_scratch_size") or 0
    yield "profile_scratch_bytes", recorded.get("profile_scratch_size") or 0
    yield "descriptors", len(recorded.get("tensordesc_meta") or ())


def _malformed(finding: str) -> MalformedDocument:
    return MalformedDocument(f"the kept kernels {finding}", hint="build the bundle again to have them")
