"""`aot kernel build`: a bundle of code objects for each target, written to disk or pushed."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from aot.bundle import write_bundle
from aot.cli.builds import connected
from aot.cli.context import read_config
from aot.cli.here import teller
from aot.cli.output import say
from aot.errors import InvalidInput
from aot.pipeline.build import Staged
from aot.pipeline.here import user_name
from aot.pipeline.kernels import build_kernels, kernel_profile, kernel_spec, pack_kernel, read_signatures
from aot.pipeline.publish import push_bundle
from aot.pipeline.source import PackedSource
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.profile import Profile
from aot.schema.spec import KernelSignature
from aot.schema.state import BundleState
from aot.schema.wire.bundles import PublishReply
from aot.source import find_commit


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user wants built, with every target known."""

    reference: Reference
    profiles: tuple[Profile, ...]
    entry: str
    signatures: tuple[KernelSignature, ...]
    source: Path
    requirements: tuple[str, ...]

    @classmethod
    def parse(
        cls,
        name: str,
        *,
        targets: Sequence[str],
        entry: str,
        signatures: Path,
        source: Path,
        requirements: Sequence[str],
    ) -> Self:
        """Raises InvalidInput, before anything is packed or compiled."""
        if not source.is_dir():
            raise InvalidInput(f"{source} is no directory", hint="--source takes the tree that holds the kernel")
        try:
            content = signatures.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"the signatures {signatures} cannot be read: {error}", hint="--signatures takes a TOML file"
            ) from error
        reference = Reference.parse(name)
        if reference.tag is None:
            raise InvalidInput(f"a bundle is named by a tag, found {name}", hint="name:tag")
        return cls(
            reference=reference,
            profiles=tuple(kernel_profile(target) for target in dict.fromkeys(targets)),
            entry=entry,
            signatures=read_signatures(content),
            source=source,
            requirements=tuple(requirements),
        )


@dataclass(frozen=True)
class Built:
    """One target's bundle, where it was written, and what the registry said of it.

    `reply` names another bundle where the registry had the same code, of an earlier build, already.
    """

    target: str
    built: Digest
    directory: Path | None
    reply: PublishReply | None

    @property
    def bundle(self) -> Digest:
        return self.reply.bundle if self.reply else self.built

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "bundle": self.bundle,
            "built": self.built,
            "directory": str(self.directory) if self.directory else None,
            "state": self.reply.state if self.reply else None,
            "build": self.reply.build if self.reply else None,
            "tuned": False,
        }


def build(request: Request, *, directory: Path | None, push: bool) -> tuple[Built, ...]:
    """Compile for every target first, then write and push: a target that fails leaves nothing behind."""
    if directory is None and not push:
        raise InvalidInput("nothing would be kept", hint="give --as-bundle DIR, or --push, or both")
    if directory is not None and directory.exists():
        raise InvalidInput(f"{directory} exists already", hint="name a new directory with --as-bundle")
    client = connected() if push else None
    with tempfile.TemporaryDirectory(prefix="aot-kernel-") as scratch:
        packed = pack_kernel(
            request.source,
            request.entry,
            request.signatures,
            into=Path(scratch) / "packed",
            requirements=request.requirements,
        )
        for path in packed.left_out:
            say(f"left out: {path}")
        staged = [_compile(request, profile, packed, scratch=Path(scratch)) for profile in request.profiles]
        built = []
        for one in staged:
            target = one.manifest.profile.capability
            place = directory / target.replace(":", "-") if directory else None
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                write_bundle(place, manifest=one.manifest, files=one.paths)
            tag = request.reference.tag
            reply = push_bundle(client, one, tags=(tag,) if tag else (), source=packed) if client else None
            built.append(Built(target, one.digest, place, reply))
    return tuple(built)


def lines(built: Sequence[Built]) -> list[str]:
    said = []
    for one in built:
        said.append(f"{one.target} {one.bundle} untuned, not run")
        if one.directory:
            said.append(f"  written to {one.directory}" + (f" as {one.built}" if one.built != one.bundle else ""))
        match one.reply:
            case PublishReply(state=BundleState.PENDING, build=build):
                again = "" if one.built == one.bundle else ", and was before: nothing was added"
                said.append(f"  pending{again}: build {build} needs a {one.target} device")
            case PublishReply(state=state):
                said.append(f"  {state} already: nothing was added")
    return said


def _compile(request: Request, profile: Profile, packed: PackedSource, *, scratch: Path) -> Staged:
    sandbox = find_sandbox()
    spec = kernel_spec(packed, profile, namespace=request.reference.namespace, name=request.reference.name)
    return build_kernels(
        msgspec.structs.replace(spec, commit=find_commit(request.source, ci=read_config().ci_commit)),
        packed,
        profile,
        scratch=scratch / profile.name,
        # The source is the caller's own: without bubblewrap it runs as any program of his does.
        sandbox=sandbox if isinstance(sandbox, Bubblewrap) else None,
        builder=user_name(),
        on_event=teller(f"{request.reference.name} for {profile.capability}"),
    )
