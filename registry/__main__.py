"""`python -m registry`: serve, sweep, retain, reindex, fsck, check, migrate, keys, token create, list and end."""

import argparse
import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import AotError, InvalidConfig, NotFound, Unavailable
from aot.locks import claimed
from aot.schema.names import Namespace
from aot.schema.wire.workers import Scope
from registry.settings import Settings
from registry.stop import Stop, leave

if TYPE_CHECKING:
    from registry.db.session import Sessions
    from registry.deps import Deps

LOCK_FILE = "serve.lock"
RETAIN_AGAIN_SECONDS = 60.0  # after a pass that failed, where the next one is not due before


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0; 2 wrong settings, 5 a service is away, 6 damage was found, 130 Ctrl-C, else 1.

    SIGTERM ends `serve` and `sweep` with 0, and raises SystemExit(143) in what was not finished.
    """
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, leave)
    try:
        settings = Settings.from_environ()
        _configure_log()
        code: int | None = options.run(options, settings)
    except AotError as error:
        print(f"{error.message}\n{error.hint}".strip(), file=sys.stderr)
        return 2 if isinstance(error, InvalidConfig) else 5 if isinstance(error, Unavailable) else 1
    except KeyboardInterrupt:
        return 130
    return code or 0


def serve(options: argparse.Namespace, settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C; running requests are finished first."""
    import uvicorn

    from registry.app import create_app_from
    from registry.db.migrate import migrate, require_served
    from registry.deps import build_deps
    from registry.services.start import prepare, write_probe_secret

    with _only_one(settings.data_dir):
        deps = build_deps(settings)
        if settings.embedded:
            migrate(deps.sessions)
        else:
            require_served(deps.sessions)
        prepare(deps)
        app = create_app_from(replace(deps, probe_secret=write_probe_secret(deps)))
        gc.collect()
        gc.freeze()  # what is there now stays: walking through it took 0.1 s, in which nobody was answered
        try:
            uvicorn.run(
                app,
                host=settings.host,
                port=settings.port,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=10,
                server_header=False,
            )
        except SystemExit as ended:
            # uvicorn has finished what ran, and raises the signal again: a clean end.
            if ended.code != 128 + signal.SIGTERM:
                raise


def sweep(options: argparse.Namespace, settings: Settings) -> None:
    """Sweep once, or until SIGTERM or Ctrl-C; a pass that fails is tried again, unless the settings are wrong."""
    import structlog

    from registry.deps import build_deps
    from registry.services.retention import SWEEPER_SECONDS
    from registry.services.retention import retain as retain_once
    from registry.services.sweep import sweep as sweep_once

    log = structlog.get_logger()

    def survive(name: str, one_pass: Callable[["Deps"], Any]) -> Any:
        try:
            return one_pass(deps)
        except Unavailable as error:
            log.warning(f"{name}-failed", code=error.code, reason=error.message)
        except InvalidConfig:
            raise
        except Exception:  # one row that breaks a pass must not end leases, tickets and retention with it
            log.exception(f"{name}-failed")
        return None

    deps = build_deps(settings)
    if options.once:
        sweep_once(deps)
        retain_once(deps)
        return
    stop = Stop().listen()
    log.info("sweeping", every=options.every)
    retain_at = time.monotonic()
    while not stop.told:
        survive("sweep", sweep_once)
        if time.monotonic() >= retain_at and not stop.told:
            retain_at = time.monotonic() + settings.retain_every.total_seconds()
            done = survive("retain", partial(retain_once, seconds=SWEEPER_SECONDS))
            if done is None:  # nor was there time for all that did not fail
                retain_at = min(retain_at, time.monotonic() + RETAIN_AGAIN_SECONDS)
            elif done.unfinished:
                retain_at = time.monotonic()  # it goes on after the next pass over leases and tickets
        stop.pause(options.every)
    log.info("stopped")


def retain(options: argparse.Namespace, settings: Settings) -> None:
    """Remove what has expired, or say what would be removed; JSON on stdout."""
    from registry.services.retention import plan
    from registry.services.retention import retain as retain_once

    deps = _migrated(settings)
    _print_json(plan(deps) if options.dry_run else retain_once(deps))


def reindex(options: argparse.Namespace, settings: Settings) -> None:
    """Make the rows again from the object store; the database must be migrated. JSON on stdout."""
    from aot.trust import TrustedKeys
    from registry.services.reindex import reindex as reindex_once

    trusted = TrustedKeys.of(options.trust)
    _print_json(reindex_once(_migrated(settings), trusted=trusted, unsigned=options.unsigned))


def fsck(options: argparse.Namespace, settings: Settings) -> int:
    """Read and hash everything again; 6 where something is not what it should be. JSON on stdout."""
    from aot.trust import TrustedKeys
    from registry.services.fsck import fsck as check_all

    checked = check_all(_migrated(settings), trusted=TrustedKeys.of(options.trust), force=options.force)
    _print_json(checked)
    return 0 if checked.sound else 6


def check(options: argparse.Namespace, settings: Settings) -> int:
    """Say of everything that the settings name whether it works, and what to set; 1 where something does not."""
    from registry.services.check import Verdict
    from registry.services.check import check as check_all

    findings = check_all(settings)
    if options.json:
        _print_json(findings)
    else:
        for finding in findings:
            print(f"{finding.verdict:<6}{finding.name}: {finding.found}")
            if finding.hint:
                print(f"      -> {finding.hint}")
    return 1 if any(finding.verdict is Verdict.WRONG for finding in findings) else 0


def _migrated(settings: Settings) -> "Deps":
    """The registry of these settings. Raises StorageUnavailable for a database without its tables.

    That is before a key is made: a mistyped AOT_DATA_DIR does not become a registry.
    """
    from registry.deps import build_deps

    _served(settings)
    return build_deps(settings)


def _served(settings: Settings) -> "Sessions":
    """The database of these settings. Raises StorageUnavailable where it is none of a registry; none is made then."""
    from registry.db.migrate import require_served
    from registry.db.session import open_sessions

    sessions = open_sessions(settings.database_url)
    require_served(sessions)
    return sessions


def _print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def migrate(options: argparse.Namespace, settings: Settings) -> None:
    """Bring the database to this version's schema."""
    from registry.db.migrate import migrate as migrate_to
    from registry.db.session import open_sessions

    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    migrate_to(open_sessions(settings.database_url), revision=options.revision)


def create_token(options: argparse.Namespace, settings: Settings) -> None:
    """Print a new token: for operators, who reach the database and not the API."""
    from registry.clock import utc_now
    from registry.services import tokens

    now = utc_now()
    with _served(settings).transaction() as session:
        secret = tokens.issue(
            options.label,
            scopes=tuple(Scope(scope) for scope in options.scope),
            namespaces=tuple(Namespace.parse(namespace) for namespace in options.namespace),
            expires_at=now + timedelta(seconds=options.expires_in) if options.expires_in else None,
            now=now,
            session=session,
        )
    print(secret)


def list_tokens(options: argparse.Namespace, settings: Settings) -> None:
    """Print every token but those of claims, the oldest first, never its secret; JSON on stdout."""
    from registry.db.tokens import list_lasting

    with _served(settings).transaction() as session:
        _print_json(
            [
                {
                    "label": row.label,
                    "scopes": row.scopes,
                    "namespaces": row.namespaces,
                    "created_at": row.created_at,
                    "expires_at": row.expires_at,
                }
                for row in list_lasting(session)
            ]
        )


def end_token(options: argparse.Namespace, settings: Settings) -> None:
    """End every token of a label. Raises NotFound where there is none."""
    from registry.services import tokens

    with _served(settings).transaction() as session:
        if not tokens.has_label(options.label, session=session):
            raise NotFound(f"there is no token {options.label}", hint="`python -m registry token list` shows them")
        tokens.end(options.label, session=session)


def print_keys(options: argparse.Namespace, settings: Settings) -> None:
    """Print the value of AOT_TRUSTED_KEYS: the public halves of the key files that sign, made where missing."""
    from aot.trust import SigningKey

    if options.adopt:
        from registry.deps import build_deps
        from registry.services.start import adopt_keys

        deps = build_deps(settings)
        with deps.sessions.transaction() as session:
            adopt_keys(deps, session)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    print(",".join(str(SigningKey.load_or_create(path).public) for path in settings.signing_keys))


@contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    """Hold the directory. Raises DirectoryInUse where another process serves it."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with claimed(data_dir / LOCK_FILE, hint="stop it, or set AOT_DATA_DIR to another directory"):
        yield


def _configure_log() -> None:
    import structlog
    from structlog.tracebacks import ExceptionDictTransformer

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without locals: they hold tokens.
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m registry", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("serve", help="serve the HTTP API")
    command.set_defaults(run=serve)
    command = commands.add_parser("sweep", help="expire leases, send tickets again")
    command.add_argument("--every", type=float, default=5.0, metavar="SECONDS")
    command.add_argument("--once", action="store_true")
    command.set_defaults(run=sweep)
    command = commands.add_parser("retain", help="remove what has expired; the sweeper does so once a while")
    command.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    command.set_defaults(run=retain)
    command = commands.add_parser("reindex", help="make the rows again from the object store; stop `serve` before")
    command.add_argument("--trust", action="append", default=[], metavar="KEY", help="a retired key that signed")
    command.add_argument("--unsigned", action="store_true", help="also believe records of before they were signed")
    command.set_defaults(run=reindex)
    command = commands.add_parser("fsck", help="hash every stored blob again, and quarantine what differs")
    command.add_argument("--trust", action="append", default=[], metavar="KEY", help="a retired key that signed")
    command.add_argument("--force", action="store_true", help="go on though the store holds none of the first blobs")
    command.set_defaults(run=fsck)
    command = commands.add_parser("check", help="say whether database, broker and blob store work, and what to set")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=check)
    command = commands.add_parser("migrate", help="bring the database to this version's schema")
    command.add_argument("--revision", default="head")
    command.set_defaults(run=migrate)
    command = commands.add_parser("keys", help="print the value of AOT_TRUSTED_KEYS, from the key files")
    command.add_argument("--adopt", action="store_true", help="and let replicas sign with them, though none has before")
    command.set_defaults(run=print_keys)
    _add_tokens(commands.add_parser("token", help="make, list and end tokens").add_subparsers(required=True))
    return parser


def _add_tokens(token: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = token.add_parser("create", help="print a new token")
    command.add_argument("label")
    scopes = [str(scope) for scope in Scope if scope is not Scope.BUILD]
    command.add_argument("--scope", action="append", required=True, choices=scopes, help="may be given several times")
    command.add_argument("--namespace", action="append", default=[], help="may be given several times; default: all")
    command.add_argument("--expires-in", type=float, metavar="SECONDS")
    command.set_defaults(run=create_token)
    command = token.add_parser("list", help="label, scopes, namespaces and times of every token but those of claims")
    command.set_defaults(run=list_tokens)
    command = token.add_parser("end", help="end every token of a label at once, as after a leak")
    command.add_argument("label")
    command.set_defaults(run=end_token)


if __name__ == "__main__":
    sys.exit(main())
