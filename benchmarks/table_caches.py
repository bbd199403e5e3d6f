"""The tables of captured caches and of restored bytecode, and what of their bounds was missed."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Wanted of captures: starts against Mega-Cache's, of one model and mode, and bytes against the cache directory's.
MOST_OF_MEGA_CACHE, MOST_OF_DIRECTORY = 0.6, 0.2
BOUND_MODEL, BOUND_MODE = "decoder", "max-autotune"
MOST_WITH_BYTECODE = 0.8  # ours on restored bytecode against eager without any

Rows = Mapping[str, Mapping[str, Mapping[str, Any]]]


def render_caches(rows: Rows) -> Iterator[str]:
    """Lines of Markdown; none where neither row was measured."""
    captured = [of_model for of_model in rows.values() if "captured" in of_model]
    if captured:
        yield f"| {' | '.join(_CAPTURED)} |"
        yield "|---" * len(_CAPTURED) + "|"
    for of_model in captured:
        yield f"| {' | '.join(_captured_cells(of_model))} |"
    restored = [of_model["bytecode"] for of_model in rows.values() if "bytecode" in of_model]
    if restored:
        yield from (["", *_BYTECODE] if captured else _BYTECODE)
    for row in restored:
        cells = [row["title"], *(_median(row[name]) for name in ("eager_seconds", "seconds"))]
        cells += [f"{row['ratio_median']:.3f}", str(row["modules"]), str(row["own_bytecode"])]
        yield f"| {' | '.join(cells)} |"


_CAPTURED = (
    *("captured caches", "`aot run`, empty node", "Mega-Cache", "run / Mega-Cache", "hits, misses", "compilers"),
    *("bundle", "cache directory", "bundle / directory", "capture, and again by the worker"),
)
_BYTECODE = (
    "| bytecode | eager without | ours with restored | ratio | modules | of these with bytecode in the image |",
    "|---|---|---|---|---|---|",
)


def over_mega_cache(of_model: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Starts of the captured row over Mega-Cache's: those taken in turn with it, else the medians of both rows."""
    row = of_model["captured"]
    if "mega_cache_ratio" in row:
        return float(row["mega_cache_ratio"])
    beside = of_model.get("mega-cache")
    return statistics.median(row["seconds"]) / statistics.median(beside["seconds"]) if beside else None


def share_of_directory(row: Mapping[str, Any]) -> float | None:
    return row["bytes"] / row["directory_bytes"] if row["directory_bytes"] else None


def missed_caches(rows: Rows, mode: str) -> Iterator[str]:
    for model, of_model in rows.items():
        if row := of_model.get("captured"):
            ratio, share = over_mega_cache(of_model), share_of_directory(row)
            if (model, mode) == (BOUND_MODEL, BOUND_MODE) and ratio and ratio > MOST_OF_MEGA_CACHE:
                yield f"{model}: start captured / Mega-Cache {ratio:.2f}, wanted at most {MOST_OF_MEGA_CACHE}"
            if share and share > MOST_OF_DIRECTORY:
                yield f"{model}: captured / cache directory bytes {share:.2f}, wanted at most {MOST_OF_DIRECTORY}"
            if row["compilers"]:
                yield f"{model}: a start on captured caches ran {len(row['compilers'])} compiler processes, wanted none"
        if (row := of_model.get("bytecode")) and row["ratio_median"] > MOST_WITH_BYTECODE:
            ratio = row["ratio_median"]
            yield f"{model}: start with bytecode / eager without {ratio:.2f}, wanted at most {MOST_WITH_BYTECODE}"


def _captured_cells(of_model: Mapping[str, Mapping[str, Any]]) -> list[str]:
    row, ratio = of_model["captured"], over_mega_cache(of_model)
    beside = row.get("mega_cache_seconds") or of_model.get("mega-cache", {}).get("seconds", ())
    used, share = row["used"][-1], share_of_directory(row)
    return [
        row["title"],
        _median(row["seconds"]),
        _median(beside),
        "-" if ratio is None else f"{ratio:.3f}",
        f"{used.get('hits', '-')}, {used.get('misses', '-')}",
        str(len(row["compilers"])),
        f"{row['bytes'] / 1e6:.2f} MB",
        "-" if share is None else f"{row['directory_bytes'] / 1e6:.2f} MB",
        "-" if share is None else f"{share:.3f}",
        f"{row['capture_seconds']:.0f} s, {row['proof_wait_seconds']:.0f} s",
    ]


def _median(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} s" if seconds else "-"
