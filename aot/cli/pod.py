"""`aot pull`, `explain`, `doctor`: a node's view."""

from collections.abc import Sequence
from pathlib import Path

from aot.cli.output import table
from aot.environment import observe_environment
from aot.environment.problems import Place, describe_problems
from aot.errors import InvalidInput
from aot.runtime.pod import Pulled
from aot.schema.codec import Response, decode
from aot.schema.decision import Accepted, Decision, Rejected, Selection, Undecided, reasons_of
from aot.schema.environment import Environment
from aot.schema.wire.errors import ErrorBody


class Report(Response, kw_only=True):
    """What `aot doctor` says of this host."""

    environment: Environment
    problems: tuple[ErrorBody, ...]


def read_host(path: Path | None) -> Environment | None:
    """Return the environment that `aot doctor --json` wrote to a file, or None where none is named."""
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error}", hint="write it with `aot doctor --json`") from error
    return decode(content, Report, what="host file").environment


def pulled_lines(pulled: Sequence[Pulled]) -> list[str]:
    """One line for each reference: its digest where something fits, else that nothing does."""
    lines = []
    for one in pulled:
        if one.bundle is None:
            lines.append(f"{one.reference}: nothing fits this host")
            continue
        notes = ["undecided: load decides"] if one.selection.undecided else []
        notes += ["stale: the registry could not be asked"] if one.stale else []
        note = f" ({'; '.join(notes)})" if notes else ""
        lines.append(f"{one.reference.pinned_to(one.bundle)}{note}")
    return lines


def selection_lines(selection: Selection) -> list[str]:
    """Every artifact with its verdict and every reason."""
    rows = [row for decision in selection.decisions for row in _rows(decision)]
    lines = table(("bundle", "region", "coverage", "verdict", "why"), rows)
    chosen = f"chosen: {selection.bundle}" if selection.bundle else "chosen: none, the model runs eagerly"
    return [*lines, chosen]


def environment_lines(environment: Environment) -> list[str]:
    node, container = environment.node, environment.container
    gpus = [f"{gpu.sku} ({gpu.capability}, {gpu.memory_bytes >> 20} MiB)" for gpu in node.gpus or ()]
    facts = {
        "machine": node.machine,
        "cpu": node.cpu,
        "model": node.cpu_model,
        "memory": None if node.memory_bytes is None else f"{node.memory_bytes >> 20} MiB",
        "kernel": node.kernel,
        "driver": node.driver or "none",
        "gpus": ", ".join(gpus) or "none",
        "torch": container.torch or "not installed",
        "triton": container.triton or "not installed",
        "python": container.python,
        "libc": container.libc,
        "libstdc++": container.libstdcxx and f"GLIBCXX_{container.libstdcxx}",
        "threads": container.threads,
        "cores": container.cores,
    }
    return table(
        ("fact", "value"), [(name, "not known" if fact is None else str(fact)) for name, fact in facts.items()]
    )


def look_around(cache: Path) -> Report:
    """Observe this host and what is wrong with it; `cache` is where artifacts are kept."""
    problems = tuple(
        ErrorBody(code=problem.kind, message=problem.text, hint=problem.hint)
        for problem in describe_problems(Place(cache=cache))
    )
    return Report(environment=observe_environment(), problems=problems)


def report_lines(report: Report) -> list[str]:
    lines = environment_lines(report.environment)
    for problem in report.problems:
        lines += ["", f"problem: {problem.message}", *([f"  try: {problem.hint}"] if problem.hint else [])]
    return lines if report.problems else [*lines, "", "no problem found"]


def _rows(decision: Decision) -> list[tuple[str, ...]]:
    word = {Accepted: "fits", Undecided: "undecided", Rejected: "rejected"}[type(decision.verdict)]
    if isinstance(decision.verdict, Accepted):
        reasons = [f"note: {note.text}" for note in decision.verdict.notes] or [""]
    else:
        reasons = [reason.text for reason in reasons_of(decision.verdict)]
    first = (decision.bundle.short, decision.region or "whole", decision.coverage, word)
    return [(*(first if not index else ("", "", "", "")), reason) for index, reason in enumerate(reasons)]
