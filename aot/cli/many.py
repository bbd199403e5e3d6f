"""One submission for several profiles: `--profile cpu-x86-64-v2,v3,v4` is one build each, under the same tags.

What goes wrong with one profile costs the others nothing: each ends in a line of its own, with its state, and its
error is told once on stderr. The exit code is that of the worst (`aot.cli.exits.worst`).
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from aot.cli.builds import Submission, describe, packed_spec
from aot.cli.exits import Exit, exit_code_of, of_system, worst
from aot.cli.here import build_and_push
from aot.cli.output import emit, say, say_error
from aot.client import RegistryClient
from aot.errors import AotError, BuildUnfinished, InvalidInput, InvalidProfile
from aot.pipeline import PackedSource, follow_build, submit_spec
from aot.schema.names import Name
from aot.schema.profile import CPU_TARGETS
from aot.schema.spec import Spec
from aot.schema.wire.builds import BuildView
from aot.schema.wire.errors import ErrorBody

NOT_BEGUN, NOT_KNOWN = "not-begun", "not-known"
_LEVEL = re.compile(r"v\d(?:-amx)?")
_ENDS_IN_LEVEL = re.compile(r"(.*)v\d(?:-amx)?")


@dataclass(frozen=True)
class Line:
    """What is known of one profile: its build and the last look at it, and why there is no better one."""

    spec: Spec
    build: str | None = None
    view: BuildView | None = None
    error: AotError | None = None

    @property
    def state(self) -> str:
        """The build's state; `not-begun` without a build, `not-known` where nobody could say how it ended."""
        if self.build is None:
            return NOT_BEGUN
        seen = self.error is None or isinstance(self.error, BuildUnfinished)
        known = self.view is not None and (seen or self.view.state.finished)
        return self.view.state if known and self.view else NOT_KNOWN

    @property
    def code(self) -> Exit:
        return Exit.OK if self.error is None else exit_code_of(self.error)

    @property
    def text(self) -> str:
        """State, model, profile, and its bundle, or its build where there is none."""
        bundle = self.view.bundle if self.view else None
        model = f"{self.spec.namespace}/{self.spec.name}"
        return f"{self.state}\t{model}\t{self.spec.profile}\t{bundle or self.build or '-'}"

    @property
    def document(self) -> Any:
        """The build as the registry tells it; where it cannot, the same fields as far as they are known."""
        if self.view is not None and self.state == self.view.state:
            return self.view
        return {
            "id": self.build,
            "namespace": self.spec.namespace,
            "name": self.spec.name,
            "profile": self.spec.profile,
            "state": self.state,
            "error": self.error and ErrorBody.of(self.error),
        }


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


def submit_each(
    client: RegistryClient, submission: Submission, profiles: Sequence[Name], *, priority: int
) -> Iterator[Line]:
    """Pack once, submit one build for each profile, and yield each as soon as it is begun or refused."""

    def begin(spec: Spec, packed: PackedSource) -> Line:
        view = submit_spec(client, spec, packed, tags=submission.tags, priority=priority).build
        return Line(spec, build=view.id, view=view)

    return _begin_each(client, submission, profiles, begin)


def push_each(client: RegistryClient, submission: Submission, profiles: Sequence[Name]) -> Iterator[Line]:
    """Build each on this machine, one after the other, push, and yield the builds that prove them again."""

    def begin(spec: Spec, packed: PackedSource) -> Line:
        return Line(spec, build=build_and_push(client, spec, packed, tags=submission.tags))

    return _begin_each(client, submission, profiles, begin, more=CPU_TARGETS)


def submit_all(
    client: RegistryClient, submission: Submission, profiles: Sequence[Name], *, priority: int, as_json: bool
) -> Exit:
    """Submit one build for each profile; the builds' ids on stdout, or one document for each profile."""
    codes = []
    for line in submit_each(client, submission, profiles, priority=priority):
        # A profile without a build has no id to print; its document says why.
        emit(line.document, [line.build] if line.build else [], as_json=as_json)
        _tell(line)
        codes.append(line.code)
    return worst(codes)


def follow_all(client: RegistryClient, begun: Iterable[Line], *, as_json: bool, log: bool) -> Exit:
    """Follow every build to its end: progress on stderr, one line each on stdout in the order of the profiles."""
    going: list[Line] = []
    codes: list[Exit] = []
    try:
        for line in begun:
            going.append(line)
            _tell(line)
        while going:
            line = going[0] if going[0].build is None else _followed(client, going[0], log=log)
            emit(line.document, [line.text], as_json=as_json)
            codes.append(line.code)
            going.pop(0)
    except BaseException:  # Ctrl-C and SIGTERM among them: who leaves now must know what he leaves behind
        if left := [line.build for line in going if line.build is not None]:
            say(f"builds {', '.join(left)} go on; `aot wait BUILD` follows one, `aot cancel BUILD` ends it")
        raise
    return worst(codes)


def _begin_each(
    client: RegistryClient,
    submission: Submission,
    profiles: Sequence[Name],
    begin: Callable[[Spec, PackedSource], Line],
    *,
    more: Collection[str] = (),
) -> Iterator[Line]:
    with packed_specs(client, submission, profiles, more=more) as (specs, packed):
        for spec in specs:
            try:
                line = begin(spec, packed)
            except AotError as error:
                line = Line(spec, error=error)
            except OSError as error:
                if (translated := of_system(error)) is None:
                    raise
                line = Line(spec, error=translated)
            except BaseException:
                say(f"{spec.profile}: nobody knows whether its build was begun; the same command finds it")
                raise
            yield line


@contextmanager
def packed_specs(
    client: RegistryClient, submission: Submission, profiles: Sequence[Name], *, more: Collection[str] = ()
) -> Iterator[tuple[tuple[Spec, ...], PackedSource]]:
    """One spec for each profile, over one packed source; `more` are names that need no worker.

    Raises InvalidProfile before anything is packed.
    """
    known = {view.profile.name for view in client.list_profiles().profiles}
    if unknown := [name for name in profiles if name not in known and name not in more]:
        raise InvalidProfile(
            f"no worker has registered the profile {' nor '.join(unknown)}, so nothing was submitted; registered: "
            f"{', '.join(sorted(known)) or 'none'}",
            hint="start a worker that serves it, or leave it out",
        )
    with packed_spec(client, dataclasses.replace(submission, profile=profiles[0])) as (spec, packed):
        yield tuple(msgspec.structs.replace(spec, profile=name) for name in profiles), packed


def _followed(client: RegistryClient, line: Line, *, log: bool) -> Line:
    """The line at its build's end, or as it was last seen where following it failed."""
    assert line.build is not None
    seen = [line.view]

    def tell(view: BuildView) -> None:
        seen[0] = view
        say(f"{view.profile}: {describe(view)}")

    try:
        follow_build(client, line.build, on_change=tell, on_line=(lambda one: say(f"  | {one.text}")) if log else None)
    except AotError as error:
        _say_error(line, error)
        return dataclasses.replace(line, view=seen[0], error=error)
    return dataclasses.replace(line, view=seen[0])


def _tell(line: Line) -> None:
    """Say on stderr what was begun, or why it was not."""
    if line.error is not None:
        _say_error(line, line.error)
    elif line.view is not None:
        say(f"{line.spec.profile}: {describe(line.view)}")
    else:
        say(f"{line.spec.profile}: {line.build}")


def _say_error(line: Line, error: AotError) -> None:
    say(f"{line.spec.profile}: {line.build or NOT_BEGUN}")
    say_error(error)
