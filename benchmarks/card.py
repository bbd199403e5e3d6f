"""Everything on a card, in one command: the GPU tests, then models through a service against every other way to start.

`python -m benchmarks.card [--models decoder,llama-decode] [--rows ours,package,warm] [--seconds 500] [--data DIR]`
writes `benchmarks/results/<card>-<torch>.json` after each row, and in the midst of it once its starts are measured: a
call that is ended from outside loses latencies at most. A row replaces the same row of the same model and mode
there and leaves all others, so that several short calls make one file; `--data` keeps builds, checkpoints and compiler
caches between calls on one machine. When the seconds are over no row is begun any more, and those that were not
reached are listed in the file. `--device cpu --tiny` tries the whole with few and narrow layers. Peak memory is bounded
for modes without graphs: `--rows ours --mode max-autotune-no-cudagraphs` beside the default of `--mode`, max-autotune.
Compiling is what takes long: `jit` compiles each batch once, `captured` twice, here and on the worker. `--batches 1`
halves that, and rows of regions alone take any: `--rows regions --batches 1,64` (in place of the row that is there);
`--in-turn` has `captured` take Mega-Cache starts of its own, of the same graphs, and needs no other row. Two cards of
one host are measured at once by two calls, each with a CUDA_VISIBLE_DEVICES, `--data` and `--label` of its own;
`benchmarks.merge` makes one file of both. `--only-build` leaves in `--data` what `ours` starts and measures nothing:
several calls of it, each with its own `--data`, share a machine that is to be quiet afterwards.

Rows, most wanted first; each has an eager baseline of its own, taken in turn with it:
    ours         a bundle that was built by the service and pulled; the registry is not asked
    jit          torch.compile on empty caches, once; makes what `warm` and `mega-cache` start from
    warm         torch.compile on the compiler cache that `jit` has left
    mega-cache   torch.compile on empty caches and the blob that `jit` has saved
    captured     the same on compiler caches that `aot capture` made and a worker made again: `aot run` on an empty node
    bytecode     ours on restored bytecode, and eager without any, in an image that is made to have none
    jit-default  torch.compile in mode default on empty caches, once
    package      torch's own loader of packages compiled with the same options; its build takes minutes
    aot-compile  a function that torch.compile wrote with its guards
    second-build of decoder and resnet50: tuning's seconds that are saved after one layer's width was changed
    load         what each step of `aot.load` takes
    regions      of decoder-32 and dit: whole and regions in mode default, seconds of the compile, and calls
    regions-tuned the same in the mode of --mode, in which blocks that are equal share their tuning on either way
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.card_bytecode import BYTECODE, measure_bytecode
from benchmarks.card_captured import CAPTURED, measure_captured
from benchmarks.card_host import card_host, label_of, run_tests
from benchmarks.card_load import LOAD, measure_load
from benchmarks.card_regions import OF_REGIONS, REGIONS, measure_regions
from benchmarks.card_rows import ROWS, Bench, NotReached, measure_row
from benchmarks.card_width import SECOND, SPACES, measure_width
from benchmarks.cold_start import RESULTS
from benchmarks.merge import key_of, on_host
from benchmarks.models import BATCHES, CARD, DEEP
from benchmarks.service import running_service
from benchmarks.starts import ROOT
from benchmarks.table import rows_of
from benchmarks.table_caches import over_mega_cache

# Rows that time starts; those that build for minutes and win nothing come last.
STARTED = (*ROWS[:4], CAPTURED, BYTECODE, *ROWS[4:])
EVERY = (*STARTED, LOAD, SECOND, *OF_REGIONS)
# Models whose source has a factory `changed` as well.
CHANGED = ("decoder", "resnet50")


def main() -> int:
    options = _parse()
    ending = time.monotonic() + options.seconds
    host = card_host(options.device)
    label = options.label or label_of(host)
    path = RESULTS / f"{label}.json"
    RESULTS.mkdir(exist_ok=True)
    report = on_host(read_report(path), host)
    data = options.data or Path(tempfile.mkdtemp(prefix="aot-card-"))
    data.mkdir(parents=True, exist_ok=True)
    try:
        if options.tests and not options.only_build:
            report["tests"] = run_tests(RESULTS / f"{label}-tests.txt")
        with running_service(data / "service", namespaces=SPACES) as service:
            service.cancel_live()
            bench = Bench(service, data, options)
            if options.only_build:
                return build_all(bench)
            for name, row in plan(options.models, options.rows):
                take(report, bench, name, row, ending=ending, write=lambda: write_report(report, path))
    finally:
        if not options.data:
            shutil.rmtree(data, ignore_errors=True)
    missed = report["not_reached"]
    print(f"{len(report['rows'])} rows in {path.name}; not reached: {len(missed)}", file=sys.stderr)
    return 0


def build_all(bench: Bench) -> int:
    """Build what `ours` starts, of every model; return how many could not be built, each named on stderr."""
    failed = 0
    for model in (CARD[name] for name in bench.options.models if name in CARD):
        try:
            built = bench.build(model, bench.options.mode)
        except subprocess.CalledProcessError as error:
            # The next one may be fine; `aot build` has said what was wrong with this one.
            print(f"{model.name}: not built: {error}", file=sys.stderr)
            failed += 1
        else:
            print(f"{model.name}: built in {built['build_seconds']:.0f} s", file=sys.stderr)
    return failed


def plan(models: list[str], rows: list[str]) -> list[tuple[str, str]]:
    """Every row of a model before the next model; then second builds; regions last, of models that have the blocks."""
    taken = [(name, row) for name in models if name in CARD for row in STARTED if row in rows]
    taken += [(name, LOAD) for name in models if name in CARD and LOAD in rows]
    taken += [(name, SECOND) for name in CHANGED if SECOND in rows and name in models]
    return taken + [(name, row) for row in OF_REGIONS for name in DEEP if row in rows and name in models]


def take(
    report: dict[str, Any], bench: Bench, name: str, row: str, *, ending: float, write: Callable[[], None]
) -> None:
    """Measure one row and put it into the report; one that fails or is not reached is listed with its reason."""
    mode = "default" if row in (REGIONS, "jit-default") else bench.options.mode
    key = {"model": name, "mode": mode, "row": row}
    started = time.monotonic()

    def timed(found: dict[str, Any]) -> dict[str, Any]:
        """With when it was taken, by which `benchmarks.merge` knows the newest."""
        return {**key, "taken": datetime.now(UTC).isoformat(timespec="seconds"), **found}

    def full(found: dict[str, Any]) -> dict[str, Any]:
        title = {**DEEP, **CARD}[name].title
        return timed({"title": title, "took_seconds": round(time.monotonic() - started, 1), **found})

    def keep(found: dict[str, Any]) -> None:
        """What there is of a row that may be cut off; a whole one of an earlier call is worth more."""
        put(report["not_reached"], timed({"reason": "cut off after its starts, before its latencies"}))
        if not any("steady" in one for one in report["rows"] if key_of(one) == key_of(key)):
            put(report["rows"], full(found))
        write()

    try:
        if started >= ending:
            raise NotReached("the time was over")
        match row:
            case "regions" | "regions-tuned":
                found = measure_regions(bench, DEEP[name], mode)
            case "load":
                found = measure_load(bench, CARD[name])
            case "second-build":
                found = measure_width(bench, CARD[name])
            case "captured":
                found = measure_captured(bench, CARD[name], keep=keep)
            case "bytecode":
                found = measure_bytecode(bench, CARD[name], keep=keep)
            case _:
                found = measure_row(bench, CARD[name], row, keep=keep)
    except Exception as error:
        # One row that fails, of whatever cause, keeps no other from being measured; the reason stands in the results.
        reason = _placeless(f"{type(error).__name__}: {error}", bench.data)[-2000:]
        print(f"{name} {row}: {reason}", file=sys.stderr)
        put(report["not_reached"], timed({"reason": reason}))
    else:
        put(report["rows"], found := full(found))
        if row == CAPTURED and (ratio := over_mega_cache(rows_of(report, mode)[name])):
            found["summary"]["over_mega_cache"] = round(ratio, 3)
        report["not_reached"] = [one for one in report["not_reached"] if key_of(one) != key_of(key)]
        print(f"{name} {row}: {json.dumps(found.get('summary'))} in {found['took_seconds']} s", file=sys.stderr)
    write()


def write_report(report: dict[str, Any], path: Path) -> None:
    """In one step: whoever ends this call must not leave half a file."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1) + "\n")
    part.replace(path)


def put(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Add the row, in place of one of the same model, mode and name."""
    rows[:] = [one for one in rows if key_of(one) != key_of(row)] + [row]


def read_report(path: Path) -> dict[str, Any]:
    """What earlier calls have left, or an empty report. A file of another form is begun anew."""
    found = json.loads(path.read_text()) if path.is_file() else {}
    return found if "rows" in found else {"rows": [], "not_reached": []}


def _placeless(text: str, data: Path) -> str:
    """Results are published: they name no directory of the machine that they come from."""
    for place, name in ((data, "DATA"), (sys.prefix, "PREFIX"), (ROOT, "."), (Path.home(), "~")):
        text = text.replace(str(place), name)
    return text


def unknown_batches(batches: Sequence[str], rows: Sequence[str]) -> list[str]:
    """Return those of `batches` that there is no program for: rows of regions build one of any batch."""
    anyhow = set(rows) <= set(OF_REGIONS)
    return [one for one in batches if one not in BATCHES and not (anyhow and one.isdecimal() and int(one))]


def _words(text: str) -> list[str]:
    return text.split(",")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=_words, default=list(CARD))
    parser.add_argument("--rows", type=_words, default=list(STARTED))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--mode", default="max-autotune")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--measure", type=float, default=2.0, help="seconds of calls for each batch")
    parser.add_argument("--batches", default="1,16", help="the first is the one that a start is timed with")
    parser.add_argument("--seconds", type=float, default=86400.0)
    parser.add_argument("--data", type=Path, help="kept; a temporary directory when left out")
    parser.add_argument("--label", default="")
    parser.add_argument("--in-turn", action="store_true", help="captured: take Mega-Cache starts of its own in turn")
    parser.add_argument("--only-build", action="store_true", help="build what `ours` starts for a later call on --data")
    parser.add_argument("--no-tests", dest="tests", action="store_false")
    options = parser.parse_args()
    if unknown := [one for one in options.rows if one not in EVERY]:
        parser.error(f"wanted some of {', '.join(EVERY)}, found {unknown[0]!r}")
    if unknown := [one for one in options.models if one not in {**CARD, **DEEP}]:
        parser.error(f"wanted some of {', '.join({**CARD, **DEEP})}, found {unknown[0]!r}")
    if unknown := unknown_batches(_words(options.batches), options.rows):
        # Of another there is no program: it would be found out after the build.
        parser.error(f"wanted batches of {', '.join(BATCHES)}, found {unknown[0]!r}")
    if options.only_build and not options.data:
        parser.error("wanted --data with --only-build: without it what was built would be gone at the end")
    return options


if __name__ == "__main__":
    sys.exit(main())
