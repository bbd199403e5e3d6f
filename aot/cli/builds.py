"""`aot submit`, `build`, `wait`, `cancel`: builds on the registry's workers."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from aot.cli.context import choose_profile, connect, read_config
from aot.cli.output import emit, say, size, table
from aot.client import RegistryClient
from aot.errors import InvalidInput
from aot.pipeline import PackedSource, follow_build, pack_factory, pack_program, submit_spec
from aot.schema.names import Reference, Tag
from aot.schema.recipe import Dimension, Mode, Recipe, Regions
from aot.schema.spec import Spec
from aot.schema.wire.builds import BuildView, SubmitReply


def parse_dimension(text: str) -> Dimension:
    """Read `batch=1..32`, `length=128,512` (buckets), `batch=8` or `width=8..64/8` (in steps of 8)."""
    name, equals, value = text.partition("=")
    span, _, step = value.partition("/")
    low, dots, high = span.partition("..")
    try:
        if name and dots:
            return Dimension(name=name, low=int(low), high=int(high) if high else None, multiple_of=int(step or 1))
        buckets = tuple(int(part) for part in span.split(","))
        if name and equals and len(buckets) == 1 and not step:
            return Dimension(name=name, low=buckets[0], high=buckets[0])
        if name and equals and not step:
            return Dimension(name=name, buckets=buckets)
    except ValueError:
        pass
    raise InvalidInput(
        f"wanted a dimension, found {text!r}", hint="batch=1..32, width=8..64/8, length=128,512 or batch=8"
    )


def parse_option(text: str) -> tuple[str, bool | int | float | str | None]:
    """Read `name=value`, the value as JSON where it is JSON, else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"wanted an inductor option name=value, found {text!r}", hint="epilogue_fusion=true")
    try:
        parsed = msgspec.json.decode(value)
    except msgspec.DecodeError:
        parsed = value
    if not isinstance(parsed, bool | int | float | str | None):
        raise InvalidInput(f"option {name} must be a single value, found {value!r}")
    return name, parsed


def make_recipe(
    *,
    mode: str,
    dimensions: Sequence[str],
    options: Sequence[str],
    regions: str,
    freeze: bool,
    require_faster: bool,
) -> Recipe:
    try:
        return Recipe(
            mode=Mode(mode),
            regions=Regions(regions),
            freeze=freeze,
            require_faster=require_faster,
            dimensions=tuple(map(parse_dimension, dimensions)),
            options=dict(map(parse_option, options)),
        )
    except ValueError as error:
        modes, kinds = ", ".join(Mode), ", ".join(Regions)
        raise InvalidInput(str(error), hint=f"modes: {modes}; regions: {kinds}") from error


def submit(
    client: RegistryClient,
    name: str,
    *,
    source: Path,
    entry: str | None,
    requirements: Sequence[str],
    weights: Sequence[Path],
    profile: str | None,
    tags: Sequence[str],
    recipe: Recipe,
    priority: int,
) -> SubmitReply:
    """Pack, upload and submit one model; `name` is `[namespace/]name[:tag]`."""
    reference = Reference.parse(name)
    if reference.digest is not None:
        raise InvalidInput(f"a build is named by a tag, found {name}", hint="name:tag")
    chosen = choose_profile(client, profile)
    with tempfile.TemporaryDirectory(prefix="aot-submit-") as scratch:
        packed = pack(source, entry, into=Path(scratch), requirements=requirements, weights=weights)
        for path in packed.left_out:
            say(f"left out: {path}")
        spec = Spec(
            namespace=reference.namespace,
            name=reference.name,
            source=packed.source,
            profile=chosen,
            recipe=recipe,
            weights=packed.weights,
        )
        assert reference.tag is not None
        moved = dict.fromkeys((reference.tag, *map(Tag.parse, tags)))
        return submit_spec(client, spec, packed, tags=tuple(moved), priority=priority)


def pack(
    source: Path, entry: str | None, *, into: Path, requirements: Sequence[str], weights: Sequence[Path]
) -> PackedSource:
    if not source.exists():
        raise InvalidInput(f"{source} does not exist", hint="--source takes a directory, or a .pt2 file")
    if source.is_dir():
        if entry is None:
            raise InvalidInput("a source tree needs an entry", hint="--entry module:function")
        return pack_factory(source, entry, into=into, requirements=requirements, weights=weights)
    return pack_program(source, into=into, requirements=requirements, weights=weights)


def follow(client: RegistryClient, build: str, *, as_json: bool, log: bool) -> None:
    """Follow a build to its end; progress on stderr, the result on stdout."""
    view = follow_build(
        client,
        build,
        on_change=lambda seen: say(describe(seen)),
        on_line=(lambda line: say(f"  | {line.text}")) if log else None,
    )
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
        lines += [
            f"region    {region.region or 'whole'} x{region.instances} [{region.coverage}]: export"
            f" {region.export_seconds:.1f} s, compile {region.compile_seconds:.1f} s, {size(region.library_bytes)}"
            for region in view.report.regions
        ]
    return lines


def list_lines(builds: Sequence[BuildView]) -> list[str]:
    rows = [
        (view.id, f"{view.namespace}/{view.name}", view.profile, view.state, view.phase or "", view.waiting)
        for view in builds
    ]
    return table(("build", "model", "profile", "state", "phase", "waiting"), rows)


def connected() -> RegistryClient:
    return connect(read_config())
