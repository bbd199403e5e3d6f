"""Inductor's caches of measurements: filled before a build, and read after it. Runs in the compile child."""

import json
import math
from pathlib import Path

from aot.compile.tuned import Measured, Timings


def seed_measured(measured: Measured) -> None:
    """Let Inductor find `measured` where it would have kept it itself."""
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
