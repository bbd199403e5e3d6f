"""The table of commands: parsing here, work in the modules beside it. Each module is imported when its command runs."""

from pathlib import Path
from typing import Annotated

import typer

from aot.cli.build_commands import add_builds
from aot.cli.bytecode_commands import add_bytecode
from aot.cli.capture_commands import add_capture
from aot.cli.explain_commands import add_verdicts
from aot.cli.kernel_commands import add_kernels
from aot.cli.kernel_search import add_kernel_search
from aot.cli.megacache_commands import add_megacache
from aot.cli.options import (
    After,
    AsBundle,
    Guards,
    HostOption,
    Json,
    Limit,
    LockOption,
    StateOption,
    Tags,
    WantedOption,
    Weights,
)
from aot.cli.tag_commands import add_tags

Directory = Annotated[Path, typer.Argument(help="A bundle's directory.")]


def create_app() -> typer.Typer:
    """Return the command line, not yet run."""
    app = typer.Typer(
        name="aot",
        help="Compile PyTorch models before the pod exists; fetch, verify and run them at pod start.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for add in (
        _add_service,
        _add_admin,
        add_builds,
        add_kernels,
        add_bytecode,
        add_capture,
        add_megacache,
        _add_bundles,
        add_tags,
        add_kernel_search,
        _add_directories,
        _add_pod,
        add_verdicts,
    ):
        add(app)
    return app


def _add_service(app: typer.Typer) -> None:
    @app.command()
    def up(
        data: Annotated[Path | None, typer.Option(help="Data directory; AOT_DATA_DIR if left out.")] = None,
        host: Annotated[
            str, typer.Option(help="Address to bind; loopback by default.", envvar="AOT_HOST")
        ] = "127.0.0.1",
        port: Annotated[
            int, typer.Option(min=0, max=65535, help="Port to bind; 0 takes a free one.", envvar="AOT_PORT")
        ] = 8750,
        worker: Annotated[bool, typer.Option(help="Also start one worker for this host.")] = True,
        json: Json = False,
    ) -> None:
        """Serve a registry with one worker on this machine until Ctrl-C."""
        from aot.cli.context import read_config
        from aot.cli.up import Place, serve
        from aot.config import whole_environ

        place = Place.choose((data or read_config().data_dir).absolute(), host, port)
        serve(place, whole_environ(), worker=worker, as_json=json)

    @app.command()
    def version(json: Json = False) -> None:
        """Print the version."""
        from aot import __version__
        from aot.cli.output import emit

        emit({"version": __version__}, [__version__], as_json=json)


class _HandedOn(typer.core.TyperCommand):
    """Whatever follows is another command's word for word: its `--help`, and a `--`, which click would take out."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


def _add_admin(app: typer.Typer) -> None:
    @app.command(cls=_HandedOn, add_help_option=False)
    def admin(context: typer.Context) -> None:
        """Keep a registry's house where it runs: check, sweep, retain, fsck, reindex, migrate, keys, token, serve."""
        from aot.cli.admin import become
        from aot.config import whole_environ

        become(context.args, whole_environ())


def _add_bundles(app: typer.Typer) -> None:
    @app.command(name="ls")
    def list_(
        name: Annotated[str | None, typer.Argument(help="[namespace/]name[:tag] to narrow to.")] = None,
        builds: Annotated[bool, typer.Option("--builds", help="List builds instead of bundles.")] = False,
        state: StateOption = None,
        guard: Guards = [],  # noqa: B006
        limit: Limit = None,
        after: After = None,
        json: Json = False,
    ) -> None:
        """List bundles, or builds, the newest first."""
        from aot.cli import builds as of_builds
        from aot.cli import bundles as of_bundles
        from aot.cli.output import emit, say
        from aot.errors import InvalidInput

        if builds and guard:
            raise InvalidInput("--guard narrows bundles, and --builds lists builds", hint="leave one of them out")
        if state and not builds:
            raise InvalidInput("--state narrows builds, and bundles are listed", hint="add --builds")
        client, narrowed = of_builds.connected(), of_bundles.narrow(name)
        if builds:
            narrowed.pop("tag", None)
            chosen = of_builds.parse_state(state)
            listing = client.list_builds(**narrowed, state=chosen, limit=limit, after=after)
            emit(listing, of_builds.list_lines(listing.builds), as_json=json)
        else:
            listing = client.search(**narrowed, guards=tuple(guard), limit=limit, after=after)
            emit(listing, of_bundles.list_lines(listing.bundles), as_json=json)
        if listing.next and not json:
            say(f"there is more: --after '{listing.next}'")

    @app.command()
    def show(
        what: Annotated[str, typer.Argument(help="Build, bundle digest, or reference.")],
        whole_log: Annotated[bool, typer.Option("--whole-log", help="Show all of the log, not its end.")] = False,
        kernels: Annotated[bool, typer.Option("--kernels", help="Show what tuning chose for each kernel.")] = False,
        json: Json = False,
    ) -> None:
        """Show a build with its report and log, or bundles with their proof."""
        from aot.cli import builds, bundles
        from aot.cli.output import emit, say

        client = builds.connected()
        if (view := bundles.find_build(client, what)) is None:
            emit(*bundles.show(client, what, kernels=kernels), as_json=json)
            return
        emit(view, builds.show_lines(view), as_json=json)
        if not json:
            for line in builds.log_lines(client, what, most=None if whole_log else builds.LOG_LINES):
                say(line)

    @app.command()
    def withdraw(
        bundle: str,
        reason: Annotated[str, typer.Option(help="Why; users read it.")],
        replacement: Annotated[str | None, typer.Option(help="Digest of the bundle to use instead.")] = None,
        json: Json = False,
    ) -> None:
        """Take a bundle out of selection; its bytes are kept."""
        from aot.cli import builds
        from aot.cli.output import emit
        from aot.schema.digest import Digest

        other = Digest.parse(replacement) if replacement else None
        view = builds.connected().withdraw(Digest.parse(bundle), reason=reason, replacement=other)
        emit(view, [f"{view.digest} {view.state}: {view.withdrawn_reason}"], as_json=json)


def _add_directories(app: typer.Typer) -> None:
    @app.command()
    def inspect(directory: Directory, json: Json = False) -> None:
        """Show a bundle on disk without running anything of it."""
        from aot.cli import directories
        from aot.cli.output import emit

        emit(*directories.inspect(directory), as_json=json)

    @app.command()
    def verify(
        directory: Directory,
        reference: Annotated[str | None, typer.Option(help="What it should be: name, or name@sha256:...")] = None,
        json: Json = False,
    ) -> None:
        """Check every byte and the signature of a bundle on disk."""
        from aot.cli import directories
        from aot.cli.context import read_config, trusted_keys
        from aot.cli.output import emit

        stored = directories.verify(directory, trusted_keys(read_config()), reference=reference)
        line = f"{stored.digest} whole: {len(stored.manifest.blobs)} blob(s), signature verified"
        emit({"ok": True, "bundle": stored.digest}, [line], as_json=json)

    @app.command()
    def push(
        directory: Directory,
        tag: Tags = [],  # noqa: B006
        source: Annotated[
            Path | None, typer.Option(help="What it was built from, for a registry that lacks it: tree, or .pt2 file.")
        ] = None,
        weights: Weights = [],  # noqa: B006
        json: Json = False,
    ) -> None:
        """Publish a bundle that was built here: pending until a worker has proven it again."""
        from aot.cli import builds, directories
        from aot.cli.output import emit

        reply = directories.push(builds.connected(), directory, tags=tag, source=source, weights=weights)
        emit(reply, [directories.pushed_line(reply)], as_json=json)


def _add_pod(app: typer.Typer) -> None:
    @app.command()
    def pull(
        reference: Annotated[str | None, typer.Argument()] = None,
        lock: LockOption = None,
        into: Annotated[Path | None, typer.Option(help="Cache directory to fill; AOT_CACHE_DIR if left out.")] = None,
        host: HostOption = None,
        same_container: Annotated[
            bool, typer.Option("--same-container", help="This container is the one that will run.")
        ] = False,
        as_bundle: AsBundle = None,
        profile: Annotated[str | None, typer.Option(help="With --as-bundle: of several, the one of this.")] = None,
        bytecode: Annotated[
            bool,
            typer.Option("--bytecode", help="A bundle of bytecode: restore it for this image, and print what to set."),
        ] = False,
        json: Json = False,
    ) -> int:
        """Fetch what fits this node, for one reference or for every entry of a lock."""
        from aot.cli import pod
        from aot.cli.exits import Exit
        from aot.cli.host import read_host
        from aot.cli.output import emit, say
        from aot.runtime.pod import pull as run

        if bytecode:
            from aot.cli import bytecode as of_bytecode

            pod.refuse_with_bytecode(host=host, as_bundle=as_bundle, profile=profile)
            return of_bytecode.pull(reference, lock=lock, into=into, as_json=json)
        if as_bundle is not None:
            stored = pod.pull_bundle(reference, as_bundle, profile=profile, lock=lock, into=into, host=host)
            emit({"bundle": stored.digest, "directory": str(stored.directory)}, [stored.digest], as_json=json)
            return Exit.OK
        environment = read_host(host) if host is not None else None
        pulled = run(reference, lock=lock, into=into, environment=environment, same_container=same_container)
        emit(pulled, pod.pulled_lines(pulled), as_json=json)
        for one in pulled:
            for reason in () if one.bundle else one.selection.reasons:
                say(f"  {reason}")
        return Exit.OK if all(one.bundle for one in pulled) else Exit.NOTHING_FITS

    @app.command()
    def doctor(wanted: WantedOption = None, json: Json = False) -> int:
        """Say what this host is and what is wrong with it; exit 0 where nothing keeps it from what it is for.

        4 where something does. A registry that is configured and cannot be used has its own code: 5 where it cannot be
        reached, 7 where it refuses.
        """
        from aot.cli.context import read_config
        from aot.cli.doctor import look_around, report_lines
        from aot.cli.output import emit

        report = look_around(read_config(), wanted=wanted)
        emit(report, report_lines(report), as_json=json)
        return report.exit_code
