"""`aot bytecode`: bytecode for images without `.pyc` files. Parsing here, work in `aot.cli.bytecode`."""

from typing import Annotated

import typer

from aot.cli.options import AsBundle, Json

Distributions = Annotated[
    list[str], typer.Option("--distribution", help="Installed distribution, or `python` for the standard library.")
]


def add_bytecode(app: typer.Typer) -> None:
    bytecode = typer.Typer(
        help="Bytecode for images that come without .pyc files.", no_args_is_help=True, rich_markup_mode=None
    )
    app.add_typer(bytecode, name="bytecode")

    @bytecode.command()
    def build(
        name: Annotated[str, typer.Argument(help="[namespace/]name:tag of the bundle.")],
        command: Annotated[
            list[str], typer.Argument(help="Behind --: a command; only what it imports is compiled.")
        ] = [],  # noqa: B006
        distribution: Distributions = [],  # noqa: B006
        profile: Annotated[
            str | None, typer.Option("--profile", help="With --push: whose workers have the same installed.")
        ] = None,
        as_bundle: AsBundle = None,
        push: Annotated[
            bool, typer.Option("--push", help="Push to the registry: pending until a worker made the same bytes.")
        ] = False,
        json: Json = False,
    ) -> None:
        """Compile the modules of installed distributions: all of the named ones, or those that a command imports."""
        from aot.cli import bytecode as work
        from aot.cli.output import emit

        built = work.build(
            name, distributions=distribution, command=command, profile=profile, directory=as_bundle, push=push
        )
        emit(built.to_json(), work.built_lines(built), as_json=json)
