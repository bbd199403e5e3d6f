"""One submission for several profiles: `--profile cpu-x86-64-v2,v3,v4` is one build each, under the same tags."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from aot.cli.builds import Submission, describe, packed_spec
from aot.cli.here import build_and_push
from aot.cli.output import emit, say, say_error
from aot.client import RegistryClient
from aot.errors import AotError, InvalidInput, InvalidProfile
from aot.pipeline import PackedSource, follow_build, submit_spec
from aot.schema.names import Name
from aot.schema.spec import Spec
from aot.schema.wire.builds import BuildView

_LEVEL = re.compile(r"v\d")
_ENDS_IN_LEVEL = re.compile(r"(.*)v\d")


def parse_profiles(text: str | None) -> tuple[Name, ...]:
    """Read `cpu-x86-64-v2,v3,v4`: names with commas between them, of which a mere level stands for the name before
    it with that level. Nothing for None. Raises InvalidInput for a list with holes or repetitions, InvalidName.
    """
    if text is None:
        return ()
    names: list[Name] = []
    for part in text.split(","):
        before = _ENDS_IN_LEVEL.fullmatch(names[-1]) if names and _LEVEL.fullmatch(part.strip()) else None
        names.append(Name.parse((before[1] if before else "") + part.strip()))
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInput(f"profile {twice} is named twice in {text!r}", hint="name each profile once")
    return tuple(names)


def submit_all(
    client: RegistryClient, submission: Submission, profiles: Sequence[Name], *, priority: int
) -> tuple[BuildView, ...]:
    """Pack and upload once, and submit one build for each profile."""
    with packed_specs(client, submission, profiles) as (specs, packed):
        return tuple(submit_spec(client, spec, packed, tags=submission.tags, priority=priority).build for spec in specs)


def push_all(client: RegistryClient, submission: Submission, profiles: Sequence[Name]) -> tuple[str, ...]:
    """Build each on this machine, one after the other, push, and return the builds that prove them again."""
    with packed_specs(client, submission, profiles) as (specs, packed):
        return tuple(build_and_push(client, spec, packed, tags=submission.tags) for spec in specs)


@contextmanager
def packed_specs(
    client: RegistryClient, submission: Submission, profiles: Sequence[Name]
) -> Iterator[tuple[tuple[Spec, ...], PackedSource]]:
    """One spec for each profile, over one packed source. Raises InvalidProfile before anything is packed."""
    known = {view.profile.name for view in client.list_profiles().profiles}
    if unknown := [name for name in profiles if name not in known]:
        raise InvalidProfile(
            f"no worker has registered the profile {' nor '.join(unknown)}, so nothing was submitted; registered: "
            f"{', '.join(sorted(known)) or 'none'}",
            hint="start a worker that serves it, or leave it out",
        )
    with packed_spec(client, dataclasses.replace(submission, profile=profiles[0])) as (spec, packed):
        yield tuple(msgspec.structs.replace(spec, profile=name) for name in profiles), packed


def follow_all(client: RegistryClient, builds: Sequence[str], *, as_json: bool, log: bool) -> None:
    """Follow every build to its end: progress on stderr, one line each on stdout in the order of the profiles.

    A failure is told at once and raised at the end, so that it costs the others nothing.
    """
    failures: list[AotError] = []
    for index, build in enumerate(builds):
        try:
            view = _follow(client, build, log=log)
        except KeyboardInterrupt:
            say(f"builds {', '.join(builds[index:])} go on; `aot wait BUILD` follows one, `aot cancel BUILD` ends it")
            raise
        except AotError as error:
            failures.append(error)
            say_error(error)
            view = client.get_build(build)
        emit(view, [summary(view)], as_json=as_json)
    if failures:
        raise failures[0]


def summary(view: BuildView) -> str:
    """The line of one build: state, model, profile, and its bundle or the build itself where there is none."""
    return f"{view.state}\t{view.namespace}/{view.name}\t{view.profile}\t{view.bundle or view.id}"


def _follow(client: RegistryClient, build: str, *, log: bool) -> BuildView:
    return follow_build(
        client,
        build,
        on_change=lambda seen: say(f"{seen.profile}: {describe(seen)}"),
        on_line=(lambda line: say(f"  | {line.text}")) if log else None,
    )
