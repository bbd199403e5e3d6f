"""A start by `aot run` on captured compiler caches, on an empty node each, beside eager and, where asked for, beside
Mega-Cache: what the service's worker has captured again, fetched, verified and restored within the time of the start.

The captured command is torch.compile of the model at every batch that was asked for, with weights of no meaning, since
a worker's sandbox shows it no checkpoint; the starts read theirs as every row does. It writes a Mega-Cache blob as
well, so that both ways begin with the same graphs, and `--in-turn` starts them in turn.
"""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.capture.pins import effective_environment, pins
from aot.environment import observe_environment
from aot.environment.assembler import ASSEMBLER
from aot.pipeline.lockfile import write_lock
from aot.schema.digest import Digest
from aot.schema.lock import Lock, LockEntry
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.names import Reference
from benchmarks.capture import is_compile
from benchmarks.card_rows import Bench, Keep, Ways, start_eager, starts_of, take_turns
from benchmarks.child import MADE_UP
from benchmarks.models import Model
from benchmarks.routes import BLOB
from benchmarks.starts import ROOT, Start, clean_environ, count_programs, median_ratio, start_child, start_command

CAPTURED, MEGA_CACHE = "captured", "mega-cache"
# What a child imports on the routes of torch.compile.
PARTS = ("__init__.py", "child.py", "routes.py", "models.py", "checkpoint.py")
_LINE = re.compile(r"aot: (\d+) graphs: (an unknown number|\d+) from the bundle.*?, (\d+) compiled")


@dataclass(frozen=True)
class Captured:
    """A live capture: a lock that pins it, the blob beside it, and what making both took."""

    lock: Path
    blob: Path
    found: Mapping[str, Any]


def measure_captured(bench: Bench, model: Model, *, keep: Keep = lambda found: None) -> dict[str, Any]:
    """Capture, publish, then start in turns. A first turn is not timed: in it the run's programs are counted."""
    place = bench.runs / f"{model.name}-{bench.options.mode}" / CAPTURED
    made = _capture(bench, model, place)
    ways = _ways(bench, model, made, place)
    ways["eager"]()
    command, environ = _run_words(bench, model, made), _run_environ(bench, place)
    programs = count_programs(command, environ)
    compilers = [shlex.join(one.argv)[:200] for one in programs if is_compile(one)]
    found = {**made.found, "compilers": compilers, "processes": [Path(one.path).name for one in programs]}
    if MEGA_CACHE in ways:
        found["mega_cache_misses"] = misses = ways[MEGA_CACHE]().done["misses"]
        if misses:
            del ways[MEGA_CACHE]  # minutes of compiles, and no start from a blob
    turns = take_turns(
        ways,
        bench.options.pairs,
        title=f"{model.name} {CAPTURED}: turn",
        keep=lambda taken: keep(_report(taken, found)),
    )
    return _report(turns, found)


def _report(turns: Sequence[Mapping[str, Start]], found: Mapping[str, Any]) -> dict[str, Any]:
    starts = {name: [turn[name] for turn in turns] for name in turns[0]}
    used = [use_of(one.stderr) for one in starts["this"]]
    row = starts_of(starts["eager"], starts["this"]) | found | {"used": used}
    over = found["bytes"] / found["directory_bytes"] if found["directory_bytes"] else None
    row["summary"] |= {"hits": used[-1].get("hits"), "misses": used[-1].get("misses")}
    row["summary"] |= {"compilers": len(found["compilers"]), "bytes_over_directory": over and round(over, 3)}
    if beside := starts.get(MEGA_CACHE):
        row["mega_cache_seconds"] = [one.seconds for one in beside]
        row["mega_cache_ratio"], *_ = median_ratio(row["seconds"], row["mega_cache_seconds"])
        row["summary"]["over_mega_cache"] = round(row["mega_cache_ratio"], 3)
    return row


def use_of(said: str) -> dict[str, int | None]:
    """What `aot run` says at exit: graphs from the bundle, and those that were compiled; nothing where it is silent."""
    line = _LINE.search(said)
    if line is None:
        return {}
    return {"hits": int(line[2]) if line[2].isdecimal() else None, "misses": int(line[3])}


def events_of(said: str) -> dict[str, dict[str, Any]]:
    """What a child has said by its event, among whatever else was written there; half a line is no event."""
    events = {}
    for line in re.findall(r"\{\"event\": .*\}$", said, re.MULTILINE):
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            events[event["event"]] = event
    return events


def _ways(bench: Bench, model: Model, made: Captured, place: Path) -> Ways:
    words = ["mega-cache", *bench.words(model), "--mode", bench.options.mode, "--file", str(made.blob)]
    command = _run_words(bench, model, made)
    ways = {
        "eager": lambda *more: start_eager(bench, model, *more),
        "this": lambda *more: start_command([*command, *more], _run_environ(bench, place)),
    }
    if bench.options.in_turn:
        ways[MEGA_CACHE] = lambda *more: start_child([*words, *more], _mega_environ(bench, place))
    return ways


def _run_words(bench: Bench, model: Model, made: Captured) -> list[str]:
    child = [sys.executable, "-m", "benchmarks.child", "jit", *bench.words(model), "--mode", bench.options.mode]
    return [sys.executable, "-m", "aot.cli", "run", "--lock", str(made.lock), "--", *child]


def _environ(bench: Bench, place: Path, **more: str) -> dict[str, str]:
    """As every row's, with the service. On a CPU the compiler's instruction sets are not tried: half a minute."""
    quick = {"TORCHINDUCTOR_VEC_ISA_OK": "1"} if bench.options.device == "cpu" else {}
    return clean_environ(place, **bench.service.environ, **quick, **more)


def _run_environ(bench: Bench, place: Path) -> dict[str, str]:
    """A node that has nothing, each time."""
    shutil.rmtree(place / "node", ignore_errors=True)
    return _environ(bench, place / "run") | {"AOT_CACHE_DIR": str(place / "node")}


def _mega_environ(bench: Bench, place: Path) -> dict[str, str]:
    """Empty caches, under those pins that are part of torch's keys; the assembler is as torch leaves it to anybody."""
    shutil.rmtree(place / MEGA_CACHE, ignore_errors=True)
    environ = _environ(bench, place / MEGA_CACHE)
    pinned = pins(effective_environment(observe_environment(), environ), place / MEGA_CACHE / "caches", environ)
    return environ | {name: value for name, value in pinned.items() if name != ASSEMBLER}


def _capture(bench: Bench, model: Model, place: Path) -> Captured:
    """Capture once, push, and wait until a worker has captured it again: what goes live is the worker's."""
    shutil.rmtree(place, ignore_errors=True)
    tree, reference = write_tree(model, place / "tree"), f"{model.name}-{bench.options.mode}-captured:card"
    environ = _environ(bench, place / "first") | {"PYTHONPATH": str(ROOT)}
    aot = [sys.executable, "-m", "aot.cli"]
    asked = [*aot, "capture", reference, "--once", "--source", str(tree), "--push", "--json", "--"]
    started = time.perf_counter()
    pushed, said = _run([*asked, *_captured_words(bench, model)], environ, cwd=tree)
    captured_at = time.perf_counter()
    _wait(bench, json.loads(pushed)["build"])
    seconds = {"capture_seconds": captured_at - started, "proof_wait_seconds": time.perf_counter() - captured_at}
    (signed,) = json.loads(bench.service.aot("show", reference, "--json"))
    manifest = decode_manifest(signed["manifest"].encode())
    lock, blob = place / "aot.lock", place / "first" / "tmp" / BLOB
    entry = LockEntry(
        reference=Reference.parse(f"default/{reference}"),
        profile=manifest.profile.name,
        bundle=Digest.of(signed["manifest"].encode()),
        build_key=manifest.build_key,
    )
    write_lock(lock, Lock(entries=(entry,), trusted_keys=(bench.service.environ["AOT_TRUSTED_KEYS"],)))
    found = {**seconds, **_of_capture(manifest, said), "mega_cache_bytes": blob.stat().st_size}
    return Captured(lock, blob, {**found, "batches": bench.options.batches})


def _wait(bench: Bench, build: str) -> None:
    """Until the worker's capture is live. Raises RuntimeError with the build's report: the command's last words."""
    try:
        bench.service.aot("wait", build, quiet=True)
    except subprocess.CalledProcessError as error:
        report = bench.service.aot("show", build, "--json", quiet=True)
        raise RuntimeError(f"the worker could not capture it again: {report[-2500:]}") from error


def _captured_words(bench: Bench, model: Model) -> list[str]:
    words = ["save-mega-cache", model.name, "--device", bench.options.device, "--checkpoint", MADE_UP, "--every-batch"]
    words += ["--batches", bench.options.batches, "--mode", bench.options.mode]
    return [sys.executable, "-m", "benchmarks.child", *words, *(["--tiny"] if bench.options.tiny else [])]


def _of_capture(manifest: Manifest, said: str) -> dict[str, Any]:
    """Of the worker's two runs, and of what the first capture's child said on stderr: its spans, and its caches."""
    (artifact,) = manifest.artifacts
    events = events_of(said)
    return {
        "first_seconds": float(artifact.facts["first_seconds"]),
        "second_seconds": float(artifact.facts["second_seconds"]),
        "cold_spans": events.get("first-output", {}).get("seconds"),
        "graphs": int(artifact.facts["graphs"]),
        "entries": len(artifact.files),
        "bytes": manifest.size_bytes,
        "directory_bytes": events.get("done", {}).get("cache_bytes"),
    }


def write_tree(model: Model, place: Path) -> Path:
    """What the command runs in, here and on a worker: a child's modules, and the model's source."""
    (place / "benchmarks").mkdir(parents=True)
    for name in PARTS:
        shutil.copy(ROOT / "benchmarks" / name, place / "benchmarks" / name)
    shutil.copytree(model.source, place / "examples" / model.source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def _run(command: Sequence[str], environ: Mapping[str, str], *, cwd: Path) -> tuple[str, str]:
    """Return what it wrote to stdout and stderr. Raises RuntimeError where it fails."""
    ended = subprocess.run(command, env=dict(environ), cwd=cwd, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
    return ended.stdout, ended.stderr
