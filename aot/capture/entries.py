"""Entries: what one compiler cache holds, one file each, under a path below the directory of all caches.

A bundle of the route `cache` lists them as its files: `inductor/fxgraph/ab/<key>/<name>`, `triton/<key>/<file>`. The
first part of a path is the name of a cache root (`aot.capture.roots`), so it says where a restore puts the file, and
the kind follows from the path alone: nothing of an entry is unpickled or run to tell what it is. A server that moves
torch's caches below a root of its own has the same entries there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from aot.schema.digest import Digest
from aot.schema.spec import File

_OWN = ("inductor", "triton")
_MOVED = {"inductor_cache": "inductor", "triton_cache": "triton"}


class Kind(StrEnum):
    """What an entry is; the files of a cache that is not read here are `FILE`."""

    FXGRAPH = "inductor-fxgraph"  # one compiled graph: fxgraph/ab/<key>/<digest of its content>
    AOT_AUTOGRAD = "inductor-aotautograd"  # the joint graph around it
    BEST_CONFIG = "inductor-best-config"  # the configuration that tuning chose for one Triton kernel
    CODE = "inductor-code"  # generated Python or C++
    LIBRARY = "inductor-library"  # C++ kernels as a shared object
    DYNAMO = "inductor-dynamo"  # code states of dynamic shapes, precompiled frames
    TUNING = "inductor-tuning"  # what choices measured
    TRITON = "triton"
    DRIVER = "cuda-driver"
    EXTENSION = "torch-extension"
    FILE = "file"


@dataclass(frozen=True)
class Entry:
    """One file. `path` is relative, with forward slashes, and begins with the name of its root."""

    kind: Kind
    path: str
    digest: Digest
    size_bytes: int

    @property
    def root(self) -> str:
        return self.path.partition("/")[0]

    @property
    def graph(self) -> str | None:
        """The key of the graph that this is an entry of; None for everything that is no compiled graph."""
        return graph_of(self.path)

    def as_file(self) -> File:
        return File(path=self.path, digest=self.digest, size_bytes=self.size_bytes)


def entry_of(file: File) -> Entry:
    return Entry(kind_of(file.path), file.path, file.digest, file.size_bytes)


def kind_of(path: str) -> Kind:
    """Return what torch and Triton keep under that path (torch/_inductor/codecache.py, triton/runtime/cache.py)."""
    match within_caches(path)[1]:
        case ["inductor", "fxgraph", _, _, _]:
            return Kind.FXGRAPH
        case ["inductor", "aotautograd", _, _]:
            return Kind.AOT_AUTOGRAD
        case ["inductor", "dynamo", *_]:
            return Kind.DYNAMO
        case ["inductor", "cache", _] | ["inductor", "local_cache", *_]:
            return Kind.TUNING
        case ["inductor", "triton", *_] | ["triton", *_]:
            return Kind.TRITON
        case ["inductor", *_, name]:
            return _of_inductor(PurePosixPath(name).suffix)
        case ["cuda", *_]:
            return Kind.DRIVER
        case ["extensions", *_]:
            return Kind.EXTENSION
    return Kind.FILE


def within_caches(path: str) -> tuple[str, list[str]]:
    """Return a path as torch or Triton has it, from `inductor` or `triton` on, and below what a server has put it.

    vLLM and what follows it name the directories `inductor_cache` and `triton_cache`, one for each rank
    (vllm/compilation/compiler_interface.py); compiled graphs are recognised below any name.
    """
    parts = path.split("/")
    if parts[0] in _OWN:
        return "", parts
    for index, part in enumerate(parts[:-1]):
        if index and part in _MOVED:
            return "/".join(parts[: index + 1]), [_MOVED[part], *parts[index + 1 :]]
        if index and part in ("fxgraph", "aotautograd"):
            return "/".join(parts[:index]), ["inductor", *parts[index:]]
    return "", parts


def graph_of(path: str) -> str | None:
    below, parts = within_caches(path)
    match parts:
        case ["inductor", "fxgraph", _, key, *_]:
            return f"{below}/{key}" if below else key
    return None


def graphs_of(paths: Iterable[str]) -> frozenset[str]:
    """Return the keys of the compiled graphs among these paths."""
    return frozenset(key for path in paths if (key := graph_of(path)) is not None)


def _of_inductor(suffix: str) -> Kind:
    match suffix:
        case ".best_config":
            return Kind.BEST_CONFIG
        case ".so":
            return Kind.LIBRARY
    return Kind.CODE
