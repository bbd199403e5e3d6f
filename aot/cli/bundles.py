"""`aot ls`, `show`: bundles in the registry."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from aot.cli.output import size, table, weights_word
from aot.cli.tuning import clock_lines, measured_record, tuning_lines, tuning_records
from aot.client import RegistryClient
from aot.errors import BuildNotFound, InvalidInput, NotFound
from aot.schema.artifact import Artifact, Speed
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope, Manifest, decode_manifest
from aot.schema.measured import memory_of, spell_point
from aot.schema.names import Reference
from aot.schema.recipe import Route
from aot.schema.report import Provenance
from aot.schema.spec import BytecodeSource, CommandSource, CommitTeller, KernelSource
from aot.schema.state import BundleState
from aot.schema.wire.builds import BuildView
from aot.schema.wire.bundles import BundleView, SignedManifest
from aot.select import describe_coverage

MOST_GRAPHS = 16  # of a capture's that are told one by one


def narrow(name: str | None) -> dict[str, Any]:
    """What a search is narrowed to by `[namespace/]name[:tag]`; a tag only where one is given."""
    if name is None:
        return {}
    reference = Reference.parse(name)
    if reference.digest is not None:
        raise InvalidInput(f"wanted a name or a tag, found {name}", hint=f"`aot show {name}` shows one bundle")
    narrowed: dict[str, Any] = {"namespace": reference.namespace, "name": reference.name}
    return {**narrowed, "tag": reference.tag} if ":" in name else narrowed


def parse_tagged(text: str) -> Reference:
    """Read `[namespace/]name:tag`. Raises InvalidInput for a digest, or where no tag is given."""
    reference = Reference.parse(text)
    if reference.tag is None or ":" not in text:
        raise InvalidInput(f"wanted name:tag, found {text}", hint="for example mini:v2")
    return reference


def find_build(client: RegistryClient, what: str) -> BuildView | None:
    """The build of that id, or None: then `what` is a bundle, or names one."""
    if not _may_be_a_build(what):
        return None
    try:
        return client.get_build(what)
    except (BuildNotFound, InvalidInput):
        return None


def show(client: RegistryClient, what: str, *, kernels: bool = False) -> tuple[Any, list[str]]:
    """The live bundles of a reference with their proof; of a bundle that is not live, its state and why."""
    if not what.startswith("sha256:"):
        signed = _resolve(client, what)
        # What a tag stands for is pinned by that tag.
        views = {one.digest: client.get_bundle(one.digest) for one in signed if "@" in what and not one.tags}
        return _shown(signed, kernels=kernels), show_lines(signed, kernels=kernels, views=views)
    view = client.get_bundle(Digest.parse(what))
    if view.state is not BundleState.LIVE:
        return view, view_lines(view)
    signed = client.resolve(Reference(f"{view.namespace}/{view.name}@{view.digest}"))
    return _shown(signed, kernels=kernels), show_lines(signed, kernels=kernels, views={view.digest: view})


class TunedManifest(SignedManifest, kw_only=True):
    """A bundle with what tuning chose for the kernels of each of its artifacts, and how its times were measured."""

    tuning: tuple[list[dict[str, Any]], ...]
    measured: tuple[dict[str, Any], ...]


def _shown(signed: tuple[SignedManifest, ...], *, kernels: bool) -> tuple[SignedManifest, ...]:
    """What `--json` has."""
    if not kernels:
        return signed
    return tuple(_tuned(one) for one in signed)


def _tuned(one: SignedManifest) -> TunedManifest:
    artifacts = decode_manifest(one.manifest.encode()).artifacts
    return TunedManifest(
        **structs.asdict(one),
        tuning=tuple(map(tuning_records, artifacts)),
        measured=tuple(map(measured_record, artifacts)),
    )


def _resolve(client: RegistryClient, what: str) -> tuple[SignedManifest, ...]:
    """Raises NotFound: of what may be a build as well, it says that there is none of these either."""
    reference = Reference.parse(what)
    try:
        return client.resolve(reference)
    except NotFound as error:
        if not _may_be_a_build(what):
            raise
        raise type(error)(
            f"there is no build {what}, and no bundle {reference}",
            hint="`aot ls --builds` lists builds, `aot ls` bundles; it may lie in a namespace you cannot see",
        ) from error


def _may_be_a_build(what: str) -> bool:
    return not any(sign in what for sign in ":/@")


def view_lines(view: BundleView) -> list[str]:
    """A bundle of which only the registry's row is to be had."""
    lines = [
        f"bundle     {view.digest}",
        f"model      {view.namespace}/{view.name}",
        f"profile    {view.profile}: {view.capability}, torch {view.torch}",
        f"state      {view.state}{f': {reason}' if (reason := view.withdrawn_reason or view.waiting) else ''}",
    ]
    lines += [f"use        {view.replacement}"] if view.replacement else []
    return [*lines, *expiry_lines(view)]


def expiry_lines(view: BundleView) -> list[str]:
    """When a bundle without a tag goes; nothing for a tagged one, or where an older registry does not tell."""
    return [f"goes       {view.expires_at:%Y-%m-%d} unless it is used; no tag pins it"] if view.expires_at else []


def list_lines(bundles: Sequence[BundleView]) -> list[str]:
    rows = [
        (
            f"{view.namespace}/{view.name}",
            ",".join(view.tags) or "-",
            view.digest.short,
            view.profile,
            f"{view.state} ({view.waiting})" if view.waiting else view.state,
            weights_word(frozen=view.frozen),
            size(view.size_bytes),
            "-" if view.speedup is None else f"{view.speedup:.2f}x",
            f"{view.expires_at:%Y-%m-%d}" if view.expires_at else "-",
        )
        for view in bundles
    ]
    return table(("model", "tags", "bundle", "profile", "state", "weights", "size", "vs eager", "goes"), rows)


def show_lines(
    signed: Sequence[SignedManifest], *, kernels: bool = False, views: Mapping[Digest, BundleView] | None = None
) -> list[str]:
    lines: list[str] = []
    for one in signed:
        manifest = decode_manifest(one.manifest.encode())
        lines += [*([""] if lines else []), *manifest_lines(manifest, one.digest)]
        if kernels:
            for artifact in manifest.artifacts:
                lines += [*tuning_lines(artifact), *clock_lines(artifact)]
        lines += [f"tags       {', '.join(one.tags)}"] if one.tags else []
        lines += expiry_lines(views[one.digest]) if views and one.digest in views else []
        lines.append(f"signed by  {signers(one.envelope)} (not verified here)")
    return lines


def signers(envelope: Envelope | None) -> str:
    """The keys that say they signed; only `aot verify` and the pod check that."""
    return ", ".join(signature.keyid for signature in envelope.signatures) if envelope else "nobody"


def manifest_lines(manifest: Manifest, digest: Digest) -> list[str]:
    """A bundle as people read it: what it is, what it covers, what was proven."""
    spec, proof = manifest.spec, manifest.qualification
    weights = "frozen: this checkpoint alone" if manifest.frozen else "any weights of this architecture"
    recipe = f"{spec.recipe.mode}, regions {spec.recipe.regions}"
    if isinstance(spec.source, KernelSource):
        weights, recipe = f"Triton kernel {spec.source.entry}", "the signatures' own options, nothing tuned"
    if isinstance(spec.source, BytecodeSource):
        weights, recipe = f"bytecode for {spec.source.interpreter}", "checked against its source at every import"
    if isinstance(spec.source, CommandSource):
        weights, recipe = "compiler caches", f"captured from `{' '.join(spec.source.command)[:200]}`"
    lines = [
        f"bundle     {digest}",
        f"model      {manifest.namespace}/{manifest.name} ({weights})",
        f"key        {manifest.build_key}",
        f"profile    {spec.profile}: {manifest.profile.capability}, torch {manifest.profile.toolchain.torch},"
        f" {manifest.profile.toolchain.compiler}, {manifest.profile.toolchain.libc}",
        f"recipe     {recipe}",
        f"size       {size(manifest.size_bytes)} in {len(manifest.blobs)} blob(s)",
        f"built      {provenance_line(manifest.provenance)}",
    ]
    for artifact in manifest.artifacts:
        lines += artifact_lines(artifact)
    if proof.start:
        lines.append(
            f"start      {proof.start.seconds:.2f} s, eager {proof.start.eager_seconds:.2f} s, "
            f"{len(proof.start.processes)} child process(es), counted by {proof.start.counted_by}"
        )
    if proof.agreements:
        worst = max(proof.agreements, key=lambda one: one.max_error)
        lines.append(
            f"numerics   {len(proof.agreements)} comparisons agree; largest error {worst.max_error:.2g}"
            f" against {worst.reference} (eager {worst.eager_error:.2g}), weights {worst.weights}"
        )
    if proof.numerics != "checked":
        lines.append(f"numerics   {proof.numerics}")
    refused = manifest.compile_report.refused_routes
    lines += [f"not by     route {route}: {reason}" for route, reason in sorted(refused.items())]
    return [*lines, *(f"left out   {gap}" for gap in proof.left_out)]


def provenance_line(provenance: Provenance) -> str:
    """Who built it when, with which version, from which commit."""
    words = [f"by {provenance.builder or 'nobody named'}"]
    words += [f"at {provenance.built_at}"] if provenance.built_at else []
    words += [f"with aot {provenance.aot_version}"] if provenance.aot_version else []
    if not provenance.commit:
        return f"{' '.join(words)}, commit not known"
    doubt = "changed since" if provenance.dirty else ""
    if provenance.commit_told_by == CommitTeller.CI:
        doubt = "as CI says; nobody has looked for changes"
    return f"{' '.join(words)}, from commit {provenance.commit}{f' ({doubt})' if doubt else ''}"


def throughput_words(speed: Speed) -> str:
    """Calls a second for each number of threads that both were measured with, "" where none was."""
    eager = {one.threads: one.calls_per_second for one in speed.eager.throughput}
    rates = [
        f"{one.threads} thread{'s' if one.threads > 1 else ''} {one.calls_per_second:,.0f} calls/s,"
        f" eager {eager[one.threads]:,.0f}"
        for one in speed.compiled.throughput
        if one.threads in eager
    ]
    return "".join(f"; {rate}" for rate in rates)


def graphs_words(speed: Speed, memory: Mapping[str, int]) -> str:
    """What a call takes as a CUDA graph, where that was measured, and what the card held for graphs by then."""
    if speed.graphs is None:
        return ""
    count = memory.get(spell_point(speed.point), 0)
    held = f" ({size(count)} held)" if count else ""
    return f", as a CUDA graph {speed.graphs.p50_us:.0f} us{held}"


def artifact_lines(artifact: Artifact) -> list[str]:
    name = artifact.region or "whole program"
    count = f" x{len(artifact.instances)}" if len(artifact.instances) > 1 else ""
    lines = [f"artifact   {name}{count} [{describe_coverage(artifact)}] by route {artifact.route}"]
    if artifact.route is Route.CACHE:
        lines += [f"  {line}" for line in artifact.coverage.constraints[:MOST_GRAPHS]]
    memory = memory_of(artifact)
    for speed in artifact.speeds:
        point = ", ".join(f"{name} {value}" for name, value in speed.point.items()) or "example"
        lines.append(
            f"  at {point}: {speed.compiled.p50_us:.0f} us{graphs_words(speed, memory)},"
            f" eager {speed.eager.p50_us:.0f} us ({1 / speed.ratio:.2f}x), runs {speed.winner}{throughput_words(speed)}"
        )
    if artifact.tuned is False:
        lines.append("  untuned: built without the card, no configuration was measured")
    if artifact.kept is not None:
        lines.append(f"  keeps its kernels for other cards: {size(artifact.kept.size_bytes)}")
    if artifact.program_guards:
        kinds = Counter(guard.kind for guard in artifact.program_guards)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(4))
        lines.append(f"  checks {len(artifact.program_guards)} guards of the program at each call ({counted}, ...)")
    needs = ", ".join(f"{guard.kind} {guard.value}" for guard in artifact.host_guards)
    return [*lines, *binary_lines(artifact), f"  needs {needs}"]


def binary_lines(artifact: Artifact) -> list[str]:
    """What was read from the bytes: instructions, and kernels; nothing where nothing was."""
    lines = []
    if (code := artifact.code) is not None:
        lines.append(f"  code uses {code.level}, vectors of {code.vector_bits} bits")
    if artifact.binaries:
        spilling = sum(1 for kernel in artifact.binaries if kernel.spill_bytes)
        spills = f", {spilling} with local memory" if spilling else ""
        total = sum(kernel.size_bytes for kernel in artifact.binaries)
        lines.append(f"  holds {len(artifact.binaries)} kernel(s), {size(total)} of instructions{spills}")
    return lines
