"""Commands about verdicts: parsing here, work in `aot.cli.explain`, `aot.cli.since` and `aot.cli.matrix`."""

from pathlib import Path
from typing import Annotated

import typer

from aot.cli.options import HostOption, Json, LockOption

Since = Annotated[
    Path | None, typer.Option("--since", help="Say instead which factors changed since this lock was written.")
]
Hosts = Annotated[
    list[str],
    typer.Option("--hosts", help="Directory of host files, one file, or a described host; several are allowed."),
]


def add_verdicts(app: typer.Typer) -> None:
    app.command()(explain)
    app.command()(matrix)


def explain(
    reference: str, lock: LockOption = None, host: HostOption = None, since: Since = None, json: Json = False
) -> int:
    """Say of every artifact whether it fits this host, why not, and what to build; 4 where nothing fits."""
    from aot.cli.context import read_config
    from aot.cli.exits import Exit
    from aot.cli.explain import explain as run
    from aot.cli.host import read_host
    from aot.cli.output import emit, say, terminal_columns
    from aot.cli.since import changes_since, since_lines
    from aot.environment import observe_environment
    from aot.errors import InvalidInput

    config = read_config()
    if since is not None:
        if host is not None:
            raise InvalidInput("--since compares build keys, whatever the host", hint="leave out --host or --since")
        changed = changes_since(reference, since, config=config, lock=lock)
        emit(changed, since_lines(changed, width=terminal_columns()), as_json=json)
        return Exit.OK
    explained = run(reference, observe_environment() if host is None else read_host(host), config=config, lock=lock)
    told = explained.to_json()
    emit(told, explained.lines(width=terminal_columns()), as_json=json)
    if told.stale:
        say("stale: the registry could not be asked")
    if told.assumed_settings:
        say("what the program sets for itself (precision, determinism, ...) is taken as torch starts; load looks")
    return Exit.OK if told.bundle else Exit.NOTHING_FITS


def matrix(
    references: Annotated[list[str], typer.Argument(help="References, each [namespace/]name[:tag].")],
    hosts: Hosts,
    lock: LockOption = None,
    json: Json = False,
) -> int:
    """Show a fleet against bundles: one row a host, one column a bundle; 4 where a host has nothing that fits."""
    from aot.cli.context import read_config
    from aot.cli.exits import Exit
    from aot.cli.host import read_hosts
    from aot.cli.matrix import cross, matrix_lines
    from aot.cli.output import emit, say, terminal_columns
    from aot.errors import InvalidInput

    if files := [one for one in references if one.endswith(".json")]:
        raise InvalidInput(
            f"{files[0]} is no reference", hint="name --hosts before each file, or once with their directory"
        )
    crossed = cross(references, read_hosts(hosts), config=read_config(), lock=lock)
    emit(crossed, matrix_lines(crossed, width=terminal_columns()), as_json=json)
    for refusal in crossed.refusals:
        say(f"not used: {refusal.bundle}: {refusal.reason}")
    return Exit.NOTHING_FITS if any(row.unserved for row in crossed.hosts) else Exit.OK
