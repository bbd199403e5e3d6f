"""What an entry of a compiled graph has in it of Triton's kernels: only what a start on it needs, and nothing twice.

Torch puts every kernel into the entry that was loaded until it was written, so all that tuning tried, each with its
machine code and four stages of its source, and for each tuned kernel all its candidates. On loading it writes those
whose directory is empty, and looks at the files of every candidate (torch/_inductor/triton_bundler.py, TritonBundle,
read_and_emit, load_autotuners). Kept of them is here:

    a kernel that was not used      nothing, nor a candidate of it
    one whose files are entries     its name: the files are there before torch looks, and equal ones are one blob
    any other                       as it was
    a tuned kernel                  the candidate that tuning chose (`aot.capture.tuners`)

Entries are read as symbols (`aot.capture.symbolic`); one that is not understood stays as it is.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aot.capture.entries import Kind, kind_of
from aot.capture.kernels import KEY_CHARACTERS, Kernels, below_of
from aot.capture.plain import read_plain
from aot.capture.symbolic import read, write
from aot.capture.symbols import (
    Allowance,
    Global,
    Node,
    Value,
    each_node,
    fields_of,
    instance,
    is_instance,
    items_of,
    set_items,
)
from aot.capture.tuners import Candidate, Chosen, Tuner, settled, tuner_of, with_one

_MODULE = "torch._inductor.triton_bundler"
_BUNDLE = Global(_MODULE, "TritonBundle")
_KERNEL = Global(_MODULE, "TritonKernelArtifacts")
_FILE = Global(_MODULE, "TritonKernelArtifact")
_SIGNS = (_KERNEL.name.encode(), b"StaticallyLaunchedAutotuner")
_REPLACE = b"[REPLACE]"  # torch's mark for the directory of a kernel, in each of its files that ends so
_REPLACED_IN = ".json"
_MOST_CHOICE_BYTES = 1 << 16
_MOST_DEVICES = 1 << 16


@dataclass(frozen=True)
class _Kernel:
    """One kernel of a bundle. `files` is the list of them with their bytes, `names` has theirs."""

    symbol: Value
    key: str
    device: int
    files: Node
    names: frozenset[str]


def chosen_in(directory: Path, paths: Collection[str]) -> Chosen:
    """Return what tells of a path what tuning wrote there, of those among `paths`."""

    def chosen(path: str) -> Mapping[str, object] | None:
        if path in paths and kind_of(path) is Kind.BEST_CONFIG:
            with contextlib.suppress(OSError, ValueError, RecursionError):
                found = json.loads(read_plain(directory, path, most_bytes=_MOST_CHOICE_BYTES))
                return found if isinstance(found, dict) else None
        return None

    return chosen


def slimmed(content: bytes, path: str, *, chosen: Chosen, kernels: Kernels | None) -> bytes:
    """Return the entry at `path` with what a start on it needs of its kernels; with all of them where None are known.

    Idempotent. Other bytes, and what is not understood, as they are.
    """
    slimming = _Slimming(path, lambda place: chosen(f"{below_of(path)}/{place}"), kernels)
    return _altered(content, slimming.alter)


def without_kernels(content: bytes) -> bytes:
    """Return an entry as it would be without any kernel: equal for entries of one graph, whatever is kept of these."""

    def alter(bundle: Node) -> None:
        for part in (fields_of(bundle) or {}).values():
            if isinstance(part, Node) and items_of(part) is not None:
                set_items(part, ())

    return _altered(content, alter)


def refilled(
    content: bytes, path: str, *, kernels: Kernels, read_file: Callable[[str], bytes], mark: bytes
) -> tuple[bytes, frozenset[str]]:
    """Return the entry with the bytes of its kernels in it, as torch writes it, and the files that these come from.

    `read_file` gives the bytes of a file of `kernels`, in which `mark` stands for the directory of all caches.
    """
    filled: dict[str, list[Node]] = {}
    allowance = Allowance()

    def files_in(place: str) -> list[Node]:
        files = []
        for name in sorted(kernels.kept[place]):
            payload = read_file(f"{place}/{name}")
            if name.endswith(_REPLACED_IN):
                payload = payload.replace(mark + b"/" + place.encode(), _REPLACE)
            files.append(instance(_FILE, {"filename": name, "payload": payload}))
        return files

    def alter(bundle: Node) -> None:
        for item in items_of((fields_of(bundle) or {}).get("kernel_artifacts")) or ():
            kernel = _kernel_of(item, allowance)
            place = kernels.place_of(path, kernel.key, kernel.device) if kernel is not None else None
            if kernel is None or place is None or kernel.names:
                continue
            if place not in filled:
                filled[place] = files_in(place)
            set_items(kernel.files, filled[place])

    entry = _altered(content, alter)
    return entry, frozenset(f"{place}/{name}" for place in filled for name in kernels.kept[place])


def _altered(content: bytes, alter: Callable[[Node], None]) -> bytes:
    """Return the entry with each bundle in it altered; as it is where there is none, or it is not read."""
    if not any(sign in content for sign in _SIGNS):
        return content
    try:
        root, protocol = read(content)
        before = write(root, protocol)
        for bundle in [node for node in each_node(root) if is_instance(node, _BUNDLE)]:
            alter(bundle)
        after = write(root, protocol)
    except ValueError:
        return content
    return content if after == before else after


class _Slimming:
    """Alters the bundles of one entry. Raises ValueError where hostile bytes refer to one long list again and again."""

    def __init__(self, path: str, chosen: Chosen, kernels: Kernels | None) -> None:
        self._path, self._chosen, self._kernels = path, chosen, kernels
        self._allowance = Allowance()

    def alter(self, bundle: Node) -> None:
        fields = fields_of(bundle) or {}
        in_bundle, tuned = fields.get("kernel_artifacts"), fields.get("static_autotuners")
        in_list, tuned_list = items_of(in_bundle), items_of(tuned)
        if not isinstance(in_bundle, Node) or not isinstance(tuned, Node) or in_list is None or tuned_list is None:
            return
        kernels = [_kernel_of(item, self._allowance) for item in in_list]
        staying = list(self._settled(tuned_list))
        known = [kernel for kernel in kernels if kernel is not None]
        if self._kernels is not None and len(known) == len(kernels):
            staying, known = self._used(staying, known)
            set_items(in_bundle, [kernel.symbol for kernel in known])
        set_items(tuned, [item for item, _ in staying])

    def _settled(self, values: Iterable[Value]) -> Iterator[tuple[Value, Tuner | None]]:
        """Yield the tuners that stay; those that are not understood with None."""
        for value in values:
            tuner = tuner_of(value, self._allowance)
            if tuner is None:
                yield value, None
            elif (tuner := settled(tuner, self._chosen)) is not None:
                yield value, tuner

    def _used(
        self, tuners: list[tuple[Value, Tuner | None]], kernels: list[_Kernel]
    ) -> tuple[list[tuple[Value, Tuner | None]], list[_Kernel]]:
        """Return the tuners and the kernels that stay, the latter in order, and without files that are entries."""
        unused = set() if any(tuner is None for _, tuner in tuners) else self._unused(tuners, kernels)
        staying: list[tuple[Value, Tuner | None]] = []
        for item, tuner in tuners:
            left = [one for one in tuner.candidates if not one.keys & unused] if tuner else []
            if tuner is None or len(left) == len(tuner.candidates):
                staying.append((item, tuner))
            elif len(left) == 1 and not tuner.descends:
                staying.append((item, with_one(tuner, left[0])))
            elif left:
                unused -= frozenset().union(*(one.keys for one in tuner.candidates))
                staying.append((item, tuner))
        found = {(kernel.key, str(kernel.device)): kernel for kernel in reversed(kernels) if kernel.key not in unused}
        ordered = [self._emptied(found[at]) for at in sorted(found)]
        there = {kernel.key for kernel in ordered if kernel.names or self._place(kernel.key, kernel.device)}
        return [(item, tuner) for item, tuner in staying if tuner is None or self._can_load(tuner, there)], ordered

    def _unused(self, tuners: list[tuple[Value, Tuner | None]], kernels: list[_Kernel]) -> set[str]:
        assert self._kernels is not None
        keys = {kernel.key: kernel.device for kernel in kernels}
        for _, tuner in tuners:
            for candidate in tuner.candidates if tuner else ():
                keys.update((key, 0) for key in candidate.keys - keys.keys())
        return {key for key, device in keys.items() if self._kernels.is_unused(self._path, key, device)}

    def _can_load(self, tuner: Tuner, there: Collection[str]) -> bool:
        """Whether every candidate has its machine code somewhere: torch loads it from there at the first call."""
        return all(one.is_whole or self._is_there(one, there) for one in tuner.candidates)

    def _is_there(self, candidate: Candidate, there: Collection[str]) -> bool:
        return any(key in there or self._place(key, 0) is not None for key in candidate.keys)

    def _place(self, key: str, device: int) -> str | None:
        assert self._kernels is not None
        return self._kernels.place_of(self._path, key, device)

    def _emptied(self, kernel: _Kernel) -> _Kernel:
        place = self._place(kernel.key, kernel.device)
        if place is None or self._kernels is None or not kernel.names <= self._kernels.kept[place]:
            return kernel
        set_items(kernel.files, ())
        return replace(kernel, names=frozenset())


def _kernel_of(value: Value, allowance: Allowance) -> _Kernel | None:
    fields = (fields_of(value) if is_instance(value, _KERNEL) else None) or {}
    key, device, files = fields.get("kernel_hash"), fields.get("device"), fields.get("artifacts")
    listed = items_of(files)
    if not isinstance(key, str) or len(key) > KEY_CHARACTERS or not isinstance(files, Node) or listed is None:
        return None
    # Both become a part of paths: a node there would be printed, as long and as deep as it likes.
    if not isinstance(device, int) or isinstance(device, bool) or not 0 <= device < _MOST_DEVICES:
        return None
    allowance.spend(1 + len(listed))
    names = [(fields_of(file) or {}).get("filename") if is_instance(file, _FILE) else None for file in listed]
    known = frozenset(name for name in names if isinstance(name, str))
    # A file that comes twice is no file of torch's.
    return _Kernel(value, key, device, files, known) if len(known) == len(names) else None
