"""Inductor's caches of measurements: filled before a build, and read after it. Runs in the compile child."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator
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
    taken: set[str] = set()

    def has_ended(autotuner: Any, launcher: Any) -> bool:
        place = _end_of_search(autotuner, launcher.config)
        if place is None:
            return False
        launcher.config.found_by_coordesc = True
        taken.update({place} & measured.configurations.keys())
        return True

    def marked_by(make: Callable[..., Any]) -> Callable[..., Any]:
        def make_launchers(autotuner: Any, *args: Any, **named: Any) -> Any:
            made = make(autotuner, *args, **named)
            if len(autotuner.launchers) == 1:
                has_ended(autotuner, autotuner.launchers[0])
            return made

        return make_launchers

    def known_or(search: Callable[..., Any]) -> Callable[..., Any]:
        def descend(autotuner: Any, launcher: Any, *args: Any, **named: Any) -> Any:
            return launcher if has_ended(autotuner, launcher) else search(autotuner, launcher, *args, **named)

        return descend

    autotuner = triton_heuristics.CachingAutotuner
    with wrapped(autotuner, "_make_launchers", marked_by), wrapped(autotuner, "coordinate_descent_tuning", known_or):
        yield taken


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


def _end_of_search(autotuner: Any, config: Any) -> str | None:
    """Where it is written down that a search for this kernel has ended with `config`; None where it has not."""
    from torch._inductor.runtime import autotune_cache, cache_dir_utils
    from torch._inductor.runtime.runtime_utils import triton_config_to_hashable

    cache = getattr(autotuner.save_cache_hook, "__self__", None)
    if not isinstance(cache, autotune_cache.AutotuneCache) or not cache.local_cache:
        return None
    best = cache.read_best(autotuner.inductor_meta, [config])
    if not getattr(best, "found_by_coordesc", False):
        return None
    if triton_config_to_hashable(best) != triton_config_to_hashable(config):
        return None
    return os.path.relpath(cache.local_cache[1], cache_dir_utils.cache_dir())


def _seed(measured: Measured) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    if measured.timings:
        _cache().update_local_cache(_with_infinity(measured.timings))
    for place, text in measured.configurations.items():
        path = Path(cache_dir()) / place
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
