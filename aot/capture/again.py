"""The proof of a pushed capture: a worker runs the command itself, twice, and its own entries are what goes live.

Each run sees one directory of caches and one for its home and temporary files, and writes nowhere else. What a worker
itself writes or reads by name lies beside them, where no command can put a link:

    stderr.txt  bundle/  tables/  run-0/  run-1/  caches/{bin, first, first-entries, second, second-entries}
"""

import itertools
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from aot.bundle import write_bundle
from aot.capture.capture import BIN, RUNS, Captured, capture, warnings_of
from aot.capture.collect import Collected, names_places
from aot.capture.command import Ended
from aot.capture.pins import effective_environment
from aot.capture.record import artifact_of, require_level
from aot.capture.union import (
    Base,
    entries_of,
    join_tables,
    not_joined,
    unjoined,
    with_bases,
    with_grown_tables,
    with_tables,
)
from aot.config import whole_environ
from aot.environment import observe_environment
from aot.environment.cards import card_variables
from aot.errors import CompileStopped, InvalidInput, QualificationFailed
from aot.pipeline.build import Staged, read_staged
from aot.proof import RECAPTURED
from aot.sandbox import Bubblewrap, OnEvent, ShouldStop, find_packages, run_child
from aot.sandbox.exit import ChildExit, ExitKind
from aot.sandbox.limits import Limits
from aot.schema.artifact import Artifact
from aot.schema.manifest import Manifest
from aot.schema.report import CompileReport, Qualification
from aot.schema.spec import CommandSource

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
OUTPUT_BYTES = 16 << 20
TABLES = "tables"


def recapture(
    pushed: Manifest,
    tree: Path | None,
    *,
    scratch: Path,
    sandbox: Bubblewrap | None,
    devices: Sequence[Path],
    builder: str,
    bases: Sequence[Base] = (),
    on_event: OnEvent,
    should_stop: ShouldStop,
) -> Staged:
    """Run the command of `pushed` on empty caches, and again on what that left; stage the bundle of these entries.

    A manifest without artifacts asks for a first capture: the proof is the same. Of a union the caches hold the `bases`
    when the command begins, and keep them.
    Raises QualificationFailed where the command fails here, or a second run compiles a graph again; CompileStopped.
    """
    source = pushed.spec.source
    if not isinstance(source, CommandSource) or tree is None:
        raise QualificationFailed("the capture has no tree that its command runs in", hint="push it with --source TREE")
    scratch.mkdir(parents=True, exist_ok=True)
    base = entries_of(bases, scratch=scratch / TABLES)
    environ = {**pushed.spec.recipe.environment, **_environ(scratch / "run-0")}
    into, started, said = scratch / "caches", itertools.count(), [""]
    effective = effective_environment(observe_environment(), environ, command=source.command)
    recorded = bases[0].artifact.facts if bases else None
    on_event({"phase": "qualifying", "step": "running the command"})

    def run(command: Sequence[str], wanted: Mapping[str, str]) -> Ended:
        # No run finds what an earlier one has left outside of the caches.
        place = scratch / f"run-{(number := next(started))}"
        environ = {**wanted, **_places(place)}
        shown: dict[str, Any] = {"readable": (tree, into / BIN), "writable": (place, into / RUNS[number])}
        around: dict[str, Any] = {"sandbox": sandbox, "devices": devices, "should_stop": should_stop}
        ended, said[0] = _run(command, environ, pushed, tree, stderr=scratch / "stderr.txt", **shown, **around)
        return ended

    try:
        require_level(pushed.profile, effective)
        around: dict[str, Any] = {"environ": environ, "effective": effective, "recorded": recorded}
        made = capture(source.command, scratch=into, base=base, run=run, **around)
    except InvalidInput as error:
        raise QualificationFailed(
            f"the command cannot be captured on this worker: {error.message}",
            hint="the details have the end of its output; it runs without a network, in its tree alone",
            details={"failures": error.details.get("failures", said)},
        ) from error
    artifact = artifact_of(made.collected, pushed.profile, seconds=made.seconds, **around)
    union, tables = _union(artifact, made.collected, bases, base, scratch=scratch / TABLES)
    proven = _proven(pushed, union, replace(made, notes=(*made.notes, *tables.left_out)), builder=builder)
    # An entry of a base that the run has written anew stays the base's: its bytes are no longer in the caches.
    paths = {**made.collected.paths, **base.paths, **tables.paths}
    return read_staged(write_bundle(scratch / "bundle", manifest=proven, files=paths).directory)


def _union(
    artifact: Artifact, made: Collected, bases: Sequence[Base], base: Collected, *, scratch: Path
) -> tuple[Artifact, Collected]:
    """Return the artifact with all of the bases, and its tables that are neither theirs nor the run's.

    `left_out` has a line for each of theirs and the run's that could not be joined, and is not in the artifact.
    """
    parts = (([entry.as_file() for entry in base.entries], base.paths), (artifact.files, made.paths))
    tables = join_tables(parts, scratch=scratch)
    grown = with_grown_tables(with_bases(artifact, bases), artifact)
    dropped = not_joined(path for path in unjoined(parts, tables) if not names_places(path))
    union = with_tables(grown, (entry.as_file() for entry in tables.entries))
    return union, replace(tables, left_out=tuple(dict.fromkeys((*base.left_out, *dropped))))


def _proven(pushed: Manifest, artifact: Artifact, made: Captured, *, builder: str) -> Manifest:
    by = pushed.provenance.builder
    by = f"{by}, captured again by {builder}" if by else builder
    return msgspec.structs.replace(
        pushed,
        artifacts=(artifact,),
        compile_report=CompileReport(warnings=warnings_of(made)),
        qualification=_proof(pushed, made),
        provenance=msgspec.structs.replace(pushed.provenance, builder=by),
    )


def _proof(pushed: Manifest, made: Captured) -> Qualification:
    counted = made.second
    assert counted is not None
    if counted.compiled or not counted.restored:
        raise QualificationFailed(
            f"a second run of the command compiled {counted.compiled} graphs again, of {counted.restored}",
            hint="a program that compiles something new at each start cannot be started from its caches",
        )
    if not counted.found or not counted.graphs or not made.collected.entries:
        known = "an unknown number" if counted.found is None else str(counted.found)
        raise QualificationFailed(
            f"a second run of the command found {known} of {counted.restored} graphs",
            hint="it has to look into its caches each time; an unknown number: the limit of inotify watches is too low",
        )
    return Qualification(
        numerics=RECAPTURED,
        profile=pushed.profile.name,
        torch=pushed.profile.toolchain.torch,
        seconds=sum(second for second in made.seconds if second is not None),
    )


def _run(
    command: Sequence[str],
    environ: Mapping[str, str],
    pushed: Manifest,
    tree: Path,
    *,
    readable: Sequence[Path],
    writable: Sequence[Path],
    stderr: Path,
    sandbox: Bubblewrap | None,
    devices: Sequence[Path],
    should_stop: ShouldStop,
) -> tuple[Ended, str]:
    """Return how the command ended, and the end of what it said."""
    limits = pushed.spec.limits
    started = time.monotonic()
    ended = run_child(
        (_program(command[0], environ, tree), *command[1:]),
        cwd=tree.absolute(),
        env=environ,
        limits=Limits(
            wall_seconds=limits.wall_seconds,
            memory_bytes=limits.most_memory_bytes,
            processes=limits.processes,
            disk_bytes=limits.most_disk_bytes,
            output_bytes=OUTPUT_BYTES,
        ),
        sandbox=sandbox,
        readable=tuple(place.absolute() for place in readable if place.exists()),
        writable=tuple(place.absolute() for place in writable),
        devices=devices,
        stderr=stderr,
        should_stop=should_stop,
    )
    _require_an_end(command[0], ended)
    code = ended.code if ended.code is not None else 1
    code = code if ended.kind is ExitKind.EXITED else max(code, 1)
    return Ended(code, time.monotonic() - started), ended.stderr_tail[-2000:]


def _require_an_end(program: str, ended: ChildExit) -> None:
    """Raise CompileStopped, or InvalidInput where a limit has ended it: what it left is no capture."""
    if ended.kind is ExitKind.STOPPED:
        raise CompileStopped(f"the proof was stopped: {ended.stop_reason}")
    if ended.kind not in (ExitKind.EXITED, ExitKind.SIGNALED):
        limit = ended.memory_hint if ended.kind is ExitKind.OUT_OF_MEMORY else "raise the limit"
        raise InvalidInput(
            f"{program} was ended: {ended.describe()}",
            hint=f"narrow the command, or {limit}",
            details={"failures": [ended.stderr_tail[-2000:]]},
        )


def _program(name: str, environ: Mapping[str, str], tree: Path) -> str:
    """Return the program's place here: this interpreter for every Python, wherever the pusher's lay.

    A relative path is one of the tree. Raises InvalidInput for what is not there, and for one that leaves the tree.
    """
    if _PYTHON.fullmatch(Path(name).name):
        return sys.executable
    hint = "name one of the tree by ./NAME, one that every worker has, or python"
    if "/" not in name:
        # `torchrun` and its like belong to this interpreter; another one's would run the command with other libraries.
        scripts = (Path(sys.executable).parent, *(place / "bin" for place in find_packages().added))
        found = shutil.which(name, path=os.pathsep.join((*map(str, scripts), environ.get("PATH", ""))))
        if found is None:
            raise InvalidInput(f"this worker has no program {name}", hint=hint)
        return found
    place = tree.absolute() / name  # an absolute path stays itself
    if not Path(name).is_absolute() and not place.resolve().is_relative_to(tree.resolve()):
        raise InvalidInput(f"the program {name} lies outside of the tree", hint=hint)
    if not place.is_file() or not os.access(place, os.X_OK):
        raise InvalidInput(f"this worker has no program {name}", hint=hint)
    return str(place)


def _environ(scratch: Path) -> dict[str, str]:
    return {
        "PATH": SEARCH_PATH,
        **card_variables(whole_environ()),
        **_places(scratch),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(map(str, find_packages().path_of_others)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _places(directory: Path) -> dict[str, str]:
    """Return a home and a place for temporary files below `directory`, made where they are not there."""
    found = {"HOME": directory / "home", "TMPDIR": directory / "tmp"}
    for place in found.values():
        place.mkdir(parents=True, exist_ok=True)
    return {name: str(place.absolute()) for name, place in found.items()}
