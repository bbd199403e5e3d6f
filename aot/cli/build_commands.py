"""Commands that build: parsing here, work in `aot.cli.builds` and `aot.cli.ensure`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from aot.cli.options import (
    AsBundle,
    Dimensions,
    Entry,
    Faster,
    Freeze,
    Here,
    Json,
    Log,
    ModeOption,
    Options,
    Priority,
    ProfileOption,
    RegionsOption,
    Requirements,
    Source,
    Tags,
    Weights,
)


def add_builds(app: typer.Typer) -> None:
    app.command()(submit)
    app.command()(build)
    app.command()(wait)
    app.command()(cancel)
    app.command()(ensure)


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
    from aot.cli.output import emit, say

    submission = _submission(locals())
    reply = builds.submit(builds.connected(), submission, priority=priority)
    emit(reply, [reply.build.id], as_json=json)
    say(builds.describe(reply.build))


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
    here: Here = False,
    as_bundle: AsBundle = None,
    log: Log = False,
    json: Json = False,
) -> None:
    """Submit a model and follow it until it is published.

    With --here it is built on this machine and pushed; with --as-bundle as well, it is written there for `aot push`.
    """
    from aot.cli import builds
    from aot.cli.here import build_to_directory, build_to_push
    from aot.cli.output import emit
    from aot.errors import InvalidInput

    submission = _submission(locals())
    if as_bundle is not None and not here:
        raise InvalidInput(
            "--as-bundle belongs to --here", hint=f"without --here, fetch it afterwards: aot pull {name} --as-bundle"
        )
    client = builds.connected()
    if as_bundle is not None:
        stored = build_to_directory(client, submission, as_bundle)
        emit({"bundle": stored.digest, "directory": str(stored.directory)}, [stored.digest], as_json=json)
        return
    started = (
        build_to_push(client, submission) if here else builds.submit(client, submission, priority=priority).build.id
    )
    builds.follow(client, started, as_json=json, log=log)


def wait(
    build: str,
    timeout: Annotated[float | None, typer.Option(help="Give up after so many seconds.")] = None,
    log: Log = False,
    json: Json = False,
) -> None:
    """Follow a build until it is published."""
    from aot.cli import builds

    builds.follow(builds.connected(), build, as_json=json, log=log, timeout_seconds=timeout)


def cancel(build: str, reason: str = "", json: Json = False) -> None:
    """Cancel a build; a running one ends within seconds."""
    from aot.cli import builds
    from aot.cli.output import emit

    view = builds.connected().cancel(build, reason=reason)
    emit(view, [builds.describe(view)], as_json=json)


def ensure(
    file: Annotated[Path, typer.Option("-f", "--file", help="Project file.")] = Path("aot.toml"),
    lock: Annotated[
        Path,
        typer.Option("--lock", help="Lock file to keep; under another name it belongs into .aotignore."),
    ] = Path("aot.lock"),
    here: Annotated[bool, typer.Option("--here", help="Build what is missing on this machine.")] = False,
    json: Json = False,
) -> None:
    """The CI step: every model of a project has a proven bundle, and a lock pins them."""
    from aot.cli.context import read_config
    from aot.cli.ensure import ensure as run

    run(read_config(), project_path=file, lock_path=lock, here=here, as_json=json)


def _submission(given: dict[str, Any]) -> Any:
    from aot.cli import builds

    recipe = builds.make_recipe(
        mode=given["mode"],
        dimensions=given["dim"],
        options=given["option"],
        regions=given["regions"],
        freeze=given["freeze"],
        require_faster=given["require_faster"],
    )
    return builds.Submission.parse(
        given["name"],
        source=given["source"],
        entry=given["entry"],
        requirements=given["require"],
        weights=given["weights"],
        profile=given["profile"],
        tags=given["tag"],
        recipe=recipe,
    )
