"""`aot kernels`: the machine code in the registry's bundles, kernel by kernel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from aot.cli.options import After, Json, Limit

if TYPE_CHECKING:
    from aot.schema.wire.kernels import KernelView


def add_kernel_search(app: typer.Typer) -> None:
    @app.command()
    def kernels(
        name: Annotated[str | None, typer.Option(help="How a kernel's name begins; sorts by name.")] = None,
        capability: Annotated[str | None, typer.Option(help="Where it is to run: cuda:sm_90, rocm:gfx942.")] = None,
        bundle: Annotated[str | None, typer.Option(help="Digest of the bundle that holds it.")] = None,
        blob: Annotated[str | None, typer.Option(help="Digest of the file that holds it.")] = None,
        limit: Limit = None,
        after: After = None,
        json: Json = False,
    ) -> None:
        """List the kernels in bundles, those of the newest bundle first; with --name by name.

        --capability finds what runs there, whatever it is called: Triton compiles cuda:sm_90a for a cuda:sm_90 card.
        """
        from aot.cli.builds import connected
        from aot.cli.output import emit, say
        from aot.schema.capability import Capability
        from aot.schema.digest import Digest

        listing = connected().list_kernels(
            text=name,
            capability=Capability.parse(capability) if capability else None,
            bundle=Digest.parse(bundle) if bundle else None,
            blob=Digest.parse(blob) if blob else None,
            limit=limit,
            after=after,
        )
        emit(listing, kernel_lines(listing.kernels), as_json=json)
        if capability and not json:
            say(runs_line(capability, listing.capabilities))
        if listing.next and not json:
            say(f"there is more: --after '{listing.next}'")


def runs_line(capability: str, found: Sequence[str] | None) -> str:
    """What was compared with; None: an older registry, which knows equal ones alone."""
    match found:
        case None:
            return f"compiled for {capability} by that very name; this registry does not say what else runs there"
        case ():
            return f"no kernel here is compiled for anything that {capability} runs"
        case _:
            return f"{capability} runs code for: {', '.join(found)}"


def kernel_lines(kernels: Sequence["KernelView"]) -> list[str]:
    """A table; "-" for what the bytes of a kernel do not say."""
    from aot.cli.output import table

    rows = [
        (
            view.name,
            view.capability,
            _number(view.registers),
            _number(view.shared_bytes),
            _number(view.spill_bytes),
            str(view.size_bytes),
            f"{view.namespace}/{view.model}",
            view.bundle.short,
            view.state,
        )
        for view in kernels
    ]
    return table(("kernel", "for", "registers", "shared", "spills", "bytes", "model", "bundle", "state"), rows)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
