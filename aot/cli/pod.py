"""`aot pull`: a node's view."""

from collections.abc import Sequence
from pathlib import Path

from aot.bundle import StoredBundle
from aot.cache import LocalCache
from aot.cli.context import connect, read_config, trusted_keys
from aot.errors import InvalidInput
from aot.pipeline.fetch import fetch_bundle
from aot.rules import RULES
from aot.runtime.pod import Pulled
from aot.schema.decision import Selection, Undecided
from aot.schema.names import Name, Reference


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
