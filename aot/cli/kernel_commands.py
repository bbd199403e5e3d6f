"""`aot kernel`: Triton kernels for cards that are not here. Parsing here, work in `aot.cli.kernel_build`."""

from pathlib import Path
from typing import Annotated

import typer

from aot.cli.options import Json, Requirements

Targets = Annotated[list[str], typer.Option("--target", help="cuda:sm_90, rocm:gfx942, ...; several are allowed.")]


def add_kernels(app: typer.Typer) -> None:
    kernel = typer.Typer(
        help="Build Triton kernels for cards that are not here.", no_args_is_help=True, rich_markup_mode=None
    )
    app.add_typer(kernel, name="kernel")

    @kernel.command()
    def build(
        name: Annotated[str, typer.Argument(help="[namespace/]name[:tag] of the bundle.")],
        target: Targets,
        entry: Annotated[str, typer.Option(help="module:function in the tree: the function with @triton.jit.")],
        signatures: Annotated[Path, typer.Option(help="TOML file of [[signature]] tables.")],
        source: Annotated[Path, typer.Option(help="Directory of the source tree.")] = Path("."),
        require: Requirements = [],  # noqa: B006
        as_bundle: Annotated[
            Path | None, typer.Option("--as-bundle", help="Write a bundle a target below this new directory.")
        ] = None,
        push: Annotated[bool, typer.Option("--push", help="Push to the registry: pending, not run.")] = False,
        json: Json = False,
    ) -> None:
        """Compile one kernel for every target: untuned, and not run until a worker with that card has."""
        from aot.cli import kernel_build
        from aot.cli.output import emit

        request = kernel_build.Request.parse(
            name, targets=target, entry=entry, signatures=signatures, source=source, requirements=require
        )
        built = kernel_build.build(request, directory=as_bundle, push=push)
        emit([one.to_json() for one in built], kernel_build.lines(built), as_json=json)

    @kernel.command()
    def targets(json: Json = False) -> None:
        """List every target that kernels can be built for."""
        from aot.cli.output import emit, table
        from aot.compile.kernels.targets import TARGETS

        rows = [(one.capability, str(one.warp_size), str(one.shared_bytes)) for one in TARGETS.values()]
        facts = [{"target": row[0], "warp_size": int(row[1]), "shared_bytes": int(row[2])} for row in rows]
        emit(facts, table(("target", "warp", "shared bytes a block"), rows), as_json=json)
