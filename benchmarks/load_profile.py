"""Where the time of `aot.load` goes, step by step: medians over fresh processes.

`python -m benchmarks.load_profile MODEL REFERENCE [--runs 9]`, with AOT_CACHE_DIR and AOT_TRUSTED_KEYS as for a pod and
the bundle on this node already. The steps are the functions of `STEPS`, wrapped in the child; what a step calls counts
with its own step, so the column adds up. Collections of Python's garbage collector count apart, whoever causes them.
"""

import argparse
import gc
import importlib
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from aot.config import Config
from benchmarks.models import MODELS
from benchmarks.starts import clean_environ, start_child

# Step, and the places where the function is looked up when `aot.load` calls it.
STEPS: tuple[tuple[str, str], ...] = (
    ("read the settings", "aot.config:Config.from_environ"),
    ("observe: CPU", "aot.environment.cpu:Cpus.read"),
    ("observe: cards", "aot.environment.node:observe_nvidia"),
    ("observe: libstdc++", "aot.environment.container:libstdcxx_version"),
    ("observe: packages", "aot.environment.container:torch_build"),
    ("observe: packages", "aot.environment.container:triton_version"),
    ("observe: the rest", "aot.runtime.pod:observe_environment"),
    ("read the manifest", "aot.cache.local:LocalCache.get_manifest"),
    ("verify the signature", "aot.trust:verify"),
    ("decode the manifest", "aot.runtime.fetch:decode_manifest"),
    ("select", "aot.runtime.pod:select"),
    ("hold in the cache", "aot.cache.local:LocalCache.hold"),
    ("hash the blobs", "aot.cache.local:LocalCache.verified_path"),
    ("check the guards", "aot.runtime.load:find_faults"),
    ("fingerprint", "aot.runtime.bind:fingerprint"),
    ("watch the module", "aot.runtime.bind:Watch.__init__"),
    ("watch the module", "aot.runtime.bind:Conduct.__init__"),
    ("map the library", "aot.runtime.container:open_interface"),
    ("create the models", "aot.runtime.interface:Interface.create"),
    ("read the constants", "aot.runtime.container:read_slots"),
    ("bind the weights", "aot.runtime.bind:plan_binding"),
    ("bind the weights", "aot.runtime.container:Container.bind"),
    ("write the guards", "aot.runtime.bind:compile_check"),
    ("bind the call", "aot.runtime.bind:bind_call"),
)
IMPORTS, REST, COLLECTIONS, CALL = "import aot", "the rest", "garbage collection", "first call"
ORDER = (IMPORTS, *dict.fromkeys(label for label, _ in STEPS), REST, COLLECTIONS, CALL)


class Steps:
    """A clock with one running step at a time; entering another one pauses it."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = (0.0, 0.0)

    def enter(self, label: str) -> None:
        self._charge()
        self._running.append(label)

    def leave(self) -> None:
        self._charge()
        self._running.pop()

    def told(self) -> dict[str, dict[str, float]]:
        """Seconds of each step, by clock: as `median` takes them."""
        return {"wall": self.wall, "cpu": self.cpu}

    def begin_call(self) -> None:
        """The load is over, and the first call begins."""
        self.leave()
        self.enter(CALL)

    def note_collection(self, phase: str, _: dict[str, int]) -> None:
        """What `gc.callbacks` calls."""
        if phase == "start":
            self.enter(COLLECTIONS)
        else:
            self.leave()

    def wrap(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(label)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed

    def _charge(self) -> None:
        now = time.perf_counter(), time.process_time()
        if self._running:
            self.wall[self._running[-1]] += now[0] - self._since[0]
            self.cpu[self._running[-1]] += now[1] - self._since[1]
        self._since = now


def main() -> int:
    options = _parse()
    words = ["ours", options.model, "--reference", options.reference, "--steps"]
    config = Config.from_environ()
    keys = ",".join(config.trusted_keys)
    with tempfile.TemporaryDirectory() as scratch:
        environ = clean_environ(
            Path(scratch), AOT_CACHE_DIR=str(config.cache_dir), AOT_TRUSTED_KEYS=keys, AOT_OFFLINE="1"
        )
        # The first fills the page cache and writes bytecode.
        runs = [start_child(words, environ).first["steps"] for _ in range(options.runs + 1)][1:]
    print(f"{'step':24} {'wall':>10} {'CPU':>10}   milliseconds, medians of {options.runs}")
    for label in ORDER:
        print(f"{label:24} {median(runs, 'wall', (label,)):10.2f} {median(runs, 'cpu', (label,)):10.2f}")
    load = tuple(label for label in ORDER if label != CALL)
    print(f"{'import and load':24} {median(runs, 'wall', load):10.2f} {median(runs, 'cpu', load):10.2f}")
    return 0


def median(runs: list[dict[str, dict[str, float]]], clock: str, labels: tuple[str, ...]) -> float:
    return 1e3 * statistics.median(sum(run[clock].get(label, 0.0) for label in labels) for run in runs)


def begin_steps() -> Steps:
    """Import `aot`, and watch what is loaded from now on; what is none of the steps counts as the rest of it."""
    steps = Steps()
    gc.callbacks.append(steps.note_collection)
    steps.enter(IMPORTS)
    import aot

    # Its functions come with their modules, at the first look.
    assert aot.load
    _wrap_all(steps)
    steps.leave()
    steps.enter(REST)
    return steps


def _wrap_all(steps: Steps) -> None:
    for label, place in STEPS:
        name, _, path = place.partition(":")
        owner: Any = importlib.import_module(name)
        *classes, last = path.split(".")
        for one in classes:
            owner = getattr(owner, one)
        # As it is stored: a class method must stay one.
        stored = vars(owner)[last]
        if isinstance(stored, classmethod):
            setattr(owner, last, classmethod(steps.wrap(label, stored.__func__)))
        else:
            setattr(owner, last, steps.wrap(label, stored))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=tuple(MODELS))
    parser.add_argument("reference")
    parser.add_argument("--runs", type=int, default=9)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
