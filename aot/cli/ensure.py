"""`aot ensure`: the CI step."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from aot.cli.builds import describe
from aot.cli.context import connect, trusted_keys
from aot.cli.output import emit, say
from aot.client import RegistryClient
from aot.config import Config
from aot.errors import InvalidInput
from aot.pipeline import Target, ensure_project, follow_build, submit_spec
from aot.pipeline.ensure import Build
from aot.pipeline.here import build_here
from aot.pipeline.source import PackedSource
from aot.schema.project import ModelEntry, Project, decode_project
from aot.schema.spec import Spec
from aot.schema.wire.builds import BuildView


def ensure(config: Config, *, project_path: Path, lock_path: Path, here: bool, as_json: bool) -> None:
    """Make true that every target has a bundle, and write the lock where it changed. One line a target on stdout."""
    project = read_project(project_path)
    trusted = trusted_keys(config)
    client = connect(config)
    ensure_project(
        client,
        project,
        root=project_path.parent,
        lock_path=lock_path,
        trusted=trusted,
        trusted_lines=config.trusted_keys,
        build=_builder(client, config, here=here),
        on_target=lambda target: emit(target.entry, [_line(target)], as_json=as_json),
    )


def read_project(path: Path) -> Project:
    try:
        content = path.read_text()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error}", hint="name the project file with -f") from error
    return decode_project(content)


def _builder(client: RegistryClient, config: Config, *, here: bool) -> Build:
    def on_worker(model: ModelEntry, spec: Spec, source: PackedSource) -> BuildView:
        submitted = submit_spec(client, spec, source, tags=model.tags).build
        return follow_build(client, submitted.id, on_change=_teller(model.name))

    def on_this_machine(model: ModelEntry, spec: Spec, source: PackedSource) -> BuildView:
        with tempfile.TemporaryDirectory(prefix="aot-here-") as scratch:
            reply = build_here(
                client,
                spec,
                source,
                tags=model.tags,
                scratch=Path(scratch),
                shared_caches=config.cache_dir / "toolchain",
                on_event=lambda event: say(f"{model.name}: {event.get('phase') or event.get('line') or ''}"),
            )
        assert reply.build is not None
        return follow_build(client, reply.build, on_change=_teller(model.name))

    return on_this_machine if here else on_worker


def _teller(name: str) -> Callable[[BuildView], None]:
    return lambda view: say(f"{name}: {describe(view)}")


def _line(target: Target) -> str:
    return f"{target.outcome}\t{target.reference}\t{target.profile}\t{target.bundle}"
