"""`aot pull` and `doctor`: a node's view."""

from collections.abc import Sequence
from pathlib import Path

from aot.bundle import StoredBundle
from aot.cache import LocalCache
from aot.cli.context import connect, read_config, trusted_keys
from aot.cli.output import table
from aot.client.connect import open_client
from aot.config import Config
from aot.environment import observe_environment
from aot.environment.problems import Place, describe_problems
from aot.errors import AotError, InvalidInput
from aot.pipeline.fetch import fetch_bundle
from aot.rules import RULES
from aot.runtime.pod import Pulled
from aot.schema.codec import Response
from aot.schema.decision import Selection, Undecided
from aot.schema.environment import Environment, Gpu
from aot.schema.names import Name, Reference
from aot.schema.wire.errors import ErrorBody


class Report(Response, kw_only=True):
    """What `aot doctor` says of this host."""

    environment: Environment
    problems: tuple[ErrorBody, ...]
    registry: str = ""  # its address and version; empty where none is configured or it cannot be used


def pull_bundle(
    reference: str | None,
    directory: Path,
    *,
    profile: str | None,
    lock: Path | None,
    into: Path | None,
    host: str | None,
) -> StoredBundle:
    """Write one whole bundle to the new `directory`, to be inspected, verified or carried elsewhere."""
    if reference is None or lock is not None or host is not None:
        raise InvalidInput(
            "--as-bundle writes the bundle of one reference, whatever this host is",
            hint="aot pull name:tag --as-bundle DIR, without --lock and --host",
        )
    config = read_config()
    return fetch_bundle(
        connect(config),
        Reference.parse(reference),
        into=directory,
        cache=LocalCache(into or config.cache_dir, limit_bytes=config.cache_bytes),
        trusted=trusted_keys(config),
        profile=Name.parse(profile) if profile else None,
    )


def refuse_with_bytecode(*, host: str | None, as_bundle: Path | None, profile: str | None) -> None:
    """Raises InvalidInput: bytecode is restored for the interpreter that runs this command, and for no other host."""
    if host is not None or as_bundle is not None or profile is not None:
        raise InvalidInput(
            "--bytecode restores for this very image",
            hint="aot pull name:tag --bytecode, without --host and --as-bundle",
        )


def pulled_lines(pulled: Sequence[Pulled]) -> list[str]:
    """One line for each reference: its digest where something fits, else that nothing does."""
    lines = []
    for one in pulled:
        if one.bundle is None:
            lines.append(f"{one.reference}: nothing fits this host")
            continue
        others = [bundle.short for bundle in one.selection.alternatives]
        beside = f" between it and {', '.join(others)}" if others else ""
        notes = [f"undecided: load decides{beside}"] if _is_open(one.selection) else []
        notes += ["frozen: for the checkpoint it was built from alone"] if one.selection.frozen else []
        notes += ["stale: the registry could not be asked"] if one.stale else []
        note = f" ({'; '.join(notes)})" if notes else ""
        lines.append(f"{one.reference.pinned_to(one.bundle)}{note}")
    return lines


def _is_open(selection: Selection) -> bool:
    """True when a person should know that `load` decides: what a program sets for itself is never seen before that."""
    missing = (
        reason
        for decision in selection.decisions
        if decision.bundle == selection.bundle and isinstance(decision.verdict, Undecided)
        for reason in decision.verdict.missing
    )
    beyond = any(not fact.startswith("process.") for reason in missing for fact in RULES[reason.kind].facts)
    return selection.undecided and (beyond or bool(selection.alternatives))


def environment_lines(environment: Environment) -> list[str]:
    node, container = environment.node, environment.container
    gpus = [card_words(gpu) for gpu in node.gpus or ()]
    facts = {
        "machine": node.machine,
        "cpu": node.cpu,
        "model": node.cpu_model,
        "memory": None if node.memory_bytes is None else f"{node.memory_bytes >> 20} MiB",
        "kernel": node.kernel,
        "driver": node.driver or "none",
        "gpus": None if node.gpus is None else ", ".join(gpus) or "none",
        "torch": container.torch or "not installed",
        "cuda": None if container.torch is None else container.cuda or "torch is built without",
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


def card_words(gpu: Gpu) -> str:
    """One card, or one slice of one, with what code is generated and tuned for."""
    slice_of = f" MIG {gpu.mig}" if gpu.mig else ""
    units = f", {gpu.sm_count} {'SM' if gpu.capability.family == 'cuda' else 'CU'}" if gpu.sm_count else ""
    return f"{gpu.sku}{slice_of} ({gpu.capability}{units}, {gpu.memory_bytes >> 20} MiB)"


def look_around(config: Config) -> Report:
    """Observe this host and what is wrong with it, and with the way to its registry where one is configured."""
    problems = [
        ErrorBody(code=problem.kind, message=problem.text, hint=problem.hint)
        for problem in describe_problems(Place(cache=config.cache_dir))
    ]
    registry = ""
    if config.url and not config.offline:
        try:
            client = open_client(config.url, config.token, timeout_seconds=config.timeout_seconds, attempts=1)
            registry = f"{config.url}, version {client.get_health().version}"
        except AotError as error:
            problems.append(ErrorBody.of(error))
        if not config.trusted_keys:
            message = "AOT_TRUSTED_KEYS is not set: no bundle of the registry will be used"
            hint = "set it to the line that `aot up` prints, or pull by a lock that pins keys"
            problems.append(ErrorBody(code="no-trusted-keys", message=message, hint=hint))
    return Report(environment=observe_environment(), problems=tuple(problems), registry=registry)


def report_lines(report: Report) -> list[str]:
    lines = environment_lines(report.environment)
    lines += [f"registry   {report.registry}"] if report.registry else []
    for problem in report.problems:
        lines += ["", f"problem: {problem.message}", *([f"  try: {problem.hint}"] if problem.hint else [])]
    return lines if report.problems else [*lines, "", "no problem found"]
