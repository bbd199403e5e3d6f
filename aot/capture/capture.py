"""Capture: run a command on empty caches of its own, run it again on what it left, and keep what the second run used.

The second run is the proof that the entries are found, tells what is needed (tuning leaves every candidate that it
tried), and measures what a start on them saves.
"""

import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from aot.cache.faults import is_noexec
from aot.capture.account import Account, account
from aot.capture.collect import Collected, collect
from aot.capture.command import Ended, run_command
from aot.capture.entries import graphs_of
from aot.capture.listing import MOST_FILES, Listing, list_caches
from aot.capture.pins import pins
from aot.capture.restore import restore
from aot.capture.roots import ROOTS
from aot.capture.units import used_of
from aot.capture.watch import OpenWatch
from aot.errors import DigestMismatch, InvalidInput, MalformedDocument, QualificationFailed
from aot.facts import read_elf
from aot.schema.environment import Environment

MOST_NOTES = 20
NOTHING = Collected((), {})
BIN = "bin"
RUNS = ("first", "second")  # the caches of each run, below what `capture` is given as its scratch directory
Runner = Callable[[Sequence[str], Mapping[str, str]], Ended]

# Nothing of the directory goes into what is compiled, so that equal kernels have equal bytes wherever they were made;
# the name stays, since torch's names of compiled files are made of it. Symbols are for debuggers.
# Found through PATH under its plain name, and untouched where it is only asked what it is: torch's names of the probes
# of instruction sets are made of that answer.
_COMPILER = """#!/bin/sh
PATH="${{PATH#'{place}':}}"
[ $# -eq 1 ] && exec g++ "$@"
exec g++ "$@" '-ffile-prefix-map={directory}=/aot' -Wl,--build-id=none -s
"""


@dataclass(frozen=True)
class Captured:
    """`second` is None where the command ran once. `left_out` counts the files of the first run that are not kept.

    `notes` has a line for each that could not be, in either run.
    """

    collected: Collected
    seconds: tuple[float, float | None]
    second: Account | None
    left_out: int
    notes: tuple[str, ...] = ()


def warnings_of(made: Captured) -> tuple[str, ...]:
    """Return what a bundle tells of files that could not be kept: MOST_NOTES of them, and how many more."""
    return warnings_for(made.notes)


def warnings_for(notes: Sequence[str]) -> tuple[str, ...]:
    """Return `warnings_of` a capture that has these notes."""
    told = [f"left out: {note}" for note in notes[:MOST_NOTES]]
    more = len(notes) - len(told)
    return (*told, *((f"left out: {more} more",) if more else ()))


def capture(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    effective: Environment,
    scratch: Path,
    again: bool = True,
    base: Collected = NOTHING,
    recorded: Mapping[str, str] | None = None,
    run: Runner | None = None,
) -> Captured:
    """Run `command`, twice with `again`, and return the entries to keep: those of `base`, which it runs on, all.

    `effective` is the host as the command uses it, `recorded` the facts of what `base` is of (`aot.capture.pins.pins`).
    What the command says goes to stderr. Raises InvalidInput where it fails or leaves nothing; QualificationFailed
    where it compiles nothing that is not in `base`. Without `run` the command has this process's terminal, and
    KeyboardInterrupt is raised where that interrupts it.
    """
    run = run or _run_here
    first = scratch / RUNS[0]
    compiler = _write_compiler(scratch / BIN, first, environ)
    restore(base.entries, base.paths, into=first)
    known = frozenset(entry.path for entry in base.entries)
    start = partial(_run, command, environ=environ, effective=effective, recorded=recorded, run=run)
    cold = start(first, path=compiler)
    listed = _listed(command, first)
    found = listed.paths
    if known and not graphs_of(found - known):
        raise QualificationFailed(
            f"there is nothing to add: every graph that {command[0]} compiles here is live already",
            hint="another process was first, and its entries are found; graphs that only other traffic makes are "
            "captured by a command that makes that traffic",
        )
    if not found:
        raise InvalidInput(
            f"{command[0]} left nothing in any of the caches {', '.join(root.variable for root in ROOTS)}",
            hint="does it compile anything? a program that sets these variables itself cannot be captured",
        )
    unused = None if again else ()  # another run will tell
    everything = collect(first, scratch=scratch / "first-entries", listed=found, as_found=known, unused=unused)
    notes = (*listed.left_out, *everything.left_out)
    if not again:
        return _readable(Captured(everything, (cold.seconds, None), None, 0, notes))
    made = _again(command, everything, cold, known=known, scratch=scratch, start=start)
    return _readable(replace(made, notes=tuple(dict.fromkeys((*notes, *made.notes)))))


def _readable(made: Captured) -> Captured:
    """Return it without shared objects that cannot be read: nobody can tell what these ask of a host."""
    kept, notes = [], []
    for entry in made.collected.entries:
        try:
            if entry.path.endswith(".so"):
                read_elf(made.collected.paths[entry.digest])
            kept.append(entry)
        except MalformedDocument as error:
            notes.append(f"{entry.path}: {error.message.partition(': ')[2] or error.message}")
    collected = replace(made.collected, entries=tuple(kept))
    return replace(made, collected=collected, notes=(*made.notes, *notes))


def _listed(command: Sequence[str], directory: Path) -> Listing:
    listed = list_caches(directory)
    if listed.is_cut:
        raise InvalidInput(
            f"{command[0]} left more than {MOST_FILES} files and directories in its caches",
            hint="what tuning tries is pruned, but not so much of it; does the command keep other files there?",
        )
    return listed


def _again(
    command: Sequence[str],
    everything: Collected,
    cold: Ended,
    *,
    known: frozenset[str],
    scratch: Path,
    start: Callable[[Path], Ended],
) -> Captured:
    second = scratch / RUNS[1]
    try:
        restore(everything.entries, everything.paths, into=second)
    except DigestMismatch as error:
        raise InvalidInput(
            f"a process that {command[0]} has started was still writing to its caches after the command had ended",
            hint="end the command when all that it started has ended",
            details={"failures": [error.message]},
        ) from error
    before = frozenset(entry.path for entry in everything.entries)
    watch = OpenWatch(second)
    try:
        warm = start(second)
    finally:
        opened = watch.finish()
    listed = _listed(command, second)
    after = listed.paths
    counted = account(second, bundle=before, before=before, after=after, opened=opened, seconds=warm.seconds)
    # What the second run compiled is kept beside what it found: a third may find it. Without a watch all is. What it
    # has taken away, or put a link in the place of, is not there to be kept.
    kept = after if opened is None else (used_of(before, opened) | known | (after - before)) & after
    unused = before - kept if opened is not None else ()
    collected = collect(
        second, scratch=scratch / "second-entries", listed=after, only=kept, as_found=known, unused=unused
    )
    notes = (*listed.left_out, *collected.left_out)
    return Captured(collected, (cold.seconds, warm.seconds), counted, len(before - kept), notes)


def _run_here(command: Sequence[str], environ: Mapping[str, str]) -> Ended:
    ended = run_command(command, environ=environ, stdout=2)
    if ended.code == 128 + signal.SIGINT:
        raise KeyboardInterrupt  # a terminal's interrupt is meant for both, and the command has taken it
    return ended


def _run(
    command: Sequence[str],
    directory: Path,
    *,
    environ: Mapping[str, str],
    effective: Environment,
    recorded: Mapping[str, str] | None,
    run: Runner,
    path: Path | None = None,
) -> Ended:
    directory.mkdir(parents=True, exist_ok=True)
    changes = pins(effective, directory, environ, recorded=recorded)
    if path is not None:
        changes["PATH"] = f"{path}:{environ.get('PATH', '/usr/bin:/bin')}"
    ended = run(command, {**environ, **changes})
    if ended.code != 0:
        said = f"{command[0]} ended with {ended.code}, so nothing was captured"
        if is_noexec(directory):  # the command knows only that a segment could not be mapped
            raise InvalidInput(
                f"{said}; its caches are on a file system mounted noexec: no code that it compiles can be loaded",
                hint="set TMPDIR to a directory of a file system that is not mounted noexec",
            )
        raise InvalidInput(said, hint="run it by itself first")
    return ended


def _write_compiler(place: Path, directory: Path, environ: Mapping[str, str]) -> Path | None:
    """Return a directory for PATH with a `g++` in it; None where the command is told to use another compiler."""
    if environ.get("CXX") or shutil.which("g++", path=environ.get("PATH")) is None:
        return None
    place.mkdir(parents=True)
    program = place / "g++"
    program.write_text(_COMPILER.format(place=place, directory=directory))
    program.chmod(0o755)
    return place
