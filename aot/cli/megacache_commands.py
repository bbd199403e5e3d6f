"""`aot import megacache` and `aot export megacache`. Parsing here, work in `aot.cli.megacache`."""

from pathlib import Path
from typing import Annotated

import typer

from aot.cli.options import AsBundle, Json


def add_megacache(app: typer.Typer) -> None:
    importing = typer.Typer(help="Take in what another tool has saved.", no_args_is_help=True, rich_markup_mode=None)
    exporting = typer.Typer(help="Give what another tool can load.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(importing, name="import")
    app.add_typer(exporting, name="export")

    @importing.command(name="megacache")
    def import_(
        file: Annotated[Path, typer.Argument(help="What torch.compiler.save_cache_artifacts returned.")],
        name: Annotated[str, typer.Argument(help="[namespace/]name:tag of the bundle.")],
        command: Annotated[
            list[str], typer.Argument(help="Behind --: what a worker runs to prove that the entries are found.")
        ] = [],  # noqa: B006
        source: Annotated[
            Path | None, typer.Option(help="Tree of the command, needed with --push: a worker starts it there.")
        ] = None,
        profile: Annotated[
            str | None, typer.Option("--profile", help="With --push: of a worker like this host.")
        ] = None,
        as_bundle: AsBundle = None,
        push: Annotated[bool, typer.Option("--push", help="Push to the registry: pending until proven.")] = False,
        json: Json = False,
    ) -> None:
        """Split a Mega-Cache file into entries, each a blob. Run it where it was saved, with the same variables."""
        from aot.cli import megacache
        from aot.cli.output import emit

        taken = megacache.take(
            file, name, command=command, source=source, profile=profile, directory=as_bundle, push=push
        )
        emit(taken.to_json(), megacache.taken_lines(taken), as_json=json)

    @exporting.command(name="megacache")
    def export(
        reference: Annotated[str, typer.Argument(help="name:tag of a bundle of caches, or a bundle's directory.")],
        file: Annotated[Path, typer.Argument(help="File to write, for torch.compiler.load_cache_artifacts.")],
        profile: Annotated[str | None, typer.Option("--profile", help="Of several bundles, the one of this.")] = None,
        json: Json = False,
    ) -> None:
        """Write the entries of a bundle as a Mega-Cache file."""
        from aot.cli import megacache
        from aot.cli.output import emit

        given = megacache.give(reference, file, profile=profile)
        emit(given.to_json(), megacache.given_lines(given), as_json=json)
