"""Build: from an opened source to a proven bundle on disk, without the network (design.md, section 5)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import aot
from aot.bundle import read_bundle, write_bundle
from aot.bundle.assemble import assemble
from aot.client import RegistryClient
from aot.compile.run import Compiled, compile_source
from aot.errors import QualificationFailed
from aot.keys import fingerprint_of
from aot.pipeline.recheck import refuse_false_facts
from aot.pipeline.source import download, require_room
from aot.proof import PTRACE, faults_of
from aot.qualify import qualify
from aot.sandbox import Bubblewrap, OnEvent, ShouldStop, list_gpu_devices
from aot.schema.digest import BuildKey, Digest
from aot.schema.factor import Factor
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.names import Reference
from aot.schema.profile import Profile
from aot.schema.report import CompileReport, Provenance, Qualification
from aot.schema.spec import BytecodeSource, CommandSource, KernelSource, Spec
from aot.source import OpenedSource

if TYPE_CHECKING:
    from aot.capture.union import Base


@dataclass(frozen=True)
class Question:
    """What a claim asks for: a spec, the profile it names, and the key over both."""

    spec: Spec
    profile: Profile
    build_key: BuildKey
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class Staged:
    """A bundle on this disk, ready to be uploaded. `manifest_text` are the bytes that its digest is over.

    `measured` is a file with what tuning knows after this build, for later ones; it is no part of the bundle.
    """

    directory: Path
    manifest: Manifest
    manifest_text: str
    digest: Digest
    paths: Mapping[Digest, Path]
    measured: Path | None = None


def build_bundle(
    question: Question,
    source: OpenedSource,
    *,
    scratch: Path,
    shared_caches: Path,
    sandbox: Bubblewrap | None,
    builder: str,
    on_event: OnEvent,
    should_stop: ShouldStop,
) -> Staged:
    """Compile every region of `source`, prove the result in fresh processes, and stage the bundle below `scratch`.

    `shared_caches` keeps what one machine and toolchain pays once: headers and ISA probes. `should_stop` ends the
    work with CompileStopped. Raises the family CompileFailed, and InvalidInput for a recipe that cannot be honoured.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    if isinstance(question.spec.source, CommandSource):
        around: dict[str, Any] = {"builder": builder, "on_event": on_event, "should_stop": should_stop}
        return _make_again(_nothing_yet(question), source, scratch=scratch, sandbox=sandbox, **around)
    draft, compiled = compile_draft(
        question,
        source,
        scratch=scratch,
        shared_caches=shared_caches,
        sandbox=sandbox,
        builder=builder,
        on_event=on_event,
        should_stop=should_stop,
    )
    staged = _prove(
        draft, compiled.paths, source, scratch=scratch, sandbox=sandbox, on_event=on_event, should_stop=should_stop
    )
    return replace(staged, measured=compiled.measured)


def compile_draft(
    question: Question,
    source: OpenedSource,
    *,
    scratch: Path,
    shared_caches: Path,
    sandbox: Bubblewrap | None,
    builder: str,
    on_event: OnEvent,
    should_stop: ShouldStop,
) -> tuple[Manifest, Compiled]:
    """Compile every region of `source`: the manifest as it is before any proof, and what it lists.

    Raises as `build_bundle`, but for what a proof raises.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    compiled = compile_source(
        source,
        question.spec,
        question.profile,
        scratch=scratch / "compile",
        shared_caches=shared_caches,
        sandbox=sandbox,
        devices=list_gpu_devices(question.profile.capability.family),
        on_event=on_event,
        should_stop=should_stop,
    )
    draft = Manifest(
        namespace=question.spec.namespace,
        name=question.spec.name,
        build_key=question.build_key,
        factors=question.factors,
        spec=question.spec,
        profile=question.profile,
        fingerprint=compiled.fingerprint,
        artifacts=compiled.artifacts,
        qualification=Qualification(),
        compile_report=compiled.report,
        provenance=provenance_of(question.spec, builder=builder),
    )
    return draft, compiled


def requalify_bundle(
    question: Question,
    source: OpenedSource,
    *,
    digest: Digest,
    bases: "Sequence[Base]" = (),
    client: RegistryClient,
    fetching: Callable[[], AbstractContextManager[None]] = nullcontext,
    scratch: Path,
    shared_caches: Path,
    sandbox: Bubblewrap | None,
    builder: str,
    on_event: OnEvent,
    should_stop: ShouldStop,
) -> Staged:
    """Prove again a pending bundle that somebody uploaded. What its uploader claimed of the proof is dropped.

    `bases` are the live bundles that a union of caches is to hold, `fetching` is around what it fetches.
    Raises as `build_bundle`, and QualificationFailed where its files ask other things of a host than it says.
    """
    _refuse_kernels(question)
    scratch.mkdir(parents=True, exist_ok=True)
    spec = question.spec
    pinned = Reference(f"{spec.namespace}/{spec.name}@{digest}")
    pushed = decode_manifest(client.resolve(pinned)[0].manifest.encode())
    if isinstance(spec.source, BytecodeSource | CommandSource):
        around: dict[str, Any] = {"builder": builder, "on_event": on_event, "should_stop": should_stop}
        return _make_again(pushed, source, bases=bases, scratch=scratch, sandbox=sandbox, **around)
    with fetching():
        paths = _fetch_blobs(pushed, digest, client=client, into=scratch / "pushed", should_stop=should_stop)
    refuse_false_facts(pushed, paths, should_stop=should_stop)
    draft = msgspec.structs.replace(
        pushed,
        qualification=Qualification(),
        canaries=(),
        provenance=msgspec.structs.replace(
            pushed.provenance, builder=f"{pushed.provenance.builder}, proven by {builder}"
        ),
    )
    return _prove(draft, paths, source, scratch=scratch, sandbox=sandbox, on_event=on_event, should_stop=should_stop)


def _nothing_yet(question: Question) -> Manifest:
    """What a capture that nobody has pushed begins with: the question, and no artifact."""
    return assemble(
        question.spec,
        question.profile,
        fingerprint=fingerprint_of(question.factors),
        artifacts=(),
        qualification=Qualification(),
        compile_report=CompileReport(),
        provenance=provenance_of(question.spec, builder=""),
    )


def _refuse_kernels(question: Question) -> None:
    if isinstance(question.spec.source, KernelSource):
        raise QualificationFailed(
            f"no proof of the route kernel: nothing here runs code objects for {question.profile.capability}",
            hint="the bundle stays out; run its kernels with your own program",
        )


def _make_again(
    pushed: Manifest,
    source: OpenedSource,
    *,
    bases: "Sequence[Base]" = (),
    scratch: Path,
    sandbox: Bubblewrap | None,
    builder: str,
    on_event: OnEvent,
    should_stop: ShouldStop,
) -> Staged:
    """Prove what no eager program can be compared with by making it once more."""
    if isinstance(pushed.spec.source, BytecodeSource):
        from aot.pipeline.bytecode import rebuild_bytecode

        return rebuild_bytecode(pushed, scratch=scratch, builder=builder)
    from aot.capture.again import recapture

    return recapture(
        pushed,
        source.tree,
        scratch=scratch,
        sandbox=sandbox,
        devices=list_gpu_devices(pushed.profile.capability.family),
        builder=builder,
        bases=bases,
        on_event=on_event,
        should_stop=should_stop,
    )


def _fetch_blobs(
    pushed: Manifest, digest: Digest, *, client: RegistryClient, into: Path, should_stop: ShouldStop
) -> dict[Digest, Path]:
    links = {link.digest: link for link in client.get_download_links(digest)}
    paths = {blob.digest: into / blob.digest.hex for blob in pushed.blobs}
    into.mkdir(parents=True, exist_ok=True)
    require_room(pushed.blobs, into)
    for blob in pushed.blobs:
        download(client, links[blob.digest], blob, paths[blob.digest], should_stop=should_stop)
    return paths


def read_staged(directory: Path) -> Staged:
    """Open a bundle on disk for upload. Raises IntegrityFailed or MalformedDocument."""
    stored = read_bundle(directory)
    paths = {blob.digest: stored.blob_path(blob.digest) for blob in stored.manifest.blobs}
    return Staged(directory, stored.manifest, stored.manifest_bytes.decode(), stored.digest, paths)


def _prove(
    draft: Manifest,
    paths: Mapping[Digest, Path],
    source: OpenedSource,
    *,
    scratch: Path,
    sandbox: Bubblewrap | None,
    on_event: OnEvent,
    should_stop: ShouldStop,
) -> Staged:
    on_event({"phase": "qualifying"})
    stored = write_bundle(scratch / "draft", manifest=draft, files=paths)
    proof = qualify(
        stored.directory,
        source=source,
        spec=draft.spec,
        profile=draft.profile,
        scratch=scratch / "qualify",
        sandbox=sandbox,
        devices=list_gpu_devices(draft.profile.capability.family),
        on_event=on_event,
        should_stop=should_stop,
    )
    proven = msgspec.structs.replace(
        draft, artifacts=proof.artifacts, qualification=proof.qualification, canaries=proof.canaries
    )
    _require_proven(proven)
    stored = write_bundle(scratch / "bundle", manifest=proven, files={**paths, **proof.paths})
    return read_staged(stored.directory)


def _require_proven(manifest: Manifest) -> None:
    """Refuse here what the registry would refuse after the upload."""
    faults = faults_of(manifest)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise QualificationFailed(
            f"the bundle is not proven: {faults[0]}{more}",
            hint=_hint_for(manifest),
            details={"failures": list(faults)},
        )


def _hint_for(manifest: Manifest) -> str:
    start = manifest.qualification.start
    if start is not None and start.counted_by != PTRACE:
        return "let the worker trace its children: seccomp and kernel.yama.ptrace_scope forbid it here"
    if manifest.spec.recipe.require_faster:
        return "where speed is the fault, drop require_faster or change the coverage"
    return "the details list every fault; see the build's log"


def provenance_of(spec: Spec, *, builder: str) -> Provenance:
    """Who builds what from which commit, with which version, now."""
    commit = spec.commit
    return Provenance(
        builder=builder,
        commit=commit.revision if commit else "",
        dirty=commit is not None and commit.dirty,
        commit_told_by=commit.told_by if commit else "",
        aot_version=aot.__version__,
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
