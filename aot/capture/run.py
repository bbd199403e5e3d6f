"""Run a command on restored entries and account for what it used: the work behind `aot run`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.cache.faults import NOEXEC_HINT, is_noexec
from aot.capture.account import Account, account
from aot.capture.collect import list_paths
from aot.capture.command import run_command
from aot.capture.idle import IdleWatch, OnIdle
from aot.capture.prepare import Prepared
from aot.capture.record import differences, saved_seconds
from aot.capture.restore import in_use
from aot.capture.watch import OpenWatch
from aot.schema.wire.workers import Outcome, Receipt

MOST_REASONS = 20


@dataclass(frozen=True)
class Run:
    """How the command ended, and what its caches say. `account` is None where it ran without our directory."""

    code: int
    account: Account | None
    new: frozenset[str] = frozenset()


def run_on(
    prepared: Prepared,
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    idle_seconds: float = 0.0,
    on_idle: OnIdle | None = None,
) -> Run:
    """Run `command` to its end with what was prepared. Raises InvalidInput where it cannot be started.

    `on_idle` is called once, beside the command, with the new files when no more have come for `idle_seconds`.
    """
    directory = prepared.directory
    if directory is None:
        return Run(run_command(command, environ=environ).code, None)
    with in_use(directory):
        before = listed(directory)
        watch = OpenWatch(directory)
        idle = None
        if on_idle is not None and before is not None and idle_seconds > 0:
            idle = IdleWatch(directory, before=before, seconds=idle_seconds, on_idle=on_idle)
        try:
            ended = run_command(command, environ={**environ, **prepared.changes})
        finally:
            opened = watch.finish()
            if idle is not None:
                idle.finish()
        after = listed(directory)
        if before is None or after is None:
            return Run(ended.code, None)
        return Run(ended.code, _account(prepared, directory, before, after, opened, ended.seconds), after - before)


def lines_of(prepared: Prepared, run: Run, environ: Mapping[str, str]) -> list[str]:
    """What to tell at exit: one line, and loudly why, where what was restored was not used, or could not be loaded."""
    if run.account is None:
        return []
    lines = [run.account.line()]
    if unused := why_unused(prepared, run, environ):
        lines += [f"WARNING: {unused[0]}", *(f"  {reason}" for reason in unused[1:])]
    if run.code != 0 and prepared.directory is not None and is_noexec(prepared.directory):
        place = f"{prepared.directory} is on a file system mounted noexec"
        lines += [f"WARNING: {place}: no code that is compiled there can be loaded", f"  {NOEXEC_HINT}"]
    return lines


def why_unused(prepared: Prepared, run: Run, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Say that what was restored was not used, then which factors of the capture differ; empty where it was used."""
    if run.account is None or not run.account.unused:
        return ()
    assert prepared.artifact is not None or prepared.bundle is None
    changed = differences(prepared.artifact, prepared.environment, environ) if prepared.artifact else ()
    return (
        f"{run.account.restored} graphs were restored, and none of them was used",
        *(changed or ("nothing differs of what was recorded: the program's code, its shapes or its options must",)),
    )


def receipt_of(prepared: Prepared, run: Run, environ: Mapping[str, str]) -> Receipt:
    """Return the receipt: COMPILED for a run on the bundle alone, PARTLY for one that compiled too, else EAGER.

    Its reasons say why nothing was restored, or why what was restored was not used.
    """
    counted = run.account
    if counted is None or prepared.bundle is None or not counted.found:
        outcome = Outcome.EAGER
    else:
        outcome = Outcome.PARTLY if counted.compiled else Outcome.COMPILED
    return Receipt(
        reference=prepared.reference,
        bundle=prepared.bundle,
        environment=prepared.environment,
        outcome=outcome,
        reasons=(*why_unused(prepared, run, environ), *prepared.reasons)[:MOST_REASONS],
        counters=dict(counted.counters) if counted else {},
        stale_tag=prepared.stale,
        load_seconds=counted.seconds if counted else 0.0,
    )


def listed(directory: Path) -> frozenset[str] | None:
    """None where the directory cannot be read: the command runs all the same, and is not accounted for."""
    try:
        return list_paths(directory)
    except OSError:
        return None


def _account(
    prepared: Prepared,
    directory: Path,
    before: frozenset[str],
    after: frozenset[str],
    opened: frozenset[str] | None,
    seconds: float,
) -> Account:
    saved = saved_seconds(prepared.artifact) if prepared.artifact else None
    return account(
        directory,
        bundle=prepared.paths,
        before=before,
        after=after,
        opened=opened,
        seconds=seconds,
        saved_seconds=saved,
    )
