"""What tuning has measured, kept on a machine for later builds of the same profile.

Max-autotune compares tens of candidates for every matrix product, and most of a large model's products were in the
build before. A later build is given those measurements: what it finds among them it does not measure again, so a
changed layer is tuned, and the rest is not. A product's measurement only orders candidates that the compiler offers
itself; a kernel's configuration is used as it was left. What comes of either is proven like every build.

Two kinds, as Inductor keeps them: the seconds of each candidate of a product, by operation, sizes and candidate
(torch/_inductor/codecache.py, PersistentCache), and the configuration chosen for each Triton kernel, by its source
(torch/_inductor/runtime/autotune_cache.py).
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.errors import MalformedDocument
from aot.keys import measurements_key
from aot.locks import try_lock, unlock
from aot.schema.codec import Document, decode, encode
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.profile import Profile

TUNING_FILE = "tuning.json"
# A large model's is about a megabyte; beyond this, what is there is forgotten, and tuning starts afresh.
MOST_BYTES = 64 << 20
_MOST_CONFIGURATION_BYTES = 4096
_CONFIGURATION = re.compile(r"[a-z0-9]{2}/[a-z0-9]+\.best_config")

# By operation, inputs, precision and candidate: milliseconds, None for a candidate that cannot run.
Timings = dict[str, dict[str, dict[str, dict[str, float | None]]]]


class Measured(Document, kw_only=True):
    """Measurements of one profile. `configurations` are JSON texts by their place in Inductor's cache."""

    timings: Timings = {}
    configurations: dict[str, str] = {}

    def __len__(self) -> int:
        """How many products and kernels were measured."""
        products = sum(len(by_precision) for by_inputs in self.timings.values() for by_precision in by_inputs.values())
        return products + len(self.configurations)

    def joined(self, other: "Measured") -> "Measured":
        """Both; where both have measured the same, `other`, which is the later."""
        timings = {op: {key: dict(found) for key, found in by_inputs.items()} for op, by_inputs in self.timings.items()}
        for op, by_inputs in other.timings.items():
            for key, by_precision in by_inputs.items():
                timings.setdefault(op, {}).setdefault(key, {}).update(by_precision)
        return Measured(timings=timings, configurations={**self.configurations, **other.configurations})


def parse_measured(content: bytes) -> Measured:
    """Read what a child has left. Raises MalformedDocument; the child runs other people's code."""
    measured = decode(content, Measured, what="measurements")
    for place, text in measured.configurations.items():
        if not _CONFIGURATION.fullmatch(place):
            raise MalformedDocument(f"a configuration lies at {place[:100]!r}, outside of a cache")
        _check_configuration(place, text)
    return measured


@dataclass(frozen=True)
class TuningStore:
    """The measurements of `profile` in `directory`, which outlives builds and serves several processes.

    Each namespace has its own: a child is other people's code, and could leave a configuration that makes the kernel of
    somebody else slow, or one of those that a compiler gets wrong, with nothing but that build's proof against it.
    """

    directory: Path
    profile: Profile
    namespace: Namespace

    @property
    def path(self) -> Path:
        parts = (self.namespace, measurements_key(self.profile))
        return self.directory / f"tuning-{Digest.of(encode(parts)).short}.json"

    def read(self) -> Measured:
        """What is known; nothing where that cannot be read."""
        try:
            return parse_measured(self.path.read_bytes())
        except (MalformedDocument, OSError):
            return Measured()

    def add(self, content: bytes) -> Measured:
        """Keep what a child has measured, beside what others have, and return it.

        Raises MalformedDocument; then nothing is kept.
        """
        fresh = parse_measured(content)
        self._keep(fresh)
        return fresh

    def seed(self, content: bytes) -> Measured:
        """Keep what another machine of this profile has measured, where nothing was measured here; return it.

        Raises MalformedDocument; then nothing is kept.
        """
        elsewhere = parse_measured(content)
        self._keep(elsewhere.joined(self.read()))
        return elsewhere

    def _keep(self, fresh: Measured) -> None:
        # A disk that is full costs later builds their time, not this one its artifacts.
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._write(fresh)

    def _write(self, fresh: Measured) -> None:
        with self.path.with_suffix(".lock").open("w") as lock:
            if not try_lock(lock):
                return  # another build is adding its own: ours are measured again some day
            try:
                content = encode(self.read().joined(fresh))
                if len(content) > MOST_BYTES:
                    content = encode(fresh)
                part = self.path.with_suffix(".part")
                part.write_bytes(content)
                os.replace(part, self.path)
            finally:
                unlock(lock)


def _check_configuration(place: str, text: str) -> None:
    try:
        found = json.loads(text) if len(text) <= _MOST_CONFIGURATION_BYTES else None
    except (ValueError, RecursionError):  # a few kilobytes of brackets are deeper than Python goes
        found = None
    if not isinstance(found, Mapping) or not all(isinstance(one, str | int | float | None) for one in found.values()):
        raise MalformedDocument(f"the configuration at {place} is no object of plain values")
    if lacking := [name for name in ("num_warps", "num_stages") if type(found.get(name)) is not int]:
        # A compile worker of torch's would end there.
        raise MalformedDocument(f"the configuration at {place} has no {lacking[0]}")
