"""Commands that build: parsing here, work in `aot.cli.builds` and `aot.cli.ensure`."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from aot.cli.options import (
    AsBundle,
    Dimensions,
    Dynamic,
    Entry,
    Faster,
    Freeze,
    From,
    FullGraph,
    Here,
    Json,
    Limiting,
    Log,
    ModeOption,
    Options,
    Priority,
    ProfileOption,
    RandomOption,
    RegionsOption,
    Requirements,
    RouteOption,
    Source,
    Tags,
    Variables,
    Weights,
)


def _read_model(
    name: str,
    source: Source = Path("."),
    entry: Entry = None,
    require: Requirements = [],  # noqa: B006
    weights: Weights = [],  # noqa: B006
    profile: ProfileOption = None,
    tag: Tags = [],  # noqa: B006
    mode: ModeOption = "max-autotune",
    dim: Dimensions = [],  # noqa: B006
    dynamic: Dynamic = None,
    fullgraph: FullGraph = True,
    random: RandomOption = "refuse",
    option: Options = [],  # noqa: B006
    env: Variables = [],  # noqa: B006
    regions: RegionsOption = "whole",
    route: RouteOption = None,
    freeze: Freeze = False,
    require_faster: Faster = False,
    limit: Limiting = [],  # noqa: B006
) -> Any:
    """Return the submission. These parameters are the options of every command that builds a model."""
    from aot.cli import builds, recipe

    asked = recipe.make_recipe(
        mode=mode,
        dimensions=dim,
        dynamic=dynamic,
        fullgraph=fullgraph,
        random=random,
        options=option,
        variables=env,
        regions=regions,
        route=route,
        freeze=freeze,
        require_faster=require_faster,
    )
    return builds.Submission.parse(
        name,
        source=source,
        entry=entry,
        requirements=require,
        weights=weights,
        profile=profile,
        tags=tag,
        recipe=asked,
        limits=recipe.parse_limits(limit),
    )


def _of_a_model(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Give `command` the parameters of `_read_model` before its own; it is handed the submission in their place."""
    shared = inspect.signature(_read_model).parameters
    own = dict(list(inspect.signature(command).parameters.items())[1:])

    def run(**given: Any) -> int | None:
        submission = _read_model(**{name: given.pop(name) for name in shared})
        return command(submission, **given)

    parameters = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in (*shared.values(), *own.values())]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    # Typer reads both.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def add_builds(app: typer.Typer) -> None:
    app.command()(submit)
    app.command()(build)
    app.command()(wait)
    app.command()(cancel)
    app.command()(retry)
    app.command()(ensure)


@_of_a_model
def submit(submission: Any, priority: Priority = 0, json: Json = False) -> int | None:
    """Submit a model for compilation and print its build, or one for each of several profiles."""
    from aot.cli import builds, many
    from aot.cli.output import emit, say

    if len(profiles := many.parse_profiles(submission.profile)) > 1:
        return many.submit_all(builds.connected(), submission, profiles, priority=priority, as_json=json)
    reply = builds.submit(builds.connected(), submission, priority=priority)
    emit(reply, [reply.build.id], as_json=json)
    say(builds.describe(reply.build))
    return None


@_of_a_model
def build(
    submission: Any,
    priority: Priority = 0,
    here: Here = False,
    origin: From = None,
    as_bundle: AsBundle = None,
    log: Log = False,
    json: Json = False,
) -> int | None:
    """Submit a model and follow it until it is published; for several profiles one build each.

    With --here it is built on this machine and pushed; with --as-bundle as well, it is written there for `aot push`.
    With --from as well, its code is made of that bundle's, for a card that need not be here.
    """
    if origin is not None:
        return _build_from(submission, origin, here=here, as_bundle=as_bundle, log=log, json=json)
    from aot.cli import builds, many
    from aot.cli.here import build_to_directory, build_to_push
    from aot.cli.output import emit
    from aot.errors import InvalidInput

    if as_bundle is not None and not here:
        raise InvalidInput(
            "--as-bundle belongs to --here",
            hint=f"without --here, fetch it afterwards: aot pull {submission.reference} --as-bundle",
        )
    if len(profiles := many.parse_profiles(submission.profile)) > 1:
        if as_bundle is not None:
            found = f"--as-bundle writes one bundle, found {len(profiles)} profiles"
            raise InvalidInput(found, hint="name one profile, or leave it out")
        client = builds.connected()
        submitted = many.push_each if here else partial(many.submit_each, priority=priority)
        return many.follow_all(client, submitted(client, submission, profiles), as_json=json, log=log)
    client = builds.connected()
    if as_bundle is not None:
        stored = build_to_directory(client, submission, as_bundle)
        emit({"bundle": stored.digest, "directory": str(stored.directory)}, [stored.digest], as_json=json)
        return None
    started = (
        build_to_push(client, submission) if here else builds.submit(client, submission, priority=priority).build.id
    )
    builds.follow(client, started, as_json=json, log=log)
    return None


def _build_from(
    submission: Any, origin: str, *, here: bool, as_bundle: Path | None, log: bool, json: bool
) -> int | None:
    from aot.cli import builds, from_bundle
    from aot.cli.output import emit

    from_bundle.check_request(submission, _read_model(str(submission.reference)), here=here)
    client = builds.connected()
    if as_bundle is not None:
        stored = from_bundle.build_from_to_directory(client, submission, origin, as_bundle)
        emit({"bundle": stored.digest, "directory": str(stored.directory)}, [stored.digest], as_json=json)
        return None
    started = from_bundle.build_from_to_push(client, submission, origin)
    builds.follow(client, started, as_json=json, log=log)
    return None


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


def retry(build: str, reason: str = "", json: Json = False) -> None:
    """Build the spec of a failed or cancelled build again, and print the new build."""
    from aot.cli import builds
    from aot.cli.output import emit, say

    reply = builds.connected().retry(build, reason=reason)
    emit(reply, [reply.build.id], as_json=json)
    say(builds.describe(reply.build))


def ensure(
    file: Annotated[Path, typer.Option("-f", "--file", help="Project file.")] = Path("aot.toml"),
    lock: Annotated[
        Path,
        typer.Option("--lock", help="Lock file to keep; under another name it belongs into .aotignore."),
    ] = Path("aot.lock"),
    here: Annotated[bool, typer.Option("--here", help="Build what is missing on this machine.")] = False,
    json: Json = False,
) -> int:
    """The CI step: every model of a project has a proven bundle, and a lock pins them.

    One line for each target, as soon as it is known how it ends; with --json each is a document of its own.
    """
    from aot.cli.context import read_config
    from aot.cli.ensure import ensure as run

    return run(read_config(), project_path=file, lock_path=lock, here=here, as_json=json)
