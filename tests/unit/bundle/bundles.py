"""Files of a bundle on disk."""

from pathlib import Path

from aot.bundle import ViolationKind, verify_bundle
from aot.schema.manifest import Envelope, Manifest, Statement, encode_manifest
from aot.trust import SigningKey, TrustedKeys, sign
from tests.builders import a_file, a_manifest, altered, an_artifact

KEY, STRANGER = SigningKey.generate(), SigningKey.generate()

TRUSTED = TrustedKeys((KEY.public,))

LIBRARY, CUBIN, CONSTANT = (
    a_file("lib/model.so", b"\x7fELF library " * 10),
    a_file("cubin/k.cubin", b"\x7fELF cubin"),
    a_file("constants/c.bin", b"constant"),
)


def two_artifacts(**deviations) -> Manifest:
    """The second artifact shares the cubin of the first."""
    artifacts = (
        an_artifact(files=(LIBRARY, CUBIN, CONSTANT)),
        an_artifact(region="head", files=(a_file("lib/head.so", b"\x7fELF head"), CUBIN)),
    )
    return a_manifest(**({"artifacts": artifacts} | deviations))


def signed(manifest: Manifest, key: SigningKey = KEY, **deviations) -> Envelope:
    _, digest = encode_manifest(manifest)
    statement = Statement(
        manifest=digest, namespace=manifest.namespace, name=manifest.name, build_key=manifest.build_key
    )
    return sign(altered(statement, **deviations), key)


def kinds(stored, trusted: TrustedKeys | None = TRUSTED) -> list[tuple[ViolationKind, str]]:
    return [(violation.kind, violation.path) for violation in verify_bundle(stored.directory, trusted)]


def damage(path: Path) -> bytes:
    """Change one byte in place: size and inode stay. Returns the earlier bytes."""
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return content
