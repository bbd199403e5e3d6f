"""`aot ls`, `show`, `inspect`, `verify`, `push`, `tag`, `withdraw`: bundles in the registry and on disk."""

from collections.abc import Sequence
from pathlib import Path

from aot.bundle import read_bundle, verify_bundle
from aot.cli.output import size, table
from aot.client import RegistryClient
from aot.errors import IntegrityFailed, InvalidInput
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.names import Reference
from aot.schema.wire.bundles import BundleView, SignedManifest
from aot.select import describe_coverage
from aot.trust import TrustedKeys


def list_lines(bundles: Sequence[BundleView]) -> list[str]:
    rows = [
        (
            f"{view.namespace}/{view.name}",
            ",".join(view.tags) or "-",
            view.digest.short,
            view.profile,
            view.state,
            "frozen" if view.frozen else "any weights",
            size(view.size_bytes),
            "-" if view.speedup is None else f"{view.speedup:.2f}x",
        )
        for view in bundles
    ]
    return table(("model", "tags", "bundle", "profile", "state", "weights", "size", "vs eager"), rows)


def find_bundles(client: RegistryClient, reference: str) -> tuple[SignedManifest, ...]:
    """Every live bundle that a reference stands for."""
    return client.resolve(Reference.parse(reference))


def show_lines(signed: Sequence[SignedManifest]) -> list[str]:
    lines: list[str] = []
    for one in signed:
        manifest = decode_manifest(one.manifest.encode())
        lines += [*([""] if lines else []), *manifest_lines(manifest, one.digest)]
        lines.append(f"signed by  {', '.join(signature.keyid for signature in one.envelope.signatures)}")
    return lines


def manifest_lines(manifest: Manifest, digest: Digest) -> list[str]:
    """A bundle as people read it: what it is, what it covers, what was proven."""
    spec, proof = manifest.spec, manifest.qualification
    weights = "frozen: this checkpoint alone" if manifest.frozen else "any weights of this architecture"
    lines = [
        f"bundle     {digest}",
        f"model      {manifest.namespace}/{manifest.name} ({weights})",
        f"key        {manifest.build_key}",
        f"profile    {spec.profile}: {manifest.profile.capability}, torch {manifest.profile.toolchain.torch},"
        f" {manifest.profile.toolchain.compiler}, {manifest.profile.toolchain.libc}",
        f"recipe     {spec.recipe.mode}, regions {spec.recipe.regions}",
        f"size       {size(manifest.size_bytes)} in {len(manifest.blobs)} blob(s)",
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
    return lines


def artifact_lines(artifact: Artifact) -> list[str]:
    name = artifact.region or "whole program"
    count = f" x{len(artifact.instances)}" if len(artifact.instances) > 1 else ""
    lines = [f"artifact   {name}{count} [{describe_coverage(artifact)}] by route {artifact.route}"]
    for speed in artifact.speeds:
        point = ", ".join(f"{name} {value}" for name, value in speed.point.items()) or "example"
        lines.append(
            f"  at {point}: {speed.compiled.p50_us:.0f} us, eager {speed.eager.p50_us:.0f} us"
            f" ({1 / speed.ratio:.2f}x), runs {speed.winner}"
        )
    needs = ", ".join(f"{guard.kind} {guard.value}" for guard in artifact.host_guards)
    return [*lines, f"  needs {needs}"]


def inspect_directory(directory: Path) -> tuple[Manifest, list[str]]:
    """Read a bundle on disk without running anything of it."""
    if not (directory / "manifest.json").exists():
        raise InvalidInput(f"{directory} is no bundle: it has no manifest.json")
    stored = read_bundle(directory)
    return stored.manifest, manifest_lines(stored.manifest, stored.digest)


def verify_directory(directory: Path, trusted: TrustedKeys | None) -> list[str]:
    """Return lines that say all is well. Raises IntegrityFailed with every violation."""
    violations = verify_bundle(directory, trusted)
    if violations:
        raise IntegrityFailed(
            f"{directory} has {len(violations)} violation(s): {violations[0].text}",
            hint="fetch or build the bundle again; do not load this one",
            details={"violations": [violation.text for violation in violations]},
        )
    stored = read_bundle(directory)
    signed = "signature verified" if trusted else "signature not checked"
    return [f"{stored.digest} whole: {len(stored.manifest.blobs)} blob(s), {signed}"]
