"""`aot import megacache` and `aot export megacache`: files on one side, bundles on the other."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.bundle import StoredBundle, raise_first, read_bundle, verify_bundle, write_bundle
from aot.cache import LocalCache
from aot.capture.interchange import Exported, export_saved, import_saved
from aot.capture.pins import effective_environment
from aot.capture.record import TAG as TAG_FACT
from aot.capture.record import require_level
from aot.cli.builds import connected
from aot.cli.bytecode import own_profile, registered_profile
from aot.cli.context import connect, read_config, trusted_keys
from aot.cli.output import size
from aot.config import whole_environ
from aot.environment import observe_environment
from aot.errors import InvalidConfig, InvalidInput
from aot.pipeline.build import Staged
from aot.pipeline.fetch import fetch_bundle
from aot.pipeline.here import user_name
from aot.pipeline.profiles import observe_profiles
from aot.pipeline.publish import push_bundle
from aot.pipeline.source import PackedSource
from aot.schema.names import Name, Reference
from aot.schema.profile import Profile
from aot.schema.wire.bundles import PublishReply
from aot.source import PackedTree, pack_tree

MOST_BYTES = 16 << 30
MOST_NAMED = 10


@dataclass(frozen=True)
class Taken:
    staged: Staged
    directory: Path | None
    reply: PublishReply | None

    @property
    def tag(self) -> str:
        return self.staged.manifest.artifacts[0].facts.get(TAG_FACT, "")

    def to_json(self) -> dict[str, Any]:
        manifest = self.staged.manifest
        return {
            "bundle": self.staged.digest,
            "entries": len(manifest.artifacts[0].files),
            "graphs": int(manifest.artifacts[0].facts["graphs"]),
            "size_bytes": manifest.size_bytes,
            "key_tag": self.tag or None,
            "directory": str(self.directory) if self.directory else None,
            "state": self.reply.state if self.reply else None,
            "build": self.reply.build if self.reply else None,
        }


@dataclass(frozen=True)
class Given:
    bundle: StoredBundle
    file: Path
    exported: Exported

    def to_json(self) -> dict[str, Any]:
        return {
            "bundle": self.bundle.digest,
            "file": str(self.file),
            "size_bytes": len(self.exported.content),
            "entries": dict(self.exported.counts),
            "left_out": list(self.exported.left_out),
        }


def take(
    file: Path,
    name: str,
    *,
    command: Sequence[str],
    source: Path | None,
    profile: str | None,
    directory: Path | None,
    push: bool,
) -> Taken:
    """Import one file. Raises InvalidInput before anything is read where nothing would be kept."""
    _refuse_useless(command=command, source=source, directory=directory, push=push)
    reference = Reference.parse(name)
    if reference.tag is None:
        raise InvalidInput(f"a bundle is named by a tag, found {name}", hint="name:tag")
    client, environ = (connected() if push else None), whole_environ()
    target = registered_profile(client, profile) if client else _this_host()
    effective = effective_environment(observe_environment(), environ)
    require_level(target, effective)
    with tempfile.TemporaryDirectory(prefix="aot-megacache-") as scratch:
        tree = pack_tree(source, Path(scratch)) if source is not None else None
        staged = import_saved(
            _read(file),
            namespace=reference.namespace,
            name=reference.name,
            profile=target,
            effective=effective,
            environ=environ,
            command=command,
            tree=tree.blob if tree else None,
            scratch=Path(scratch) / "import",
            builder=user_name(),
        )
        if directory is not None:
            write_bundle(directory, manifest=staged.manifest, files=staged.paths)
        packed = _packed(staged, tree)
        reply = push_bundle(client, staged, tags=(reference.tag,), source=packed) if client else None
    return Taken(staged, directory, reply)


def _refuse_useless(*, command: Sequence[str], source: Path | None, directory: Path | None, push: bool) -> None:
    if directory is None and not push:
        raise InvalidInput("nothing would be kept", hint="give --as-bundle DIR, or --push, or both")
    if push and (source is None or not command):
        raise InvalidInput(
            "a worker proves what is pushed, by running a command that finds the entries",
            hint="give --source TREE and the command behind --, or --as-bundle DIR alone",
        )


def taken_lines(taken: Taken) -> list[str]:
    artifact = taken.staged.manifest.artifacts[0]
    lines = [
        f"{taken.staged.digest} {artifact.facts['graphs']} graphs in {len(artifact.files)} entries,"
        f" {size(taken.staged.manifest.size_bytes)}"
    ]
    if not taken.tag:
        lines.append(
            "  its keys do not contain the CPU: `aot run` leaves it alone, `aot export megacache` gives it back"
        )
    lines += [f"  written to {taken.directory}"] if taken.directory else []
    lines += [f"  {taken.reply.state}: build {taken.reply.build} proves it"] if taken.reply else []
    return lines


def give(reference: str, file: Path, *, profile: str | None) -> Given:
    """Export one bundle: verified bytes only, and the file appears whole."""
    with tempfile.TemporaryDirectory(prefix="aot-megacache-") as scratch:
        stored = _open(reference, Path(scratch) / "bundle", profile=profile)
        exported = export_saved(stored.manifest.artifacts, lambda one: stored.blob_path(one.digest).read_bytes())
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_bytes(exported.content)
        temporary.rename(file)
    finally:
        temporary.unlink(missing_ok=True)
    return Given(stored, file, exported)


def given_lines(given: Given) -> list[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(given.exported.counts.items()))
    lines = [f"{given.file} {size(len(given.exported.content))}: {counts}"]
    left = given.exported.left_out
    if left:
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        lines.append(f"  no place in a Mega-Cache file: {', '.join(left[:MOST_NAMED])}{more}")
    return lines


def _open(reference: str, into: Path, *, profile: str | None) -> StoredBundle:
    if Path(reference).is_dir():
        raise_first(verify_bundle(Path(reference), None))
        return read_bundle(Path(reference))
    config = read_config()
    return fetch_bundle(
        connect(config),
        Reference.parse(reference),
        into=into,
        cache=LocalCache(config.cache_dir, limit_bytes=config.cache_bytes),
        trusted=trusted_keys(config),
        profile=Name.parse(profile) if profile else None,
    )


def _this_host() -> Profile:
    try:
        return observe_profiles(observe_environment())[0]
    except InvalidConfig:  # without a compiler, which a card's cache does without as well
        return own_profile()


def _read(file: Path) -> bytes:
    if file.is_file() and file.stat().st_size > MOST_BYTES:
        raise InvalidInput(f"{file} has more than {MOST_BYTES} bytes", hint="it is no Mega-Cache file")
    return file.read_bytes()


def _packed(staged: Staged, tree: PackedTree | None) -> PackedSource | None:
    if tree is None:
        return None
    return PackedSource(staged.manifest.spec.source, (), {tree.blob.digest: tree.path}, ())
