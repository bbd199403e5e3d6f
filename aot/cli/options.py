"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")]
LockOption = Annotated[Path | None, typer.Option("--lock", help="Lock file that pins names to digests.")]
HostOption = Annotated[Path | None, typer.Option("--host", help="Host file written by `aot doctor --json`.")]
Source = Annotated[Path, typer.Option(help="Directory of the source tree, or an exported program (.pt2).")]
Entry = Annotated[str | None, typer.Option(help="module:function in the tree: the factory.")]
Requirements = Annotated[list[str], typer.Option("--require", help="Exact pin that the factory needs: name==1.2.3.")]
Weights = Annotated[list[Path], typer.Option("--weights", help="safetensors file.")]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="Target; AOT_PROFILE, or the best that fits this CPU, if left out.")
]
Tags = Annotated[list[str], typer.Option("--tag", help="Further tag to move when published.")]
ModeOption = Annotated[str, typer.Option("--mode", help="torch.compile's mode.")]
Dimensions = Annotated[list[str], typer.Option("--dim", help="batch=1..32, length=128,512 (buckets), batch=8.")]
Options = Annotated[list[str], typer.Option("--option", help="Inductor option name=value.")]
RegionsOption = Annotated[str, typer.Option("--regions", help="whole, or auto: repeated blocks compiled once.")]
Freeze = Annotated[bool, typer.Option("--freeze", help="Fold the weights in: a bundle for this checkpoint alone.")]
Faster = Annotated[bool, typer.Option("--require-faster", help="Fail unless compiled beats eager everywhere.")]
Priority = Annotated[int, typer.Option(help="Higher is claimed first.")]
Log = Annotated[bool, typer.Option("--log", help="Also show the build's log lines.")]
Here = Annotated[bool, typer.Option("--here", help="Build on this machine and push, instead of on a worker.")]
AsBundle = Annotated[Path | None, typer.Option("--as-bundle", help="Write the whole bundle to this new directory.")]
Limit = Annotated[int | None, typer.Option(help="List at most so many.")]
After = Annotated[str | None, typer.Option(help="Go on where an earlier list ended.")]
