"""Kernels for cards that are not here: source -> code objects -> a bundle that stays pending until its card has run it.

The kernels' own way beside `build`: there is nothing to prove them with on this machine, so nothing is claimed.
"""

import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aot.bundle import write_bundle
from aot.bundle.assemble import assemble
from aot.compile.kernels.run import KERNEL_RECIPE, compile_kernels
from aot.compile.kernels.signature import check_signatures
from aot.compile.kernels.targets import target_for
from aot.compile.toolchain import observe_toolchain
from aot.errors import InvalidConfig, InvalidSource, InvalidSpec, MalformedDocument
from aot.pipeline.build import Staged, provenance_of, read_staged
from aot.pipeline.recheck import refuse_false_facts
from aot.pipeline.source import PackedSource, open_source
from aot.sandbox import Bubblewrap, OnEvent, ShouldStop
from aot.schema.codec import Document, convert
from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile, kernel_profile_name
from aot.schema.report import Qualification
from aot.schema.spec import KernelSignature, KernelSource, Limits, Spec
from aot.source import pack_tree

LIMITS = Limits(wall_seconds=600.0, memory_bytes=8 << 30)


class _SignatureFile(Document, kw_only=True):
    signature: tuple[KernelSignature, ...] = ()


def read_signatures(content: str) -> tuple[KernelSignature, ...]:
    """Read a TOML file of `[[signature]]` tables. Raises MalformedDocument naming the key, InvalidSpec for a value."""
    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise MalformedDocument(
            f"the signatures are no TOML: {error}", hint="write [[signature]] tables", details={"path": "$"}
        ) from error
    signatures = convert(table, _SignatureFile, what="signature file").signature
    check_signatures(signatures)
    return signatures


def kernel_profile(target: str) -> Profile:
    """Return the profile of a card that need not be here, with this machine's Triton.

    Raises InvalidCapability for an unknown target, InvalidConfig without Triton.
    """
    capability = target_for(target).capability
    toolchain = observe_toolchain().toolchain
    if toolchain.triton is None:
        raise InvalidConfig("triton is not installed here", hint="install triton; no card and no CUDA is needed")
    return Profile(name=kernel_profile_name(capability, toolchain.triton), capability=capability, toolchain=toolchain)


def pack_kernel(
    root: Path, entry: str, signatures: Sequence[KernelSignature], *, into: Path, requirements: Sequence[str] = ()
) -> PackedSource:
    """Pack the tree at `root` into `into`.

    Raises InvalidSource for what cannot be packed, naming the path, and InvalidSpec for a pin that is not met here.
    """
    module, colon, function = entry.partition(":")
    if not (module and colon and function):
        raise InvalidSource(f"wanted an entry module:kernel, found {entry!r}", hint="for example kernels:add")
    into.mkdir(parents=True, exist_ok=True)
    _require_installed(requirements)
    packed = pack_tree(root, into)
    source = KernelSource(
        tree=packed.blob, entry=entry, signatures=tuple(signatures), requirements=tuple(sorted(requirements))
    )
    return PackedSource(source, (), {packed.blob.digest: packed.path}, tuple(map(str, packed.left_out)))


def _require_installed(requirements: Sequence[str]) -> None:
    """The build is made here, so the pins must hold here; nothing is installed for it."""
    for requirement in requirements:
        name, pinned, wanted = requirement.partition("==")
        if not (name and pinned and wanted):
            raise InvalidSpec(f"wanted an exact pin, found {requirement!r}", hint="write name==version")
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "none"
        if found != wanted:
            raise InvalidSpec(
                f"the kernel requires {requirement}, this machine has {found}", hint=f"install {requirement}"
            )


def kernel_spec(
    packed: PackedSource, profile: Profile, *, namespace: Namespace, name: Name, limits: Limits = LIMITS
) -> Spec:
    return Spec(
        namespace=namespace,
        name=name,
        source=packed.source,
        profile=profile.name,
        recipe=KERNEL_RECIPE,
        limits=limits,
    )


def build_kernels(
    spec: Spec,
    packed: PackedSource,
    profile: Profile,
    *,
    scratch: Path,
    sandbox: Bubblewrap | None,
    builder: str,
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> Staged:
    """Compile every signature for the profile's target and stage the bundle below `scratch`: untuned and unproven.

    Raises the families InvalidInput and CompileFailed; QualificationFailed where code objects and manifest differ.
    """
    compiled = compile_kernels(
        open_source(spec, packed.paths, into=scratch / "source"),
        spec,
        profile,
        scratch=scratch / "compile",
        sandbox=sandbox,
        on_event=on_event,
        should_stop=should_stop,
    )
    manifest = assemble(
        spec,
        profile,
        fingerprint=compiled.fingerprint,
        artifacts=compiled.artifacts,
        qualification=Qualification(),
        compile_report=compiled.report,
        provenance=provenance_of(spec, builder=builder),
    )
    # The source's code ran in the child that wrote this, so what it says is read from the bytes once more.
    refuse_false_facts(manifest, compiled.paths)
    stored = write_bundle(scratch / "bundle", manifest=manifest, files=compiled.paths)
    return read_staged(stored.directory)
