"""The commands `aot tag` and `aot untag`: parsing here, work in `aot.cli.tags`."""

from typing import Annotated

import typer

from aot.cli.options import Json, LockOption

Tagged = Annotated[str, typer.Argument(metavar="NAME:TAG", help="name:tag; with --lock the tag alone.")]


def add_tags(app: typer.Typer) -> None:
    @app.command()
    def tag(
        reference: Tagged,
        bundle: Annotated[str | None, typer.Argument(help="Digest of the bundle; not with --lock.")] = None,
        lock: LockOption = None,
        json: Json = False,
    ) -> int:
        """Move a tag, which keeps its bundle: `aot tag name:tag sha256:...`, or `aot tag --lock aot.lock tag`."""
        from aot.cli import tags

        return tags.tag(reference, bundle, lock=lock, as_json=json)

    @app.command()
    def untag(
        reference: Tagged,
        bundle: Annotated[str | None, typer.Argument(help="Only where the tag stands for this digest.")] = None,
        lock: LockOption = None,
        json: Json = False,
    ) -> int:
        """Remove a tag: `aot untag name:tag`, or from all that a lock pins: `aot untag --lock aot.lock tag`."""
        from aot.cli import tags

        return tags.untag(reference, bundle, lock=lock, as_json=json)
