"""What `aot capture` and `aot run` do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.bundle import write_bundle
from aot.cache.trees import temporary_tree
from aot.capture.account import Account
from aot.capture.pins import effective_environment
from aot.capture.prepare import Prepared, open_registry, prepare
from aot.capture.publish import Making, require_tree, stage
from aot.capture.run import Run, lines_of, receipt_of, run_on
from aot.cli.builds import connected
from aot.cli.bytecode import variables_for
from aot.cli.context import choose_profile, read_config
from aot.cli.output import say, size
from aot.cli.pending import pending_lines
from aot.cli.write_back import WriteBack
from aot.client import RegistryClient
from aot.config import Config, whole_environ
from aot.environment import observe_environment
from aot.errors import AotError, InvalidInput, InvalidProfile
from aot.pipeline.build import Staged
from aot.pipeline.here import user_name
from aot.pipeline.lockfile import read_lock, require_lock
from aot.pipeline.profiles import observe_profiles
from aot.pipeline.publish import push_bundle
from aot.schema.names import Reference
from aot.schema.profile import Profile
from aot.schema.state import BundleState
from aot.schema.wire.bundles import PublishReply


@dataclass(frozen=True)
class Asked:
    name: str
    command: Sequence[str]
    source: Path | None
    requirements: tuple[str, ...]
    profile: str | None
    once: bool = False


@dataclass(frozen=True)
class Made:
    staged: Staged
    second: Account | None
    left_out: int
    directory: Path | None
    reply: PublishReply | None

    def to_json(self) -> dict[str, Any]:
        manifest = self.staged.manifest
        artifact = manifest.artifacts[0]
        return {
            "bundle": self.staged.digest,
            "graphs": int(artifact.facts["graphs"]),
            "entries": len(artifact.files),
            "left_out": self.left_out,
            "warnings": list(manifest.compile_report.warnings),
            "size_bytes": manifest.size_bytes,
            "found_again": self.second.found if self.second else None,
            "compiled_again": self.second.compiled if self.second else None,
            "directory": str(self.directory) if self.directory else None,
            "state": self.reply.state if self.reply else None,
            "build": self.reply.build if self.reply else None,
        }


def capture_command(asked: Asked, *, directory: Path | None, push: bool) -> Made:
    """Capture first, then write and push. Raises InvalidInput before the command runs where nothing would be kept."""
    reference = _check(asked, directory, push)
    environ = whole_environ()
    effective = effective_environment(observe_environment(), environ, command=asked.command)
    client = connected() if push else None
    profile = _registered(client, asked.profile) if client else _own_profile(effective_cpu=str(effective.node.cpu))
    runs = "once, on empty caches" if asked.once else "twice: on empty caches, then on what that left in them"
    say(f"aot: {asked.command[0]} runs {runs}")
    if asked.source is not None and (elsewhere := starts_elsewhere(asked.source)):
        say(elsewhere)
    with temporary_tree("aot-capture-") as scratch:
        making = Making(reference, tuple(asked.command), profile, effective, environ, user_name(), scratch)
        staged, captured, packed = stage(
            making, source=asked.source, requirements=asked.requirements, again=not asked.once
        )
        if directory is not None:
            write_bundle(directory, manifest=staged.manifest, files=staged.paths)
        tags = (reference.tag,) if reference.tag else ()
        reply = push_bundle(client, staged, tags=tags, source=packed) if client else None
    return Made(staged, captured.second, captured.left_out, directory, reply)


def starts_elsewhere(source: Path) -> str:
    """What to tell a person whose command starts outside of its tree: a worker starts it at the tree's root."""
    here, tree = Path.cwd(), source.resolve()
    if here == tree:
        return ""
    return f"aot: it starts in {here}, and on a worker in the tree {tree}: relative paths in it must hold in both"


def made_lines(made: Made) -> list[str]:
    facts = made.to_json()
    lines = [
        f"{facts['bundle']} {facts['graphs']} graphs in {facts['entries']} entries, {size(facts['size_bytes'])}"
        f" ({facts['left_out']} files that no start needs are left out)"
    ]
    if made.second is not None:
        lines.append(f"  second run: {made.second.line()}")
    lines += [f"  {warning}" for warning in made.staged.manifest.compile_report.warnings]
    lines += [f"  written to {made.directory}"] if made.directory else []
    return lines + (pushed_lines(made.reply) if made.reply else [])


def pushed_lines(reply: PublishReply) -> list[str]:
    if reply.state is not BundleState.PENDING:
        return [f"  {reply.state}: build {reply.build} captures it again"]
    follow = f"`aot wait {reply.build}` follows it, and `aot run` restores it once it is published"
    return [f"  pending: build {reply.build} captures it again; {follow}"]


def split_arguments(reference: str | None, command: Sequence[str], *, lock: Path | None) -> tuple[str, list[str]]:
    """Tell a reference from the command's first word: without one, the lock has to pin a single name.

    Raises InvalidInput.
    """
    words = [word for word in (reference, *command) if word is not None]
    pinned = read_lock(lock) if lock is not None else None
    names = {str(entry.reference) for entry in pinned.entries} if pinned else set()
    if reference is not None and (reference in names or (":" in reference and "/" not in reference.split(":")[1])):
        named, behind = reference, list(command)
    elif len(names) == 1:
        named, behind = next(iter(names)), words
    else:
        pins = ", ".join(sorted(names)) or "nothing"
        found = "none" if lock is None else f"a lock that pins {pins}"
        raise InvalidInput(
            f"wanted a reference name:tag before the command, or a lock that pins one name; found {found}",
            hint="aot run name:tag [--lock FILE] -- COMMAND",
        )
    if not behind:
        raise InvalidInput("no command was given", hint="aot run name:tag -- python train.py")
    return named, behind


def run_command_on(
    named: str,
    command: Sequence[str],
    *,
    lock: Path | None,
    bytecode: str | None,
    write_back: bool,
    idle_seconds: float = 0.0,
) -> int:
    """Run `command` on what was restored, and return its exit code. It starts whatever becomes of the restoring.

    With `write_back`, what is compiled is pushed once nothing new has come for `idle_seconds`, and after the exit.
    Raises InvalidInput, before the command starts, for `write_back` of what could never go live.
    """
    environ = whole_environ()
    try:
        config = read_config()
        pinned = require_lock(lock) if lock is not None else None
        prepared = prepare(Reference.parse(named), config=config, environ=environ, lock=pinned, command=command)
    except AotError as error:
        say(f"aot: nothing restored: {error.as_line}")
        return run_on(_nothing(named, error), command, environ=environ).code
    if bytecode is not None:
        environ |= variables_for(bytecode, config=config, lock=pinned)
    for reason in prepared.reasons if prepared.bundle is None else ():
        say(f"aot: nothing restored: {reason}")
    for line in pending_lines(prepared, config):
        say(f"aot: {line}")
    back = None
    if write_back:
        require_tree(prepared)
        back = WriteBack(prepared, tuple(command), environ)
    ran = run_on(prepared, command, environ=environ, idle_seconds=idle_seconds, on_idle=back.at_idle if back else None)
    for line in lines_of(prepared, ran, environ):
        say(f"aot: {line}")
    if back is not None:
        back.at_exit(ran.new)
    _send_receipt(prepared, ran, config, environ)
    return ran.code


def _send_receipt(prepared: Prepared, ran: Run, config: Config, environ: Mapping[str, str]) -> None:
    client = open_registry(config)
    if client is None or not config.receipts:
        return
    try:
        client.send_receipt(receipt_of(prepared, ran, environ))
    except AotError as error:
        say(f"aot: receipt not sent: {error.message}")


def _nothing(named: str, error: AotError) -> Prepared:
    reference = Reference.parse("nothing:none") if not _is_reference(named) else Reference.parse(named)
    return Prepared(reference, observe_environment(), reasons=(error.as_line,))


def _is_reference(named: str) -> bool:
    try:
        Reference.parse(named)
    except AotError:
        return False
    return True


def _check(asked: Asked, directory: Path | None, push: bool) -> Reference:
    if directory is None and not push:
        raise InvalidInput("nothing would be kept", hint="give --as-bundle DIR, or --push, or both")
    if not asked.command:
        raise InvalidInput("no command was given", hint="aot capture name:tag --as-bundle DIR -- python train.py")
    if push and asked.source is None:
        raise InvalidInput(
            "a worker proves a pushed capture by running the command again, and needs the tree that it runs in",
            hint="name it with --source",
        )
    reference = Reference.parse(asked.name)
    if reference.tag is None:
        raise InvalidInput(f"a bundle is named by a tag, found {asked.name}", hint="name:tag")
    return reference


def _registered(client: RegistryClient, wanted: str | None) -> Profile:
    name = choose_profile(client, wanted)
    known = {view.profile.name: view.profile for view in client.list_profiles().profiles}
    if name not in known:
        raise InvalidProfile(f"no worker has registered the profile {name}", hint=f"registered: {', '.join(known)}")
    return known[name]


def _own_profile(*, effective_cpu: str) -> Profile:
    """The profile that this machine is: of its card, else of the CPU level that the command uses."""
    found = observe_profiles(observe_environment())
    of_cpu = [one for one in found if one.capability.level in effective_cpu.split(":")[-1].split("+")]
    return next((one for one in found if one.device is not None), (of_cpu or list(found))[0])
