"""The rows of one model on a card: each way to start it beside eager, in fresh processes, taken in turn.

A row has, for itself and for the eager baseline of its own: seconds to first output of every start, latencies at each
batch, largest error to float64 and peak memory of the device; and for itself the programs that were started, compiler
modules beyond eager's, and the bytes that it ships.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot.schema.manifest import decode_manifest
from aot.schema.measured import contest_of, tuned_kernels
from benchmarks.checkpoint import write_checkpoint
from benchmarks.cold_start import compare
from benchmarks.models import Model
from benchmarks.service import Service
from benchmarks.starts import Start, clean_environ, count_processes, start_child

ROWS = ("ours", "jit", "warm", "mega-cache", "jit-default", "package", "aot-compile")
Keep = Callable[[dict[str, Any]], None]
Ways = Mapping[str, Callable[..., Start]]
_ONCE = ("jit", "jit-default")  # on empty caches: a minute or more each
_OF_JIT = ("warm", "mega-cache")


class NotReached(Exception):
    """The row was not begun, or has nothing to begin with."""


@dataclass
class Bench:
    """What all rows share: the service, where files lie, and what was asked for."""

    service: Service
    data: Path
    options: argparse.Namespace
    warmed: set[str] = field(default_factory=set)  # models that were started: bytecode and page cache are there

    @property
    def runs(self) -> Path:
        return self.data / "runs"

    @property
    def first_batch(self) -> str:
        """The one that a start is timed with."""
        return self.options.batches.partition(",")[0]

    def words(self, model: Model, *, batches: str = "") -> list[str]:
        """The arguments that every child of this model has, after the route."""
        found = [model.name, "--device", self.options.device, "--checkpoint", str(self.checkpoint(model))]
        return [*found, "--batches", batches or self.options.batches, *(["--tiny"] if self.options.tiny else [])]

    def checkpoint(self, model: Model) -> Path:
        """The model's weights, written once; programs of one module share a file."""
        size = model.size(tiny=self.options.tiny)
        path = self.data / "weights" / f"{model.source.name}-{size}.safetensors"
        if not path.is_file():
            import torch

            path.parent.mkdir(parents=True, exist_ok=True)
            dtype = torch.float32 if self.options.tiny else torch.bfloat16
            write_checkpoint(model.import_module().build_module(size=size).to(dtype), path)
        return path

    def build(self, model: Model, mode: str, *extra: str, name: str = "") -> dict[str, Any]:
        """Build through the service, pull, and return the reference, what the build took and what it weighs."""
        name = name or f"{model.name}-{mode}"
        # Kept with the data: asked again, the registry answers with what it has, and that is no build's time.
        kept = self.data / "builds" / f"{name.replace('/', '.')}.json"
        if kept.is_file():
            return json.loads(kept.read_text())
        started = time.perf_counter()
        entry = model.entry_of(tiny=self.options.tiny)
        words = ["build", f"{name}:card", "--source", str(model.source), "--entry", entry, "--mode", mode]
        answer = json.loads(self.service.aot(*words, *extra, "--json"))
        seconds = time.perf_counter() - started
        space = "" if "/" in name else "default/"
        reference = f"{space}{name}@{answer['bundle']}"
        (signed,) = json.loads(self.service.aot("show", reference, "--json"))
        self.service.aot("pull", reference, quiet=True)
        built = {"reference": reference, "build_seconds": seconds, **built_of(signed["manifest"])}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(built))
        return built

    def ours_environ(self, place: Path) -> dict[str, str]:
        return clean_environ(place, **{**self.service.environ, "AOT_URL": "", "AOT_OFFLINE": "1"})


@dataclass(frozen=True)
class _Way:
    """How one row starts: the child's words, an environment for each start, what it ships, and more to report."""

    words: Sequence[str]
    environ: Callable[[], dict[str, str]]
    shipped_bytes: Callable[[], int | None]
    more: dict[str, Any] = field(default_factory=dict)


def measure_row(bench: Bench, model: Model, row: str, *, keep: Keep = lambda found: None) -> dict[str, Any]:
    """Pairs of eager and the row, both measured in the last; `keep` gets the row before that, latencies wanting.

    Raises NotReached where what it starts from is missing.
    """
    way = _way(bench, model, row)
    ways: Ways = {
        "eager": lambda *more: start_eager(bench, model, *more),
        "this": lambda *more: start_child([*way.words, *more], way.environ()),
    }
    counted, turns = None, []
    if row in _ONCE:
        if model.name not in bench.warmed:
            ways["eager"]()
    else:
        # The first turn fills the page cache and writes bytecode, so it is not timed: its programs are counted.
        ways["eager"]()
        counted = [Path(program).name for program in count_processes(way.words, way.environ())]
        for number in range(1, bench.options.pairs):
            print(f"{model.name} {row}: pair {number} of {bench.options.pairs}", file=sys.stderr)
            turns.append(take_turn(ways, number))
        if turns:
            keep(_found(way, turns))
    bench.warmed.add(model.name)
    turns.append(take_turn(ways, len(turns) + 1, *_measuring(bench, row)))
    found, steady = _found(way, turns), steady_of(turns[-1]["eager"], turns[-1]["this"])
    return found | steady | {"processes": counted, "summary": found["summary"] | steady["summary"]}


def start_eager(bench: Bench, model: Model, *more: str, **variables: str) -> Start:
    return start_child(["eager", *bench.words(model), *more], {**clean_environ(bench.runs / "eager"), **variables})


def take_turns(
    ways: Ways, turns: int, *, title: str, keep: Callable[[list[dict[str, Start]]], None]
) -> list[dict[str, Start]]:
    """So many turns, each told on stderr; `keep` gets all that there are after each."""
    taken: list[dict[str, Start]] = []
    for number in range(1, turns + 1):
        print(f"{title} {number} of {turns}", file=sys.stderr)
        taken.append(take_turn(ways, number))
        keep(taken)
    return taken


def take_turn(ways: Ways, number: int, *more: str) -> dict[str, Start]:
    """One start of every way; which one is first changes with `number`, so that a machine that warms up favours none.

    What a start does by `more` comes after its first output, and is in nobody's time.
    """
    names, shift = list(ways), number % len(ways)
    return {name: ways[name](*more) for name in (*names[shift:], *names[:shift])}


def _measuring(bench: Bench, row: str) -> list[str]:
    """What the last start of a row does once its time is taken.

    Rows that start from what `jit` has compiled run its code: they measure the first batch, and no errors again.
    """
    words = ["--measure", str(bench.options.measure)]
    return [*words, "--no-errors", "--batches", bench.first_batch] if row in _OF_JIT else words


def _found(way: "_Way", turns: Sequence[dict[str, Start]]) -> dict[str, Any]:
    eager, this = ([turn[name] for turn in turns] for name in ("eager", "this"))
    return starts_of(eager, this) | {"bytes": way.shipped_bytes()} | way.more


def starts_of(eager: list[Start], this: list[Start]) -> dict[str, Any]:
    compared = compare([one.seconds for one in this], [one.seconds for one in eager])
    extra = sorted(set(this[0].first["modules"]) - set(eager[0].first["modules"]))
    summary = {"start_ratio": round(compared["ratio_median"], 3), "added_seconds": round(compared["added_seconds"], 3)}
    return {
        "seconds": compared.pop("ours_seconds"),
        **compared,
        "spans": spans_of(this),
        "eager_spans": spans_of(eager),
        "compiler_modules_beyond_eager": len(extra),
        "summary": summary,
    }


def spans_of(starts: Sequence[Start]) -> dict[str, float]:
    """The median seconds of each part of a start: imports, torch, the model with its weights, load, first call."""
    named = [one.first["seconds"] for one in starts]
    return {name: round(statistics.median(one[name] for one in named), 4) for name in named[0]}


def steady_of(baseline: Start, measured: Start) -> dict[str, Any]:
    """Latencies and peak memory of both; the ratio of peaks where the device counts its memory."""
    eager, this = baseline.measured, measured.measured
    speeds = {
        f"{one['batch']}": round(other["p50_ms"] / one["p50_ms"], 3)
        for one, other in zip(this["batches"], eager["batches"], strict=False)
    }
    counted = this.get("peak_bytes") and eager.get("peak_bytes")
    return {
        "steady": {"eager": eager, "this": this},
        "counters": measured.done["counters"],
        "reasons": measured.done["reasons"],
        "summary": {
            "eager_over_this": speeds,
            "peak_ratio": round(this["peak_bytes"] / eager["peak_bytes"], 4) if counted else None,
        },
    }


def _way(bench: Bench, model: Model, row: str) -> _Way:
    mode, place = bench.options.mode, bench.runs / f"{model.name}-{bench.options.mode}"
    words = [*bench.words(model), "--mode", mode]
    tuned, blob = place / "jit", place / "mega-cache.bin"
    match row:
        case "ours":
            built = bench.build(model, mode)
            ours = ["ours", *words, "--reference", built["reference"]]
            return _Way(ours, lambda: bench.ours_environ(place / "ours"), lambda: built["bundle_bytes"], built)
        case "package":
            return _package(bench, words, place)
        case "jit":
            for old in (tuned, blob):
                shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
            save = ["save-mega-cache", *words, "--file", str(blob)]
            return _Way(save, lambda: clean_environ(tuned), lambda: size_of(tuned / "inductor"))
        case "warm":
            _require(blob)
            shipped = size_of(tuned / "inductor")
            return _Way(["jit", *words], lambda: clean_environ(tuned), lambda: shipped)
        case "mega-cache":
            _require(blob)
            load = ["mega-cache", *words, "--file", str(blob)]
            return _Way(load, lambda: _empty(place / "mega-cache"), blob.stat().st_size.__int__)
        case "jit-default":
            plain = ["jit", *bench.words(model), "--mode", "default"]
            return _Way(plain, lambda: _empty(place / "jit-default"), lambda: size_of(place / "jit-default/inductor"))
        case _:
            return _aot_compile(bench, model, place)


def _package(bench: Bench, words: list[str], place: Path) -> _Way:
    packages = place / "packages"
    if not (packages / "done").is_file():
        started = time.perf_counter()
        start_child(["save-package", *words, "--file", str(packages)], clean_environ(place / "package-build"))
        (packages / "done").write_text(str(time.perf_counter() - started))
    seconds = float((packages / "done").read_text())
    shipped = sum(path.stat().st_size for path in packages.glob("*.pt2"))
    load = ["package", *words, "--file", str(packages)]
    # Its caches stay from start to start: on empty ones this loader compiles a probe of the instruction set first.
    return _Way(load, lambda: clean_environ(place / "package"), lambda: shipped, {"build_seconds": seconds})


def _aot_compile(bench: Bench, model: Model, place: Path) -> _Way:
    """One shape: what torch writes answers for the inputs that it was traced with. Tuned as `jit` was, where it ran."""
    file = ("--file", str(place / "function.bin"))
    words = [*bench.words(model, batches=bench.first_batch), "--mode", bench.options.mode, *file]
    started = time.perf_counter()
    start_child(["save-aot-compile", *words], clean_environ(place / "aot-compile-build"))
    more = {"build_seconds": time.perf_counter() - started}
    shipped = (place / "function.bin").stat().st_size
    return _Way(["aot-compile", *words], lambda: _empty(place / "aot-compile"), lambda: shipped, more)


def _empty(place: Path) -> dict[str, str]:
    shutil.rmtree(place, ignore_errors=True)
    return clean_environ(place)


def _require(blob: Path) -> None:
    if not blob.is_file():
        raise NotReached(
            "it starts from what the row jit leaves on this machine: run that before, with the same --data"
        )


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def built_of(text: str) -> dict[str, Any]:
    """What a signed manifest tells of its build: seconds, speeds, kernels and bytes."""
    manifest = json.loads(text)
    artifacts = manifest["artifacts"]
    kernels = [kernel for artifact in artifacts for kernel in artifact.get("kernels", ())]
    decoded = decode_manifest(text.encode()).artifacts
    contests = list(map(contest_of, decoded))
    tuned = [kernel for artifact in decoded for kernel in tuned_kernels(artifact)]
    files = {one["digest"]: one["size_bytes"] for artifact in artifacts for one in artifact["files"]}
    return {
        "phases": manifest["compile_report"]["phases"],
        "proof_seconds": manifest["qualification"]["seconds"],
        "speeds": [artifact["speeds"] for artifact in artifacts],
        "artifacts": len(artifacts),
        "kernels": len(kernels),
        "tuned": len(tuned),
        "reused": sum(kernel.reused for kernel in tuned),
        "untuned_kept": sum(bool(contest and contest.kept_untuned) for contest in contests),
        "bundle_bytes": sum(files.values()),
    }
