"""The README's table of a card, and what was missed, from one file of results.

`python -m benchmarks.table benchmarks/results/FILE.json [--mode max-autotune]` prints Markdown.
"""

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.card_regions import OF_REGIONS, REGIONS
from benchmarks.models import CARD
from benchmarks.table_caches import missed_caches, render_caches
from benchmarks.table_wanted import never_begun

STARTS = ("ours", "package", "warm", "mega-cache", "aot-compile", "jit", "jit-default")
# Wanted of a card: how it is called, the bound, and whether the figure must lie below or above it.
MOST_START, MOST_STEADY, MOST_BYTES, MOST_PEAK = 1.05, 1.0, 0.1, 1.02
MOST_STEADY_LAUNCHES, LEAST_GEOMEAN, LEAST_SPEED = 0.9, 1.7, 1.0
LEAST_CHEAPER, LEAST_KEPT, LEAST_SAVED = 7.5, 0.95, 0.8
# Rows that compare no starts.
OF_BUILDS = (*OF_REGIONS, "second-build")
# Rows in mode default of their own, which stand beside every mode.
OF_DEFAULT = (REGIONS, "jit-default")
# Programs whose calls are mostly launches, at batch 1.
LAUNCHES = ("llama-decode",)
# Graphs hold memory of their own, so the bound on memory is for the modes without.
WITHOUT_GRAPHS = ("default", "max-autotune-no-cudagraphs")

Rows = Mapping[str, Mapping[str, Mapping[str, Any]]]


def main() -> int:
    options = _parse()
    report = json.loads(options.file.read_text())
    for mode in [options.mode] if options.mode else modes_of(report):
        print("\n".join(render(report, mode)))
    return 0


def modes_of(report: Mapping[str, Any]) -> list[str]:
    """The modes that ours was built in, in the order of the file."""
    return list(dict.fromkeys(row["mode"] for row in report["rows"] if row["row"] == "ours"))


def render(report: Mapping[str, Any], mode: str) -> list[str]:
    """Lines of Markdown: what was measured on, starts, steady latencies, sizes, regions, and what was missed."""
    rows = rows_of(report, mode)
    lines = [f"Mode `{mode}`; {_where(report['host'])}.", *_elsewhere(report, mode), ""]
    lines += [*_starts(rows), "", *_steady(rows), "", *_sizes(rows)]
    lines += ["", *caches] if (caches := list(render_caches(rows))) else []
    for table in (list(_regions(report)), list(_second_builds(report, mode))):
        lines += ["", *table] if table else []
    found = [*missed(report, mode), *never_begun(report, mode)]
    lines += ["", "Missed:" if found else "Missed: nothing.", *([""] if found else []), *(f"* {one}" for one in found)]
    return lines


def _where(host: Mapping[str, Any]) -> str:
    return ", ".join(str(host[name]) for name in ("card", "cpu", "torch", "cuda", "python") if host.get(name))


def _elsewhere(report: Mapping[str, Any], mode: str) -> list[str]:
    """Rows that were measured on another host than the rest."""
    found = [row for row in report["rows"] if "host" in row and (row["mode"] == mode or row["row"] in OF_DEFAULT)]
    told = [f"{one['title']}, {one['row']}: {_where(one['host'])}, driver {one['host'].get('driver')}" for one in found]
    return ["", *(f"* {line}" for line in told)] if told else []


def rows_of(report: Mapping[str, Any], mode: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows by model, in the models' own order, and name. Those in mode default of their own stand beside every mode."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        if row["row"] not in OF_BUILDS and (row["mode"] == mode or row["row"] == "jit-default"):
            found.setdefault(row["model"], {})[row["row"]] = row
    names = list(CARD)
    return dict(sorted(found.items(), key=lambda one: names.index(one[0]) if one[0] in names else len(names)))


def speeds(rows: Rows) -> Iterator[tuple[str, int, float, float]]:
    """Model, batch, eager's and our median milliseconds, wherever ours was measured."""
    for model, of_model in rows.items():
        if steady := of_model.get("ours", {}).get("steady"):  # none where the row was cut off after its starts
            for eager, ours in zip(steady["eager"]["batches"], steady["this"]["batches"], strict=True):
                yield model, ours["batch"], eager["p50_ms"], ours["p50_ms"]


def geometric_mean(rows: Rows) -> float | None:
    ratios = [eager / ours for _, _, eager, ours in speeds(rows)]
    return statistics.geometric_mean(ratios) if ratios else None


def missed(report: Mapping[str, Any], mode: str) -> Iterator[str]:
    """Every bound that was not kept, with its figure, then the rows that have none."""
    rows = rows_of(report, mode)
    yield from _missed_starts(rows)
    yield from _missed_speeds(rows)
    yield from missed_caches(rows, mode)
    for model, of_model in rows.items():
        ratio = _over(_bytes(of_model, "ours"), _bytes(of_model, "mega-cache"))
        if ratio and ratio > MOST_BYTES:
            yield f"{model}: bundle / Mega-Cache bytes {ratio:.2f}, wanted at most {MOST_BYTES}"
        ratio = peak_ratio(of_model)
        if ratio and ratio > MOST_PEAK and mode in WITHOUT_GRAPHS:
            yield f"{model}: peak memory ours / eager {ratio:.3f}, wanted at most {MOST_PEAK}"
    for row in (one for one in report["rows"] if one["row"] == REGIONS):
        if row["times_cheaper"] < LEAST_CHEAPER:
            yield f"{row['model']}: regions compile {row['times_cheaper']:.1f}x cheaper, wanted {LEAST_CHEAPER}x"
        for batch, kept in row["speed_kept"].items():
            if kept < LEAST_KEPT:
                yield f"{row['model']}, batch {batch}: regions keep {kept:.0%} of the speed, wanted {LEAST_KEPT:.0%}"
    for row in _seconds_of(report, mode):
        if row["saved"] is not None and row["saved"] < LEAST_SAVED:
            yield f"{row['model']}: a second build saves {row['saved']:.0%} of tuning, wanted {LEAST_SAVED:.0%}"
    for one in report["not_reached"]:
        if one["mode"] in (mode, "default"):
            yield f"{one['model']}, {one['row']}: not measured: {one['reason'].splitlines()[-1][:200]}"


def peak_ratio(of_model: Mapping[str, Mapping[str, Any]]) -> float | None:
    steady = of_model.get("ours", {}).get("steady", {})
    return _over(*(steady.get(name, {}).get("peak_bytes") for name in ("this", "eager")))


def _missed_starts(rows: Rows) -> Iterator[str]:
    for model, of_model in rows.items():
        ours = of_model.get("ours")
        if ours and ours["ratio_median"] > MOST_START:
            least, most = ours["ratio_range"]
            pairs = f"{len(ours['seconds'])} pairs, {least:.2f} to {most:.2f}"
            yield f"{model}: start ours / eager {ours['ratio_median']:.3f} ({pairs}), wanted at most {MOST_START}"


def _missed_speeds(rows: Rows) -> Iterator[str]:
    for model, batch, eager, ours in speeds(rows):
        most = MOST_STEADY_LAUNCHES if model in LAUNCHES and batch == 1 else MOST_STEADY
        jit = _p50(rows[model], "jit", batch)
        if jit and ours / jit > most:
            yield f"{model}, batch {batch}: ours / JIT in this mode {ours / jit:.2f}, wanted at most {most}"
        if eager / ours < LEAST_SPEED:
            yield f"{model}, batch {batch}: eager / ours {eager / ours:.2f}, wanted at least {LEAST_SPEED}"
    mean = geometric_mean(rows)
    if mean and mean < LEAST_GEOMEAN:
        yield f"geometric mean of eager / ours {mean:.2f}, wanted at least {LEAST_GEOMEAN}"


def _starts(rows: Rows) -> Iterator[str]:
    yield "| start to first output | eager | ours / eager | added | " + " | ".join(STARTS) + " |"
    yield "|---" * (len(STARTS) + 4) + "|"
    for of_model in rows.values():
        ours = of_model.get("ours")
        eager = ours["eager_seconds"] if ours else ()
        added = f"{1e3 * ours['added_seconds']:+.0f} ms" if ours else "-"
        cells = [_seconds(eager), f"{ours['ratio_median']:.3f}" if ours else "-", added]
        cells += [_seconds(of_model.get(name, {}).get("seconds", ())) for name in STARTS]
        yield f"| {_title(of_model)} | {' | '.join(cells)} |"


def _steady(rows: Rows) -> Iterator[str]:
    yield "| p50 (p90) of a call | batch | eager | ours | JIT, this mode | JIT default | eager / ours | ours / JIT |"
    yield "|---|---|---|---|---|---|---|---|"
    for model, batch, eager, ours in speeds(rows):
        steady = rows[model]["ours"]["steady"]
        jit, plain = (_p50(rows[model], name, batch) for name in ("jit", "jit-default"))
        cells = [_latency(steady["eager"], batch), _latency(steady["this"], batch)]
        cells += ["-" if one is None else f"{one:.3f} ms" for one in (jit, plain)]
        cells += [f"{eager / ours:.2f}", "-" if jit is None else f"{ours / jit:.2f}"]
        yield f"| {_title(rows[model])} | {batch} | {' | '.join(cells)} |"
    mean = geometric_mean(rows)
    if mean:
        yield ""
        yield f"Geometric mean of eager / ours: {mean:.2f}.{_proven(rows)}"


def _proven(rows: Rows) -> str:
    """How often each way was the fastest when the card proved the bundles, which is what a pod follows."""
    proven = [of_model["ours"].get("speeds", ()) for of_model in rows.values() if "ours" in of_model]
    won = Counter(speed["winner"] for of_bundle in proven for speeds in of_bundle for speed in speeds)
    told = ", ".join(f"{name} at {won[name]}" for name in ("graphs", "compiled", "eager"))
    return f" Fastest at the proof, of {won.total()} points: {told}." if won else ""


def _sizes(rows: Rows) -> Iterator[str]:
    yield (
        "| shipped | bundle | package | Mega-Cache | cache directory | bundle / Mega-Cache | peak memory ours / eager "
        "| max error ours (eager) | processes | compiler modules |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for of_model in rows.values():
        ours, cells = of_model.get("ours"), []
        for name in ("ours", "package", "mega-cache", "warm"):
            size = _bytes(of_model, name)
            cells.append("-" if size is None else f"{size / 1e6:.2f} MB")
        for ratio in (_over(_bytes(of_model, "ours"), _bytes(of_model, "mega-cache")), peak_ratio(of_model)):
            cells.append("-" if ratio is None else f"{ratio:.3f}")
        if ours and "steady" in ours:
            errors = [max(one[name] for one in ours["steady"]["this"]["batches"]) for name in ("error", "eager_error")]
            cells.append(f"{errors[0]:.1e} ({errors[1]:.1e})")
            cells += [str(len(ours["processes"])), str(ours["compiler_modules_beyond_eager"])]
        yield f"| {_title(of_model)} | {' | '.join(cells + ['-'] * (9 - len(cells)))} |"


def _regions(report: Mapping[str, Any]) -> Iterator[str]:
    rows = [row for row in report["rows"] if row["row"] in OF_REGIONS]
    if not rows:
        return
    yield "| regions | mode | compile whole | compile regions | cheaper | batch | call whole | regions | eager |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        spent, steady = row["compile_seconds"], row["steady"]
        cells = [row["mode"], f"{spent['whole']:.1f} s", f"{spent['auto']:.1f} s", f"{row['times_cheaper']:.1f}x"]
        for calls in zip(*(steady[way]["batches"] for way in ("whole", "auto", "eager")), strict=True):
            spelled = [f"{calls[0]['batch']}", *(f"{one['p50_ms']:.3f} ms" for one in calls)]
            yield f"| {row['title']} | {' | '.join([*cells, *spelled])} |"


def _seconds_of(report: Mapping[str, Any], mode: str) -> list[Mapping[str, Any]]:
    return [row for row in report["rows"] if row["row"] == "second-build" and row["mode"] == mode]


def _second_builds(report: Mapping[str, Any], mode: str) -> Iterator[str]:
    rows = _seconds_of(report, mode)
    if not rows:
        return
    yield "| width of one layer changed | tuning, first build | changed, afresh | changed, seeded | saved | reused |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        cells = [f"{row['tuning_seconds'][way]:.1f} s" for way in ("first", "fresh", "again")]
        cells.append("-" if row["saved"] is None else f"{row['saved']:.0%}")
        again = row["builds"]["again"]
        yield f"| {row['title']} | {' | '.join(cells)} | {again['reused']} of {again['tuned']} |"


def _title(of_model: Mapping[str, Mapping[str, Any]]) -> str:
    return str(next(iter(of_model.values()))["title"])


def _seconds(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.2f} s" if found else "-"


def _latency(steady: Mapping[str, Any], batch: int) -> str:
    (found,) = (one for one in steady["batches"] if one["batch"] == batch)
    return f"{found['p50_ms']:.3f} ({found['p90_ms']:.3f}) ms"


def _p50(of_model: Mapping[str, Mapping[str, Any]], row: str, batch: int) -> float | None:
    batches = of_model.get(row, {}).get("steady", {}).get("this", {}).get("batches", ())
    return next((float(one["p50_ms"]) for one in batches if one["batch"] == batch), None)


def _bytes(of_model: Mapping[str, Mapping[str, Any]], row: str) -> int | None:
    """What a row ships; Mega-Cache's blob may have been written beside captured caches instead."""
    beside = of_model.get("captured", {}).get("mega_cache_bytes") if row == "mega-cache" else None
    return of_model.get(row, {}).get("bytes") or beside


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--mode", default="", help="every mode of the file when left out")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
