"""Which of Triton's kernels lie in a cache, and where a graph finds its own. Pure, over paths.

A kernel is one directory with the files of its group: `triton/<key>` where TRITON_CACHE_DIR is set, else one for each
card below Inductor's own cache (torch/_inductor/runtime/runtime_utils.py, triton_cache_dir).
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from aot.capture.entries import Kind, kind_of, within_caches

# Of the hash of a kernel, and of the name of its directory: a SHA-256 has 64 in hexadecimal. Hostile bytes have one
# long text in many places, and each of them would be converted and joined to paths.
KEY_CHARACTERS = 128


@dataclass(frozen=True)
class Kernels:
    """`kept` has the names of the files in each directory of a kernel; `unused` are those that no run has opened.

    `moved` are the directories into which a server has put Triton's cache.
    """

    kept: Mapping[str, frozenset[str]]
    unused: frozenset[str]
    moved: frozenset[str]

    def place_of(self, graph: str, key: str, device: int) -> str | None:
        """Return the directory where the graph at the path `graph` finds the kernel of that key; None where nowhere."""
        return next((place for place in self._places(graph, key, device) if place in self.kept), None)

    def is_unused(self, graph: str, key: str, device: int) -> bool:
        """Whether the kernel was where the graph finds it, and was not used."""
        places = tuple(self._places(graph, key, device))
        return any(place in self.unused for place in places) and not any(place in self.kept for place in places)

    def _places(self, graph: str, key: str, device: int) -> Iterator[str]:
        below = below_of(graph)
        parent = below.rpartition("/")[0]
        own = f"{below}/triton/{device}/{key}"
        if not parent:
            yield from (f"triton/{key}", own)
            return
        yield from (f"{parent}/triton_cache/{key}", own)
        if f"{parent}/triton_cache" not in self.moved:  # a server that moves torch's cache and not Triton's
            yield f"triton/{key}"


def kernels_of(kept: Iterable[str], unused: Iterable[str]) -> Kernels:
    """Return the kernels among the files that are kept, and among those that were there and that no run has used."""
    names: dict[str, set[str]] = {}
    for path in kept:
        if (place := _place_of(path)) is not None:
            names.setdefault(place[0], set()).add(place[1])
    left = {place[0] for path in unused if (place := _place_of(path)) is not None}
    moved = frozenset(place.rpartition("/")[0] for place in (*names, *left))
    return Kernels({place: frozenset(found) for place, found in names.items()}, frozenset(left) - names.keys(), moved)


def below_of(graph: str) -> str:
    """Return the directory of the Inductor cache that the entry of a graph lies in."""
    return within_caches(graph)[0] or "inductor"


def keys_of(digest: str) -> frozenset[str]:
    """Return what Triton may call the directory of a kernel with that hash, in hexadecimal: it was not always base32.

    Source: torch/_inductor/runtime/runtime_utils.py, triton_hash_to_path_key.
    """
    try:
        raw = bytes.fromhex(digest)
    except ValueError:
        return frozenset({digest})
    named = (base64.b32encode(raw), base64.urlsafe_b64encode(raw))
    return frozenset({digest, *(key.decode().rstrip("=") for key in named)})


def _place_of(path: str) -> tuple[str, str] | None:
    """Return the directory of the kernel that the file belongs to, and its name there."""
    if kind_of(path) is not Kind.TRITON:
        return None
    match within_caches(path)[1]:
        case ["triton", _, *rest] | ["inductor", "triton", _, _, *rest] if rest:
            name = "/".join(rest)
            return path[: -len(name) - 1], name
    return None
