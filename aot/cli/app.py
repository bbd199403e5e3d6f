"""The table of commands: parsing here, work in the modules beside it. Each module is imported when its command runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")]
LockOption = Annotated[Path | None, typer.Option("--lock", help="Lock file that pins names to digests.")]
HostOption = Annotated[Path | None, typer.Option("--host", help="Host file written by `aot doctor --json`.")]
Source = Annotated[Path, typer.Option(help="Directory of the source tree, or an exported program (.pt2).")]
Entry = Annotated[str | None, typer.Option(help="module:function in the tree: the factory.")]
Requirements = Annotated[list[str], typer.Option("--require", help="Exact pin that the factory needs: name==1.2.3.")]
Weights = Annotated[list[Path], typer.Option("--weights", help="safetensors file.")]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="Target; the best that fits this CPU if left out.")
]
Tags = Annotated[list[str], typer.Option("--tag", help="Further tag to move when published.")]
ModeOption = Annotated[str, typer.Option("--mode", help="torch.compile's mode.")]
Dimensions = Annotated[list[str], typer.Option("--dim", help="batch=1..32, length=128,512 (buckets), batch=8.")]
Options = Annotated[list[str], typer.Option("--option", help="Inductor option name=value.")]
RegionsOption = Annotated[str, typer.Option("--regions", help="whole, or auto: repeated blocks compiled once.")]
Freeze = Annotated[bool, typer.Option("--freeze", help="Fold the weights in: a bundle for this checkpoint alone.")]
Faster = Annotated[bool, typer.Option("--require-faster", help="Fail unless compiled beats eager everywhere.")]
Priority = Annotated[int, typer.Option(help="Higher is claimed first.")]


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
    for add in (_add_service, _add_builds, _add_bundles, _add_pod):
        add(app)
    return app


def _add_service(app: typer.Typer) -> None:
    @app.command()
    def up(
        data: Annotated[Path | None, typer.Option(help="Data directory; AOT_DATA_DIR if left out.")] = None,
        host: Annotated[str, typer.Option(help="Address to bind; loopback by default.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="Port to bind.")] = 8750,
        worker: Annotated[bool, typer.Option(help="Also start one worker for this host.")] = True,
    ) -> None:
        """Serve a registry with one worker on this machine until Ctrl-C."""
        from aot.cli.context import read_config
        from aot.cli.up import Place, serve
        from aot.config import whole_environ

        serve(Place((data or read_config().data_dir).absolute(), host, port), whole_environ(), worker=worker)

    @app.command()
    def version(json: Json = False) -> None:
        """Print the version."""
        from aot import __version__
        from aot.cli.output import emit

        emit({"version": __version__}, [__version__], as_json=json)


def _add_builds(app: typer.Typer) -> None:
    @app.command()
    def submit(
        name: str,
        source: Source = Path("."),
        entry: Entry = None,
        require: Requirements = [],  # noqa: B006
        weights: Weights = [],  # noqa: B006
        profile: ProfileOption = None,
        tag: Tags = [],  # noqa: B006
        mode: ModeOption = "max-autotune",
        dim: Dimensions = [],  # noqa: B006
        option: Options = [],  # noqa: B006
        regions: RegionsOption = "whole",
        freeze: Freeze = False,
        require_faster: Faster = False,
        priority: Priority = 0,
        json: Json = False,
    ) -> None:
        """Submit a model for compilation and print its build."""
        from aot.cli import builds
        from aot.cli.output import emit

        reply = _submit(locals())
        emit(reply, [reply.build.id], as_json=json)
        builds.say(builds.describe(reply.build))

    @app.command()
    def build(
        name: str,
        source: Source = Path("."),
        entry: Entry = None,
        require: Requirements = [],  # noqa: B006
        weights: Weights = [],  # noqa: B006
        profile: ProfileOption = None,
        tag: Tags = [],  # noqa: B006
        mode: ModeOption = "max-autotune",
        dim: Dimensions = [],  # noqa: B006
        option: Options = [],  # noqa: B006
        regions: RegionsOption = "whole",
        freeze: Freeze = False,
        require_faster: Faster = False,
        priority: Priority = 0,
        log: Annotated[bool, typer.Option(help="Also show the build's log lines.")] = False,
        json: Json = False,
    ) -> None:
        """Submit a model and follow it until it is published."""
        from aot.cli import builds

        reply = _submit(locals())
        builds.follow(builds.connected(), reply.build.id, as_json=json, log=log)

    @app.command()
    def wait(
        build: str, log: Annotated[bool, typer.Option(help="Also show log lines.")] = False, json: Json = False
    ) -> None:
        """Follow a build until it is published."""
        from aot.cli import builds

        builds.follow(builds.connected(), build, as_json=json, log=log)

    @app.command()
    def cancel(build: str, reason: str = "", json: Json = False) -> None:
        """Cancel a build; a running one ends within seconds."""
        from aot.cli import builds
        from aot.cli.output import emit

        view = builds.connected().cancel(build, reason=reason)
        emit(view, [builds.describe(view)], as_json=json)

    @app.command()
    def ensure(
        file: Annotated[Path, typer.Option("-f", "--file", help="Project file.")] = Path("aot.toml"),
        lock: Annotated[Path, typer.Option("--lock", help="Lock file to keep.")] = Path("aot.lock"),
        here: Annotated[bool, typer.Option("--here", help="Build what is missing on this machine.")] = False,
        json: Json = False,
    ) -> None:
        """The CI step: every model of a project has a proven bundle, and a lock pins them."""
        from aot.cli.context import read_config
        from aot.cli.ensure import ensure as run

        run(read_config(), project_path=file, lock_path=lock, here=here, as_json=json)


def _add_bundles(app: typer.Typer) -> None:
    @app.command(name="ls")
    def list_(
        name: Annotated[str | None, typer.Argument(help="[namespace/]name to narrow to.")] = None,
        builds: Annotated[bool, typer.Option("--builds", help="List builds instead of bundles.")] = False,
        json: Json = False,
    ) -> None:
        """List bundles, or builds."""
        from aot.cli import builds as of_builds
        from aot.cli import bundles as of_bundles
        from aot.cli.output import emit

        client = of_builds.connected()
        if builds:
            found = client.list_builds(**_narrowed(name))
            emit(found, of_builds.list_lines(found.builds), as_json=json)
        else:
            listing = client.search(**_narrowed(name))
            emit(listing, of_bundles.list_lines(listing.bundles), as_json=json)

    @app.command()
    def show(what: Annotated[str, typer.Argument(help="Build, or reference.")], json: Json = False) -> None:
        """Show a build with its report and log, or the bundles of a reference with their proof."""
        from aot.cli import builds, bundles
        from aot.cli.output import emit, say
        from aot.errors import InvalidName, NotFound

        client = builds.connected()
        try:
            view = client.get_build(what)
        except (NotFound, InvalidName):
            signed = bundles.find_bundles(client, what)
            emit(signed, bundles.show_lines(signed), as_json=json)
            return
        emit(view, builds.show_lines(view), as_json=json)
        if not json:
            for line in client.get_build_log(what).lines:
                say(f"  | {line.text}")

    @app.command()
    def inspect(directory: Path, json: Json = False) -> None:
        """Show a bundle on disk without running anything of it."""
        from aot.cli import bundles
        from aot.cli.output import emit

        manifest, lines = bundles.inspect_directory(directory)
        emit(manifest, lines, as_json=json)

    @app.command()
    def verify(directory: Path, json: Json = False) -> None:
        """Check every byte and the signature of a bundle on disk."""
        from aot.cli import bundles
        from aot.cli.context import read_config, trusted_keys
        from aot.cli.output import emit

        lines = bundles.verify_directory(directory, trusted_keys(read_config()))
        emit({"ok": True}, lines, as_json=json)

    @app.command()
    def push(directory: Path, tag: Tags = [], json: Json = False) -> None:  # noqa: B006
        """Publish a bundle that was built here: pending until a worker has proven it again."""
        from aot.cli import builds
        from aot.cli.output import emit
        from aot.pipeline import push_bundle
        from aot.pipeline.build import read_staged
        from aot.schema.names import Tag

        reply = push_bundle(builds.connected(), read_staged(directory), tags=tuple(map(Tag.parse, tag)))
        emit(reply, [f"{reply.bundle} {reply.state}, proven again by build {reply.build}"], as_json=json)

    @app.command()
    def tag(reference: str, bundle: str, json: Json = False) -> None:
        """Move a tag: `aot tag name:tag sha256:...`."""
        from aot.cli import builds
        from aot.cli.output import emit
        from aot.schema.digest import Digest
        from aot.schema.names import Reference

        view = builds.connected().tag(Reference.parse(reference), Digest.parse(bundle))
        emit(view, [f"{view.reference} -> {view.bundle} ({view.profile})"], as_json=json)

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
        json: Json = False,
    ) -> int:
        """Fetch what fits this node, for one reference or for every entry of a lock."""
        from aot.cli.exits import Exit
        from aot.cli.output import emit, say
        from aot.cli.pod import pulled_lines, read_host
        from aot.runtime.pod import pull as run

        pulled = run(reference, lock=lock, into=into, environment=read_host(host), same_container=same_container)
        emit(pulled, pulled_lines(pulled), as_json=json)
        for one in pulled:
            for reason in () if one.bundle else one.selection.reasons:
                say(f"  {reason}")
        return Exit.OK if all(one.bundle for one in pulled) else Exit.NOTHING_FITS

    @app.command()
    def explain(reference: str, lock: LockOption = None, host: HostOption = None, json: Json = False) -> int:
        """Say of every artifact whether it fits this host, and why not."""
        from aot.cli.exits import Exit
        from aot.cli.output import emit
        from aot.cli.pod import read_host, selection_lines
        from aot.runtime.pod import explain as run

        selection = run(reference, lock=lock, environment=read_host(host))
        emit(selection, selection_lines(selection), as_json=json)
        return Exit.OK if selection.bundle else Exit.NOTHING_FITS

    @app.command()
    def doctor(json: Json = False) -> None:
        """Say what this host is and what is wrong with it."""
        from aot.cli.context import read_config
        from aot.cli.output import emit
        from aot.cli.pod import look_around, report_lines

        report = look_around(read_config().cache_dir)
        emit(report, report_lines(report), as_json=json)


def _submit(given: dict[str, Any]) -> Any:
    from aot.cli import builds

    recipe = builds.make_recipe(
        mode=given["mode"],
        dimensions=given["dim"],
        options=given["option"],
        regions=given["regions"],
        freeze=given["freeze"],
        require_faster=given["require_faster"],
    )
    return builds.submit(
        builds.connected(),
        given["name"],
        source=given["source"],
        entry=given["entry"],
        requirements=given["require"],
        weights=given["weights"],
        profile=given["profile"],
        tags=given["tag"],
        recipe=recipe,
        priority=given["priority"],
    )


def _narrowed(name: str | None) -> dict[str, str]:
    if name is None:
        return {}
    from aot.schema.names import Reference

    reference = Reference.parse(name)
    return {"namespace": reference.namespace, "name": reference.name}
