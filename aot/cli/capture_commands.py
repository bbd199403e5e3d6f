"""`aot capture` and `aot run`: compiler caches of any command. Parsing here, work in `aot.cli.capture`."""

from pathlib import Path
from typing import Annotated

import typer

from aot.cli.options import AsBundle, Json, LockOption

Command = Annotated[list[str], typer.Argument(help="Behind --: the command.")]


def add_capture(app: typer.Typer) -> None:
    @app.command()
    def capture(
        name: Annotated[str, typer.Argument(help="[namespace/]name:tag of the bundle.")],
        command: Command = [],  # noqa: B006
        source: Annotated[
            Path | None,
            typer.Option("--source", help="Tree of the command; with --push: a worker starts it at its root."),
        ] = None,
        require: Annotated[
            list[str], typer.Option("--require", help="Exact pin that the command needs: name==1.2.3.")
        ] = [],  # noqa: B006
        profile: Annotated[str | None, typer.Option("--profile", help="With --push: whose worker proves it.")] = None,
        once: Annotated[
            bool, typer.Option("--once", help="Run the command once: nothing is pruned, nor shown to be found.")
        ] = False,
        as_bundle: AsBundle = None,
        push: Annotated[
            bool, typer.Option("--push", help="Push to the registry: pending until a worker has captured it again.")
        ] = False,
        json: Json = False,
    ) -> None:
        """Run a command with compiler caches of its own, and make a bundle of what it leaves in them."""
        from aot.cli import capture as work
        from aot.cli.output import emit

        asked = work.Asked(name, command, source, tuple(require), profile, once=once)
        made = work.capture_command(asked, directory=as_bundle, push=push)
        emit(made.to_json(), work.made_lines(made), as_json=json)

    @app.command()
    def run(
        reference: Annotated[
            str | None, typer.Argument(help="[namespace/]name:tag; left out where the lock pins one name.")
        ] = None,
        command: Command = [],  # noqa: B006
        lock: LockOption = None,
        bytecode: Annotated[
            str | None, typer.Option("--bytecode", help="Also restore the bytecode of this reference.")
        ] = None,
        write_back: Annotated[
            bool, typer.Option("--write-back", help="Push what was compiled, with all that was restored.")
        ] = False,
        idle_seconds: Annotated[
            float,
            typer.Option(
                "--idle-seconds",
                min=0.0,
                help="With --write-back: push beside the command when so long idle; 0: at exit.",
            ),
        ] = 30.0,
    ) -> int:
        """Restore the compiler caches that fit this host, and run a command on them: `aot run name:tag -- CMD`."""
        from aot.cli import capture as work

        named, behind = work.split_arguments(reference, command, lock=lock)
        return work.run_command_on(
            named, behind, lock=lock, bytecode=bytecode, write_back=write_back, idle_seconds=idle_seconds
        )
