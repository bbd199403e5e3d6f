"""Inductor's caches of measurements: filled before a build, and read after it. Runs in the compile child."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aot.compile.tuned import Measured, Timings


@contextlib.contextmanager
def seeded(measured: Measured) -> Iterator[set[str]]:
    """Inside the block Inductor goes by `measured`; yields the configurations that it has taken, by their place.

    Inductor finds what it would have kept itself, but of a configuration that is the end of a search it forgets that:
    the mark is an attribute of Triton's Config, and Config leaves it out when a compile worker pickles it (torch 2.11
    and 2.13, Triton 3.6 to 3.9). Every kernel would be searched again from where the search before has ended. So it
    is marked again once it is here, and looked for once more before a search: an equal kernel's may have ended since.
    """
    from torch._inductor.runtime import triton_heuristics

    _seed(measured)
    ends = _Ends(measured)

    def marked_after(prepare: Callable[..., Any]) -> Callable[..., Any]:
        def precompile(tuner: Any, *args: Any, **named: Any) -> Any:
            prepared = prepare(tuner, *args, **named)
            if len(tuner.launchers) == 1:
                ends.mark(tuner, tuner.launchers[0])
            return prepared

        return precompile

    def known_or(search: Callable[..., Any]) -> Callable[..., Any]:
        def descend(tuner: Any, launcher: Any, *args: Any, **named: Any) -> Any:
            if ends.mark(tuner, launcher):
                return launcher
            found = search(tuner, launcher, *args, **named)
            ends.note(tuner)
            return found

        return descend

    tuners = triton_heuristics.CachingAutotuner
    with wrapped(tuners, "precompile", marked_after), wrapped(tuners, "coordinate_descent_tuning", known_or):
        yield ends.taken


class _Ends:
    """Where searches have ended, those of earlier builds and of this one, by the place that Inductor keeps them at.

    Not as the files there say: Inductor writes in them as well what a search is begun from, torch 2.13 as if that were
    its end, torch 2.11 over an end that it has compared with one configuration more.
    """

    def __init__(self, measured: Measured) -> None:
        self.taken: set[str] = set()  # from earlier builds
        self._earlier = measured.configurations
        self._ends = dict(measured.configurations)

    def mark(self, tuner: Any, launcher: Any) -> bool:
        """Mark the configuration of `launcher` so that no search is begun from it, if one has ended there."""
        path, configs_hash = _kept_at(tuner)
        end = self._ends.get(place := _place_of(path)) if path is not None else None
        if path is None or end is None or not _is_end(json.loads(end), launcher.config, configs_hash):
            return False
        launcher.config.found_by_coordesc = True
        _write(path, end)  # or a later build would not find it
        if end == self._earlier.get(place):
            self.taken.add(place)
        return True

    def note(self, tuner: Any) -> None:
        """A search for this kernel has ended."""
        path, _ = _kept_at(tuner)
        if path is not None and path.is_file():
            self._ends[_place_of(path)] = path.read_text()


def _kept_at(tuner: Any) -> tuple[Path | None, str]:
    """Where the best configuration of a kernel is kept, None where nowhere; and which ones its tuner began from."""
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    cache = getattr(tuner.save_cache_hook, "__self__", None)
    if not isinstance(cache, AutotuneCache) or not cache.local_cache:
        return None, ""
    return Path(cache.local_cache[1]), cache.configs_hash


def _place_of(path: Path) -> str:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return os.path.relpath(path, cache_dir())


def _is_end(kept: Mapping[str, Any], config: Any, configs_hash: str) -> bool:
    """As Inductor compares them, in `read_best` of torch/_inductor/runtime/autotune_cache.py."""
    wanted = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    wanted |= {"configs_hash": configs_hash, "found_by_coordesc": True}
    return all(kept.get(name) == value for name, value in wanted.items())


@contextlib.contextmanager
def wrapped(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Inside the block `owner` has `wrap` of its own function `name`; a release without one is left alone."""
    original = getattr(owner, name, None)
    if original is None:
        yield
        return
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _seed(measured: Measured) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    if measured.timings:
        _cache().update_local_cache(_with_infinity(measured.timings))
    for place, text in measured.configurations.items():
        _write(Path(cache_dir()) / place, text)


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def collect_measured() -> Measured:
    """Return what Inductor has now, what it was given included."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    root = Path(cache_dir())
    configurations = {str(path.relative_to(root)): path.read_text() for path in sorted(root.glob("*/*.best_config"))}
    return Measured(timings=_without_infinity(_cache().get_local_cache()), configurations=configurations)


def measurements_written() -> int:
    """A number that changes whenever a product was measured, and not where a measurement was found."""
    path = _cache().get_local_cache_path()
    return path.stat().st_mtime_ns if path.is_file() else 0


def _cache():
    from torch._inductor.codecache import PersistentCache

    return PersistentCache()


def _with_infinity(timings: Timings) -> dict[str, object]:
    return json.loads(json.dumps(timings).replace("null", "Infinity"))


def _without_infinity(timings: dict[str, object]) -> Timings:
    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {str(key): plain(one) for key, one in value.items()}
        assert isinstance(value, int | float)
        return float(value) if math.isfinite(value) else None

    return plain(timings)  # type: ignore[return-value]
