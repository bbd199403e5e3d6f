"""`aot bytecode build`, and what `aot pull` and `aot run` do with its bundles."""

import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.bundle import write_bundle
from aot.cli.builds import connected
from aot.cli.context import choose_profile, read_config
from aot.cli.exits import Exit
from aot.cli.output import emit, say, size
from aot.client import RegistryClient
from aot.config import Config, whole_environ
from aot.environment import observe_environment
from aot.errors import AotError, InvalidInput, InvalidProfile
from aot.pipeline.build import Staged
from aot.pipeline.bytecode import Restored, build_bytecode, bytecode_spec, choose_modules, restore_bytecode
from aot.pipeline.here import user_name
from aot.pipeline.publish import push_bundle
from aot.schema.capability import Capability
from aot.schema.environment import host_cpu
from aot.schema.lock import Lock, decode_lock
from aot.schema.names import Name, Reference
from aot.schema.profile import Profile, Toolchain
from aot.schema.wire.bundles import PublishReply

NONE = "none"


@dataclass(frozen=True)
class Built:
    staged: Staged
    directory: Path | None
    reply: PublishReply | None

    def to_json(self) -> dict[str, Any]:
        manifest = self.staged.manifest
        return {
            "bundle": self.staged.digest,
            "interpreter": manifest.artifacts[0].host_guards[0].value,
            "modules": {one.region: int(one.facts["modules"]) for one in manifest.artifacts},
            "size_bytes": manifest.size_bytes,
            "directory": str(self.directory) if self.directory else None,
            "state": self.reply.state if self.reply else None,
            "build": self.reply.build if self.reply else None,
        }


def build(
    name: str,
    *,
    distributions: Sequence[str],
    command: Sequence[str],
    profile: str | None,
    directory: Path | None,
    push: bool,
) -> Built:
    """Compile first, then write and push. Raises InvalidInput before anything is run where nothing would be kept."""
    if directory is None and not push:
        raise InvalidInput("nothing would be kept", hint="give --as-bundle DIR, or --push, or both")
    reference = Reference.parse(name)
    if reference.tag is None:
        raise InvalidInput(f"a bundle is named by a tag, found {name}", hint="name:tag")
    client = connected() if push else None
    target = registered_profile(client, profile) if client else own_profile()
    chosen = choose_modules(distributions, command=command, environ=whole_environ())
    spec = bytecode_spec(chosen, target.name, namespace=reference.namespace, name=reference.name)
    with tempfile.TemporaryDirectory(prefix="aot-bytecode-") as scratch:
        staged = build_bytecode(spec, target, scratch=Path(scratch), builder=user_name())
        for warning in staged.manifest.compile_report.warnings:
            say(warning)
        if directory is not None:
            write_bundle(directory, manifest=staged.manifest, files=staged.paths)
        reply = push_bundle(client, staged, tags=(reference.tag,)) if client else None
    return Built(staged, directory, reply)


def built_lines(built: Built) -> list[str]:
    manifest = built.staged.manifest
    modules = sum(int(one.facts["modules"]) for one in manifest.artifacts)
    lines = [
        f"{built.staged.digest} {modules} modules of {len(manifest.artifacts)} distribution(s),"
        f" {size(manifest.size_bytes)}"
    ]
    lines += [f"  written to {built.directory}"] if built.directory else []
    lines += [f"  {built.reply.state}: build {built.reply.build} compiles the same again"] if built.reply else []
    return lines


def pull(reference: str | None, *, lock: Path | None, into: Path | None, as_json: bool) -> int:
    """Restore a bundle of bytecode and print the variables to set, as `export $(...)` takes them."""
    if reference is None:
        raise InvalidInput("--bytecode restores one reference", hint="aot pull name:tag --bytecode [--lock FILE]")
    config = read_config()
    config = config.with_cache_dir(into) if into else config
    found = restore_bytecode(Reference.parse(reference), config=config, lock=_read_lock(lock))
    emit(restored_json(found), [f"{name}={value}" for name, value in variables(found).items()], as_json=as_json)
    for line in restored_lines(found):
        say(line)
    return Exit.OK if found.tree else Exit.NOTHING_FITS


def variables_for(reference: str, *, config: Config, lock: Lock | None) -> Mapping[str, str]:
    """Return what a command is to be started with so that it reads the bytecode of `reference`.

    Never raises for what a registry, a disk or a bundle does: the command starts without, and stderr says why.
    """
    try:
        found = restore_bytecode(Reference.parse(reference), config=config, lock=lock)
    except AotError as error:
        say(f"no bytecode: {error.as_line}")
        return {}
    for line in restored_lines(found):
        say(line)
    return variables(found)


def variables(found: Restored) -> Mapping[str, str]:
    return found.tree.environment if found.tree else {}


def restored_json(found: Restored) -> dict[str, Any]:
    return {
        "bundle": found.bundle,
        "environment": dict(variables(found)),
        "restored": found.tree.restored if found.tree else 0,
        "linked": found.tree.linked if found.tree else 0,
        "distributions": list(found.names),
        "reasons": list(found.reasons),
        "stale": found.stale,
    }


def restored_lines(found: Restored) -> list[str]:
    """What a person should know: what is in the tree, and why something is not."""
    stale = " (stale: the registry could not be asked)" if found.stale else ""
    if found.tree is None:
        return [f"no bytecode fits this image{stale}", *(f"  {reason}" for reason in found.reasons)]
    beside = f", {found.tree.linked} beside their sources" if found.tree.linked else ""
    head = f"bytecode of {found.tree.restored} modules restored{beside}{stale}"
    return [head, *(f"  {reason}" for reason in found.reasons)]


def registered_profile(client: RegistryClient, wanted: str | None) -> Profile:
    name = choose_profile(client, wanted)
    known = {view.profile.name: view.profile for view in client.list_profiles().profiles}
    if name not in known:
        raise InvalidProfile(f"no worker has registered the profile {name}", hint=f"registered: {', '.join(known)}")
    return known[name]


def own_profile() -> Profile:
    """What this image is, for a bundle on disk: no compiler is needed for bytecode, so none is asked for."""
    seen = observe_environment()
    container = seen.container
    toolchain = Toolchain(
        torch=container.torch or NONE,
        python=container.python or platform.python_version(),
        compiler=NONE,
        libc=f"glibc {container.libc}" if container.libc else NONE,
    )
    capability = host_cpu(seen.node) or Capability.parse("cpu:x86-64")
    return Profile(name=Name.parse(f"python-{toolchain.python}"), capability=capability, toolchain=toolchain)


def _read_lock(lock: Path | None) -> Lock | None:
    return decode_lock(lock.read_bytes()) if lock is not None else None
