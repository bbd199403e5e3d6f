"""Builds on this machine: `aot build --here`, `aot ensure --here`."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot.bundle import StoredBundle, write_bundle
from aot.cli.builds import Submission, packed_spec
from aot.cli.context import read_config
from aot.cli.output import say
from aot.client import RegistryClient
from aot.errors import BuildFailed, InvalidInput
from aot.pipeline import push_bundle
from aot.pipeline.build import Staged
from aot.pipeline.here import build_here
from aot.pipeline.source import PackedSource
from aot.schema.names import Tag
from aot.schema.spec import Spec


def build_to_directory(client: RegistryClient, submission: Submission, directory: Path) -> StoredBundle:
    """Build and prove on this machine, and write the bundle to the new `directory`; `aot push` publishes it."""
    if directory.exists():
        raise InvalidInput(f"{directory} exists already", hint="name a new directory with --as-bundle")
    with (
        packed_spec(client, submission) as (spec, packed),
        tempfile.TemporaryDirectory(prefix="aot-here-") as scratch,
    ):
        staged = _build(client, spec, packed, scratch=Path(scratch))
        return write_bundle(directory, manifest=staged.manifest, files=staged.paths)


def build_to_push(client: RegistryClient, submission: Submission) -> str:
    """Build and prove on this machine, push, and return the build that proves it again."""
    with packed_spec(client, submission) as (spec, packed):
        return build_and_push(client, spec, packed, tags=submission.tags)


def build_and_push(client: RegistryClient, spec: Spec, packed: PackedSource, *, tags: Sequence[Tag]) -> str:
    """The same for a spec whose source is packed already."""
    with tempfile.TemporaryDirectory(prefix="aot-here-") as scratch:
        staged = _build(client, spec, packed, scratch=Path(scratch))
        reply = push_bundle(client, staged, tags=tags)
    if reply.build is None:
        raise BuildFailed(
            f"bundle {reply.bundle} is {reply.state}, and no build proves it", hint="push it again: `aot push`"
        )
    return reply.build


def _build(client: RegistryClient, spec: Spec, packed: PackedSource, *, scratch: Path) -> Staged:
    return build_here(
        client,
        spec,
        packed,
        scratch=scratch,
        shared_caches=read_config().cache_dir / "toolchain",
        on_event=teller(spec.name),
    )


def teller(name: str) -> Callable[[Mapping[str, Any]], None]:
    """Tell every phase, step and line of a build of `name`, each once."""
    told = [""]

    def tell(event: Mapping[str, Any]) -> None:
        words = [str(event[key]) for key in ("phase", "step", "line") if event.get(key)]
        text = f"{name}: {' '.join(words)}"
        if words and text != told[0]:
            told[0] = text
            say(text)

    return tell
