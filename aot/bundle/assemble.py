"""The last step of a build before writing: everything that was made and measured, as one manifest."""

from collections.abc import Iterable

from aot.bundle.paths import why_unsafe_together
from aot.errors import MalformedDocument
from aot.keys import factors_of, key_of
from aot.schema.artifact import Artifact
from aot.schema.factor import Fingerprint
from aot.schema.manifest import Canary, Manifest
from aot.schema.profile import Profile
from aot.schema.report import CompileReport, Provenance, Qualification
from aot.schema.spec import File, Spec


def assemble(
    spec: Spec,
    profile: Profile,
    *,
    fingerprint: Fingerprint,
    artifacts: tuple[Artifact, ...],
    qualification: Qualification,
    compile_report: CompileReport,
    provenance: Provenance,
    canaries: tuple[Canary, ...] = (),
) -> Manifest:
    """Return the manifest, with factors and build key worked out from spec and profile.

    Raises MalformedDocument when a file's path cannot be used, or one digest is listed with two sizes.
    """
    factors = factors_of(spec, profile)
    manifest = Manifest(
        namespace=spec.namespace,
        name=spec.name,
        build_key=key_of(factors),
        factors=factors,
        spec=spec,
        profile=profile,
        fingerprint=fingerprint,
        artifacts=artifacts,
        qualification=qualification,
        compile_report=compile_report,
        canaries=canaries,
        provenance=provenance,
    )
    check_files(manifest)
    return manifest


def check_files(manifest: Manifest) -> None:
    """Raise MalformedDocument for the first file of the manifest that cannot be stored or laid out."""
    for index, artifact in enumerate(manifest.artifacts):
        _check_paths(artifact.all_files, where=f"$.artifacts[{index}].files")
    for index, canary in enumerate(manifest.canaries):
        _check_paths(canary.expected, where=f"$.canaries[{index}].expected")
    sizes: dict[str, int] = {}
    for file in manifest.files:
        size_bytes = sizes.setdefault(file.digest, file.size_bytes)
        if file.size_bytes < 0:
            raise _malformed(f"lists {file.path} with {file.size_bytes} bytes", where=file.path)
        if file.size_bytes != size_bytes:
            finding = f"lists {file.digest} with {size_bytes} and with {file.size_bytes} bytes"
            raise _malformed(finding, where=file.path)


def _check_paths(files: Iterable[File], *, where: str) -> None:
    if (unsafe := why_unsafe_together(file.path for file in files)) is not None:
        path, reason = unsafe
        raise _malformed(f"lists {path[:200]!r}, which cannot be used: {reason}", where=where)


def _malformed(finding: str, *, where: str) -> MalformedDocument:
    return MalformedDocument(
        f"the manifest {finding}",
        hint="do not use this bundle: it was not written by aot",
        details={"path": where},
    )
