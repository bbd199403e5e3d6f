"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Ability(StrEnum):
    """What a host is for."""

    SERVING = "serving"
    BUILDING = "building"


Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")]
LockOption = Annotated[Path | None, typer.Option("--lock", help="Lock file that pins names to digests.")]
HostOption = Annotated[
    str | None,
    typer.Option("--host", help="File that `aot doctor --json` wrote, or a host: h100-sxm,driver=550,torch=2.12."),
]
WantedOption = Annotated[
    Ability | None,
    typer.Option("--for", help="What the host is for; serving, and building where it has a compiler, if left out."),
]
Source = Annotated[Path, typer.Option(help="Directory of the source tree, or an exported program (.pt2).")]
Entry = Annotated[str | None, typer.Option(help="module:function in the tree: the factory.")]
Requirements = Annotated[list[str], typer.Option("--require", help="Exact pin that the factory needs: name==1.2.3.")]
Weights = Annotated[list[Path], typer.Option("--weights", help="safetensors file.")]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="Target, or several (cpu-x86-64-v2,v3,v4); AOT_PROFILE, or the best that fits this CPU, if left out.",
    ),
]
Tags = Annotated[list[str], typer.Option("--tag", help="Further tag to move when published.")]
ModeOption = Annotated[str, typer.Option("--mode", help="torch.compile's mode.")]
Dimensions = Annotated[list[str], typer.Option("--dim", help="batch=1..32, length=128,512 (buckets), batch=8.")]
Options = Annotated[list[str], typer.Option("--option", help="Inductor option name=value.")]
RouteOption = Annotated[
    str | None,
    typer.Option(
        "--route",
        help="package if left out; function: one graph that export does not take; package,function: the first of both.",
    ),
]
RegionsOption = Annotated[str, typer.Option("--regions", help="whole, or auto: repeated blocks compiled once.")]
Dynamic = Annotated[
    bool | None,
    typer.Option("--dynamic/--no-dynamic", help="Open every size, or none; the source's dimensions if left out."),
]
FullGraph = Annotated[bool, typer.Option("--fullgraph/--no-fullgraph", help="torch.compile's fullgraph.")]
RandomOption = Annotated[
    str, typer.Option("--random", help="refuse, or unchecked: build what draws random numbers, its outputs unproven.")
]
Variables = Annotated[list[str], typer.Option("--env", help="Variable NAME=value that the compile and the proof see.")]
Limiting = Annotated[
    list[str], typer.Option("--limit", help="memory_bytes=32G, wall_seconds=7200, processes=64, disk_bytes=40G.")
]
Freeze = Annotated[bool, typer.Option("--freeze", help="Fold the weights in: a bundle for this checkpoint alone.")]
Faster = Annotated[bool, typer.Option("--require-faster", help="Fail unless compiled beats eager everywhere.")]
Priority = Annotated[int, typer.Option(help="Higher is built sooner; below 0 is bulk, and waits for others.")]
Log = Annotated[bool, typer.Option("--log", help="Also show the build's log lines.")]
Here = Annotated[bool, typer.Option("--here", help="Build on this machine and push, instead of on a worker.")]
From = Annotated[
    str | None,
    typer.Option("--from", help="With --here: a proven bundle whose kernels are lowered for the card of --profile."),
]
AsBundle = Annotated[Path | None, typer.Option("--as-bundle", help="Write the whole bundle to this new directory.")]
Limit = Annotated[int | None, typer.Option(help="List at most so many.")]
Guards = Annotated[
    list[str],
    typer.Option("--guard", help="KIND or KIND=VALUE that one of its artifacts puts; may be given several times."),
]
StateOption = Annotated[
    str | None, typer.Option("--state", help="With --builds: queued, running, published, failed or cancelled.")
]
After = Annotated[str | None, typer.Option(help="Go on where an earlier list ended.")]
