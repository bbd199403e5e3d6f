"""`aot submit`, `build`, `wait`, `cancel`: builds on the registry's workers."""

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aot.cli.context import choose_profile, connect, read_config
from aot.cli.output import emit, say, size, table, weights_word
from aot.client import RegistryClient
from aot.errors import InvalidInput
from aot.pipeline import PackedSource, follow_build, pack_factory, pack_program, submit_spec
from aot.pipeline.limits import fitting
from aot.recipes import check_recipe
from aot.schema.names import Reference, Tag
from aot.schema.recipe import Recipe
from aot.schema.spec import Limits, Spec
from aot.schema.state import BuildState
from aot.schema.wire.builds import BuildView, SubmitReply
from aot.source import find_commit

LOG_LINES = 200
WHY_CHARACTERS = 120  # of why a build failed, in a list
DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Submission:
    """What a user wants built, before it is packed. `profile` None: the best that fits this host."""

    reference: Reference
    tags: tuple[Tag, ...]
    source: Path
    entry: str | None
    requirements: tuple[str, ...]
    weights: tuple[Path, ...]
    profile: str | None
    recipe: Recipe
    limits: Limits

    @classmethod
    def parse(
        cls,
        name: str,
        *,
        source: Path,
        entry: str | None,
        requirements: Sequence[str],
        weights: Sequence[Path],
        profile: str | None,
        tags: Sequence[str],
        recipe: Recipe,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Self:
        """`name` is `[namespace/]name[:tag]`. Raises InvalidInput."""
        reference = Reference.parse(name)
        if reference.tag is None:
            raise InvalidInput(f"a build is named by a tag, found {name}", hint="name:tag")
        moved = tuple(dict.fromkeys((reference.tag, *map(Tag.parse, tags))))
        return cls(reference, moved, source, entry, tuple(requirements), tuple(weights), profile, recipe, limits)


@contextmanager
def packed_spec(client: RegistryClient, submission: Submission) -> Iterator[tuple[Spec, PackedSource]]:
    """The spec and its packed source, which lies in a temporary directory for as long as the block runs."""
    # Before the registry is asked anything: a wrong path, or a recipe that no worker can follow, is known here.
    check_source(submission.source, submission.entry)
    check_recipe(submission.recipe)
    config = read_config()
    profile = choose_profile(client, submission.profile or config.profile)
    with tempfile.TemporaryDirectory(prefix="aot-submit-") as scratch:
        packed = pack(
            submission.source,
            submission.entry,
            into=Path(scratch),
            requirements=submission.requirements,
            weights=submission.weights,
        )
        for path in packed.left_out:
            say(f"left out: {path}")
        spec = Spec(
            namespace=submission.reference.namespace,
            name=submission.reference.name,
            source=packed.source,
            profile=profile,
            recipe=submission.recipe,
            weights=packed.weights,
            limits=_limits_of(submission, packed),
            commit=find_commit(submission.source, ci=config.ci_commit),
        )
        yield spec, packed


def _limits_of(submission: Submission, packed: PackedSource) -> Limits:
    """Those of the submission, or with room for its weights; then a person is told: it is the worker's memory."""
    limits = fitting(submission.limits, packed, freeze=submission.recipe.freeze)
    if limits != submission.limits:
        memory, disk, weights = map(size, (limits.most_memory_bytes, limits.most_disk_bytes, packed.weight_bytes))
        say(f"for {weights} of weights a child may use {memory} of memory and {disk} of disk; --limit sets others")
    return limits


def submit(client: RegistryClient, submission: Submission, *, priority: int) -> SubmitReply:
    """Pack, upload and submit one model."""
    with packed_spec(client, submission) as (spec, packed):
        return submit_spec(client, spec, packed, tags=submission.tags, priority=priority)


def check_source(source: Path, entry: str | None) -> None:
    """Raises InvalidInput for a source that is not there, a tree without an entry, or one file of a tree."""
    if not source.exists():
        raise InvalidInput(f"{source} does not exist", hint="--source takes a directory, or a .pt2 file")
    if source.is_dir() and entry is None:
        raise InvalidInput("a source tree needs an entry", hint="--entry module:function")
    if source.suffix == ".py":
        raise InvalidInput(
            f"wanted a directory or an exported program, found the Python file {source}",
            hint=f"--source {source.parent} --entry {source.stem}:FUNCTION",
        )


def pack(
    source: Path, entry: str | None, *, into: Path, requirements: Sequence[str], weights: Sequence[Path]
) -> PackedSource:
    if source.is_dir():
        assert entry is not None
        return pack_factory(source, entry, into=into, requirements=requirements, weights=weights)
    return pack_program(source, into=into, requirements=requirements, weights=weights)


def follow(
    client: RegistryClient, build: str, *, as_json: bool, log: bool, timeout_seconds: float | None = None
) -> None:
    """Follow a build to its end; progress on stderr, the result on stdout."""
    try:
        view = follow_build(
            client,
            build,
            on_change=lambda seen: say(describe(seen)),
            on_line=(lambda line: say(f"  | {line.text}")) if log else None,
            timeout_seconds=timeout_seconds,
        )
    except KeyboardInterrupt:
        say(f"build {build} goes on; `aot wait {build}` follows it, `aot cancel {build}` ends it")
        raise
    emit(view, show_lines(view), as_json=as_json)


def describe(view: BuildView) -> str:
    """One line on where a build stands."""
    words = [view.id, view.state]
    if view.phase and not view.state.finished:
        words.append(view.phase)
    if view.step and not view.state.finished:
        words.append(f"({view.step})")
    if view.waiting:
        words.append(f"- {view.waiting}")
    return " ".join(words)


def log_lines(client: RegistryClient, build: str, *, most: int | None) -> list[str]:
    """Return the last `most` lines of a build's log, all when None; how a build ended is said at the end."""
    kept: deque[str] = deque(maxlen=most)
    count, last = 0, None
    while lines := client.get_build_log(build, after=last).lines:
        kept.extend(f"  | {line.text}" for line in lines)
        count, last = count + len(lines), lines[-1].sequence
    left_out = count - len(kept)
    return [*([f"  ({left_out} earlier lines: --whole-log shows them)"] if left_out else []), *kept]


def show_lines(view: BuildView) -> list[str]:
    """A build as people read it."""
    lines = [
        f"build     {view.id}",
        f"model     {view.namespace}/{view.name}{' (frozen weights)' if view.frozen else ''}",
        f"profile   {view.profile}",
        f"key       {view.build_key}",
        f"state     {describe(view).removeprefix(view.id).strip()}",
        f"attempts  {view.attempt}",
    ]
    if view.bundle:
        lines.append(f"bundle    {view.bundle}")
    if view.tags:
        lines.append(f"tags      {', '.join(view.tags)}")
    if view.error:
        lines += [f"error     {view.error.code}: {view.error.message}"]
        lines += [f"          try: {view.error.hint}"] if view.error.hint else []
    if view.report:
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in view.report.phases.items())
        lines += [f"phases    {phases}"] if phases else []
    if view.started_at and view.finished_at:
        lines.append(
            f"took      {(view.finished_at - view.started_at).total_seconds():.1f} s, proof and upload included"
        )
    if view.report:
        lines += [
            f"region    {region.region or 'whole'} x{region.instances} [{region.coverage}]: export"
            f" {region.export_seconds:.1f} s, compile {region.compile_seconds:.1f} s, {size(region.library_bytes)}"
            for region in view.report.regions
        ]
    return lines


def parse_state(text: str | None) -> BuildState | None:
    """Raises InvalidInput for what is no state of a build."""
    if text is None:
        return None
    if text not in tuple(BuildState):
        raise InvalidInput(f"no build is ever {text!r}", hint=f"--state {', '.join(BuildState)}")
    return BuildState(text)


def _shortened(why: str) -> str:
    return why if len(why) <= WHY_CHARACTERS else f"{why[: WHY_CHARACTERS - 3]}..."


def list_lines(builds: Sequence[BuildView]) -> list[str]:
    rows = [
        (
            view.id,
            f"{view.namespace}/{view.name}",
            view.profile,
            weights_word(frozen=view.frozen),
            view.state,
            "" if view.state.finished else view.phase or "",
            _shortened(f"{view.error.code}: {view.error.message}") if view.error else view.waiting,
        )
        for view in builds
    ]
    return table(("build", "model", "profile", "weights", "state", "phase", "why"), rows)


def connected() -> RegistryClient:
    return connect(read_config())
