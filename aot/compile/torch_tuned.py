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
    Beside one that is marked no other is tried, as torch 2.11 would, whose search has measured that one already.
    """
    from torch._inductor.runtime import triton_heuristics

    _seed(measured)
    ends = _Ends(measured)

    def known_or_scaled(scale: Callable[..., Any]) -> Callable[..., Any]:
        # The last step of a tuner that is made ready.
        def add_launchers(tuner: Any, *args: Any, **named: Any) -> Any:
            match tuner.launchers:
                case [launcher] if ends.mark(tuner, launcher):
                    return None
            return scale(tuner, *args, **named)

        return add_launchers

    def known_or(search: Callable[..., Any]) -> Callable[..., Any]:
        def descend(tuner: Any, launcher: Any, *args: Any, **named: Any) -> Any:
            if ends.mark(tuner, launcher):
                return launcher
            found = search(tuner, launcher, *args, **named)
            ends.note(tuner)
            return found

        return descend

    tuners = triton_heuristics.CachingAutotuner
    ready, search = "_dynamic_scale_rblock", "coordinate_descent_tuning"
    with wrapped(tuners, ready, known_or_scaled), wrapped(tuners, search, known_or):
        yield ends.taken
    ends.disclaim_others()


class _Ends:
    """Where searches have ended, those of earlier builds and of this one, by the place that Inductor keeps them at.

    Not as the files there say: Inductor writes in them as well what a search is begun from, torch 2.13 as if that were
    its end.
    """

    def __init__(self, measured: Measured) -> None:
        self.taken: set[str] = set()  # from earlier builds
        self._earlier = set(measured.configurations)
        self._ends = dict(measured.configurations)

    def mark(self, tuner: Any, launcher: Any) -> bool:
        """Mark the configuration of `launcher` so that no search is begun from it, if one has ended there."""
        path, configs_hash = _kept_at(tuner)
        if path is None:
            return False
        place = _place_of(path)
        end = self._ends.get(place)
        if end is None or not _is_end(json.loads(end), launcher.config, configs_hash):
            return False
        launcher.config.found_by_coordesc = True
        # What torch 2.13 chooses the parts of a combined kernel by; a search comes after that.
        launcher.config.found_by_combo_autotune = True
        with contextlib.suppress(OSError):  # it serves later builds alone
            _write(path, end)
        if place in self._earlier:
            self.taken.add(place)
        return True

    def note(self, tuner: Any) -> None:
        """A search for this kernel has ended, or torch makes none for one of its kind."""
        path, _ = _kept_at(tuner)
        with contextlib.suppress(OSError):
            if path is not None and path.is_file():
                self._ends[place := _place_of(path)] = path.read_text()
                self._earlier.discard(place)

    def disclaim_others(self) -> None:
        """Have what is written as an end, and is none, say so: a later build would believe it."""
        for path in _kept():
            # What a source has left there is not believed by those who read it.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                text = path.read_text()
                found = json.loads(text)
                if found.get("found_by_coordesc") and self._ends.get(_place_of(path)) != text:
                    _write(path, json.dumps({**found, "found_by_coordesc": False}))


def _kept_at(tuner: Any) -> tuple[Path | None, str]:
    """Where the best configuration of a kernel is kept, None where nowhere; and which ones its tuner began from."""
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    cache = getattr(tuner.save_cache_hook, "__self__", None)
    if not isinstance(cache, AutotuneCache) or not cache.local_cache:
        return None, ""
    return Path(cache.local_cache[1]), cache.configs_hash


def _kept() -> list[Path]:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return sorted(Path(cache_dir()).glob("*/*.best_config"))


def _place_of(path: Path) -> str:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return os.path.relpath(path, cache_dir())


def _is_end(kept: Mapping[str, Any], config: Any, configs_hash: str) -> bool:
    """Whether what is kept is this configuration, of the same choice, and the end of a search."""
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
    from torch._inductor.codecache import write_atomic

    if not path.is_file() or path.read_text() != text:
        write_atomic(str(path), text, make_dirs=True)


def collect_measured() -> Measured:
    """Return what Inductor has now, what it was given included."""
    configurations = {_place_of(path): path.read_text() for path in _kept()}
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
