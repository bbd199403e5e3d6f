"""`aot.warm`: restored entries for a program that starts itself, before or after it has imported torch."""

import atexit
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.capture.account import account
from aot.capture.pins import TAG
from aot.capture.prepare import Prepared, open_registry, prepare
from aot.capture.record import saved_seconds
from aot.capture.run import Run, lines_of, listed, receipt_of
from aot.capture.watch import OpenWatch
from aot.config import Config, change_environ, whole_environ
from aot.errors import AotError, NoCompatibleArtifact
from aot.pipeline.lockfile import require_lock
from aot.schema.digest import Digest
from aot.schema.names import Reference

log = logging.getLogger("aot")


@dataclass(frozen=True)
class Warmed:
    """`bundle` is None where nothing was restored, and `reasons` says why; the program then compiles as ever."""

    bundle: Digest | None
    directory: Path | None
    graphs: int
    reasons: tuple[str, ...] = ()


def warm(reference: str | Reference, *, lock: str | Path | None = None, config: Config | None = None) -> Warmed:
    """Restore the compiler caches of `reference`, and let this process and those that it starts use them.

    Before anything is compiled: torch is not imported here, and one that is imported already is told. What was used is
    logged at the end of the process, and told to the registry. Raises InvalidInput
    for arguments that cannot be read; what a registry, a disk or a bundle does is raised with AOT_FALLBACK=raise only.
    """
    config = config or Config.from_environ()
    named = reference if isinstance(reference, Reference) else Reference.parse(reference)
    pinned = require_lock(Path(lock)) if lock is not None else None
    environ = whole_environ()
    prepared = prepare(named, config=config, environ=environ, lock=pinned)
    if prepared.directory is None:
        for reason in prepared.reasons:
            log.warning("aot restores no compiler caches of %s: %s", named, reason)
        if config.fallback == "raise":
            raise NoCompatibleArtifact(
                f"nothing of {named} fits this process: {'; '.join(prepared.reasons) or 'it has no entries'}",
                hint="AOT_FALLBACK=eager goes on without",
            )
        return Warmed(None, None, 0, prepared.reasons)
    change_environ(prepared.changes)
    tell_torch(prepared.changes)
    _account_at_exit(prepared, config, environ)
    return Warmed(prepared.bundle, prepared.directory, prepared.graphs, prepared.reasons)


def tell_torch(changes: Mapping[str, str]) -> None:
    """Set in a torch that is imported already what it read from the environment when it was."""
    if (config := sys.modules.get("torch.compiler.config")) is not None:
        config.cache_key_tag = changes[TAG]
    if (config := sys.modules.get("torch._inductor.config")) is not None:
        config.cpp_cache_precompile_headers = False
        if march := changes.get("TORCHINDUCTOR_CPP_MARCH"):
            config.cpp.march = march


def _account_at_exit(prepared: Prepared, config: Config, environ: dict[str, str]) -> None:
    directory = prepared.directory
    assert directory is not None
    before, watch, began, own = listed(directory), OpenWatch(directory), time.monotonic(), os.getpid()

    def tell() -> None:
        if os.getpid() != own:  # a fork that inherited the handler
            return
        opened, after = watch.finish(), listed(directory)
        if before is None or after is None:
            return
        seconds = time.monotonic() - began
        saved = saved_seconds(prepared.artifact) if prepared.artifact else None
        counted = account(
            directory,
            bundle=prepared.paths,
            before=before,
            after=after,
            opened=opened,
            seconds=seconds,
            saved_seconds=saved,
        )
        run = Run(0, counted, after - before)
        for line in lines_of(prepared, run, environ):
            log.log(logging.WARNING if counted.unused else logging.INFO, "aot: %s", line)
        client = open_registry(config)
        if client is not None and config.receipts:
            try:
                client.send_receipt(receipt_of(prepared, run, environ))
            except AotError as error:
                log.info("receipt not sent: %s", error.message)

    atexit.register(tell)
