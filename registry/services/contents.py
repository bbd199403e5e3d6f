"""The index of what a bundle holds: rows of its artifacts and their files, as its manifest lists them."""

from collections.abc import Sequence

from aot.schema.artifact import Artifact
from aot.select import describe_coverage
from registry.db.models import ArtifactBlobRow, ArtifactRow
from registry.services.proof import Received


def worst_speedup(artifacts: Sequence[Artifact]) -> float | None:
    """Eager median over compiled median at the point where it is least; None where nothing was measured."""
    speeds = (speed for artifact in artifacts for speed in artifact.speeds)
    ratios = [speed.ratio for speed in speeds if speed.compiled.p50_us > 0 and speed.eager.p50_us > 0]
    worst = max(ratios, default=0.0)
    return 1 / worst if worst > 0 else None


def artifacts_of(received: Received) -> list[ArtifactRow]:
    """One row an artifact, in the manifest's order."""
    return [
        ArtifactRow(
            bundle=received.digest,
            position=position,
            region=artifact.region,
            route=artifact.route,
            capability=artifact.capability,
            torch=received.manifest.profile.toolchain.torch,
            coverage=describe_coverage(artifact),
        )
        for position, artifact in enumerate(received.manifest.artifacts)
    ]


def files_of(received: Received) -> list[ArtifactBlobRow]:
    """One row a file: those of the artifacts, then what the canaries expect."""
    manifest = received.manifest
    owned = [(index, file) for index, artifact in enumerate(manifest.artifacts) for file in artifact.all_files]
    owned += [(canary.artifact, file) for canary in manifest.canaries for file in canary.expected]
    return [
        ArtifactBlobRow(
            bundle=received.digest,
            position=position,
            artifact=artifact,
            path=file.path,
            digest=file.digest,
            size_bytes=file.size_bytes,
        )
        for position, (artifact, file) in enumerate(owned)
    ]
