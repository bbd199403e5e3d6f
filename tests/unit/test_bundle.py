"""Bundles on disk: written whole, read back, and every kind of damage named."""

import os
import threading
from pathlib import Path

import pytest

from aot.bundle import (
    Violation,
    ViolationKind,
    assemble,
    materialise_view,
    raise_first,
    read_bundle,
    verify_bundle,
    why_unsafe,
    why_unsafe_together,
    write_bundle,
    write_envelope,
)
from aot.errors import (
    AotError,
    BlobNotFound,
    DigestMismatch,
    IntegrityFailed,
    InvalidInput,
    LocalStorageFull,
    MalformedDocument,
    SignatureRejected,
    SizeMismatch,
    UnknownFile,
)
from aot.keys import key_of
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope, Manifest, Statement, encode_manifest
from aot.schema.names import Name
from aot.schema.spec import File
from aot.trust import SigningKey, TrustedKeys, sign
from tests.builders import (
    BYTES,
    a_file,
    a_fingerprint,
    a_manifest,
    a_profile,
    a_qualification,
    a_report,
    a_spec,
    altered,
    an_artifact,
)

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


@pytest.fixture
def bytes_of(tmp_path):
    """Where the bytes of every builder's blob are."""

    def paths(manifest: Manifest) -> dict[Digest, Path]:
        directory = tmp_path / "made"
        directory.mkdir(exist_ok=True)
        found = {}
        for blob in manifest.blobs:
            found[blob.digest] = directory / blob.digest.hex
            found[blob.digest].write_bytes(BYTES[blob.digest])
        return found

    return paths


@pytest.fixture
def stored(tmp_path, bytes_of):
    manifest = two_artifacts()
    return write_bundle(tmp_path / "bundle", manifest=manifest, files=bytes_of(manifest), envelope=signed(manifest))


def blob_file(stored, file: File = LIBRARY) -> Path:
    return stored.blob_path(file.digest)


def kinds(stored, trusted: TrustedKeys | None = TRUSTED) -> list[tuple[ViolationKind, str]]:
    return [(violation.kind, violation.path) for violation in verify_bundle(stored.directory, trusted)]


def test_a_bundle_is_read_as_it_was_written(stored):
    manifest = two_artifacts()
    content, digest = encode_manifest(manifest)
    assert read_bundle(stored.directory) == stored
    assert (stored.manifest, stored.manifest_bytes, stored.digest) == (manifest, content, digest)
    assert stored.envelope == signed(manifest)
    assert verify_bundle(stored.directory, TRUSTED) == ()
    assert sorted(
        str(path.relative_to(stored.directory)) for path in stored.directory.rglob("*") if path.is_file()
    ) == [
        *sorted(f"blobs/sha256/{blob.digest.hex}" for blob in manifest.blobs),
        "envelope.json",
        "manifest.json",
    ]


def test_a_bundle_that_is_not_published_has_no_signature(tmp_path, bytes_of):
    manifest = two_artifacts()
    stored = write_bundle(tmp_path / "bundle", manifest=manifest, files=bytes_of(manifest))
    assert stored.envelope is None
    assert kinds(stored, None) == []
    assert kinds(stored) == [(ViolationKind.UNSIGNED, "envelope.json")]
    write_envelope(stored.directory, signed(manifest))
    assert kinds(stored) == []


def test_writing_needs_every_blob(tmp_path, bytes_of):
    manifest = two_artifacts()
    files = bytes_of(manifest)
    del files[CUBIN.digest]
    with pytest.raises(InvalidInput) as caught:
        write_bundle(tmp_path / "bundle", manifest=manifest, files=files)
    assert caught.value.details == {"digests": [CUBIN.digest]}


@pytest.mark.parametrize(("content", "error"), [(b"\x7fELF cubiN", DigestMismatch), (b"short", SizeMismatch)])
def test_writing_other_bytes_than_listed_leaves_nothing(tmp_path, bytes_of, content, error):
    manifest = two_artifacts()
    files = bytes_of(manifest)
    files[CUBIN.digest].write_bytes(content)
    with pytest.raises(error):
        write_bundle(tmp_path / "bundle", manifest=manifest, files=files)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_writing_over_something_is_refused(stored, bytes_of):
    with pytest.raises(InvalidInput, match="not empty"):
        write_bundle(stored.directory, manifest=stored.manifest, files=bytes_of(stored.manifest))


def test_a_full_disk_is_its_own_error(tmp_path, bytes_of, monkeypatch):
    from aot.bundle import form

    def write(*_):
        raise OSError(28, "No space left on device")

    manifest = two_artifacts()
    monkeypatch.setattr(form, "_write", write)
    with pytest.raises(LocalStorageFull):
        write_bundle(tmp_path / "bundle", manifest=manifest, files=bytes_of(manifest))
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"[]", b'{"format":99}'])
def test_another_directory_is_no_bundle(tmp_path, content):
    with pytest.raises(MalformedDocument, match=r"manifest\.json is missing"):
        read_bundle(tmp_path)
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(MalformedDocument):
        read_bundle(tmp_path)
    assert [violation.kind for violation in verify_bundle(tmp_path, TRUSTED)] == [ViolationKind.MALFORMED]


# Damage. Each function returns what must be found.


def path_of(file: File) -> str:
    return f"blobs/sha256/{file.digest.hex}"


def remove(stored):
    blob_file(stored).unlink()
    return [(ViolationKind.MISSING, path_of(LIBRARY))]


def truncate(stored):
    os.truncate(blob_file(stored), 5)
    return [(ViolationKind.TRUNCATED, path_of(LIBRARY))]


def empty(stored):
    os.truncate(blob_file(stored), 0)
    return [(ViolationKind.TRUNCATED, path_of(LIBRARY))]


def extend(stored):
    with blob_file(stored).open("ab") as file:
        file.write(b"!")
    return [(ViolationKind.EXTENDED, path_of(LIBRARY))]


def flip(stored):
    content = bytearray(blob_file(stored).read_bytes())
    content[7] ^= 1
    blob_file(stored).write_bytes(content)
    return [(ViolationKind.ALTERED, path_of(LIBRARY))]


def rename(stored):
    other = blob_file(stored).with_name("0" * 64)
    blob_file(stored).rename(other)
    return [
        (ViolationKind.MISSING, path_of(LIBRARY)),
        (ViolationKind.UNKNOWN, f"blobs/sha256/{'0' * 64}"),
    ]


def swap(stored):
    first, second = blob_file(stored), blob_file(stored, CUBIN)
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    return [(ViolationKind.TRUNCATED, path_of(LIBRARY)), (ViolationKind.EXTENDED, path_of(CUBIN))]


def add_file(stored):
    (stored.directory / "extra.so").touch()
    return [(ViolationKind.UNKNOWN, "extra.so")]


def add_blob(stored):
    (stored.directory / "blobs" / "sha256" / "extra").touch()
    return [(ViolationKind.UNKNOWN, "blobs/sha256/extra")]


def add_directory(stored):
    (stored.directory / "blobs" / "md5").mkdir()
    return [(ViolationKind.UNKNOWN, "blobs/md5")]


def link_blob(stored):
    outside = stored.directory.parent / "outside"
    blob_file(stored).rename(outside)
    blob_file(stored).symlink_to(outside)
    return [(ViolationKind.NOT_A_FILE, path_of(LIBRARY))]


def replace_by_directory(stored):
    blob_file(stored).unlink()
    blob_file(stored).mkdir()
    return [(ViolationKind.NOT_A_FILE, path_of(LIBRARY))]


def replace_by_pipe(stored):
    blob_file(stored).unlink()
    os.mkfifo(blob_file(stored))
    return [(ViolationKind.NOT_A_FILE, path_of(LIBRARY))]


def link_blobs(stored):
    outside = stored.directory.parent / "outside"
    (stored.directory / "blobs").rename(outside)
    (stored.directory / "blobs").symlink_to(outside)
    return [(ViolationKind.UNKNOWN, "blobs")]


def remove_signature(stored):
    (stored.directory / "envelope.json").unlink()
    return [(ViolationKind.UNSIGNED, "envelope.json")]


def garble_signature(stored):
    (stored.directory / "envelope.json").write_bytes(b"{")
    return [(ViolationKind.MALFORMED, "envelope.json")]


def pipe_as_signature(stored):
    (stored.directory / "envelope.json").unlink()
    os.mkfifo(stored.directory / "envelope.json")
    return [(ViolationKind.MALFORMED, "envelope.json")]


def sign_by_stranger(stored):
    write_envelope(stored.directory, signed(stored.manifest, STRANGER))
    return [(ViolationKind.SIGNATURE, "envelope.json")]


def sign_another_name(stored):
    write_envelope(stored.directory, signed(stored.manifest, name=Name("other")))
    return [(ViolationKind.SIGNATURE, "envelope.json")]


def sign_another_manifest(stored):
    write_envelope(stored.directory, signed(a_manifest()))
    return [(ViolationKind.SIGNATURE, "envelope.json")]


def indent(stored):
    """The same document in other bytes: another digest, so the signature is not about it either."""
    path = stored.directory / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"', b' "', 1))
    return [(ViolationKind.NOT_CANONICAL, "manifest.json"), (ViolationKind.SIGNATURE, "envelope.json")]


def rename_model(stored):
    changed = altered(stored.manifest, name=Name("other"))
    (stored.directory / "manifest.json").write_bytes(encode(changed))
    return [(ViolationKind.SIGNATURE, "envelope.json")]


def several_at_once(stored):
    flip(stored)
    os.truncate(blob_file(stored, CUBIN), 1)
    (stored.directory / "extra").touch()
    remove_signature(stored)
    return [
        (ViolationKind.UNSIGNED, "envelope.json"),
        *sorted(
            [(ViolationKind.ALTERED, path_of(LIBRARY)), (ViolationKind.TRUNCATED, path_of(CUBIN))],
            key=lambda found: found[1],
        ),
        (ViolationKind.UNKNOWN, "extra"),
    ]


DAMAGE = [
    *(remove, truncate, empty, extend, flip, rename, swap, add_file, add_blob, add_directory, link_blob),
    *(replace_by_directory, replace_by_pipe, link_blobs, remove_signature, garble_signature, pipe_as_signature),
    *(sign_by_stranger, sign_another_name, sign_another_manifest, indent, rename_model, several_at_once),
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_named(stored, damage):
    expected = damage(stored)
    assert sorted(kinds(stored)) == sorted(expected)
    with pytest.raises(AotError):
        raise_first(verify_bundle(stored.directory, TRUSTED))


def test_every_single_flipped_byte_is_noticed(stored):
    for path in [path for path in stored.directory.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        # Of long documents every seventh byte, of blobs every one.
        for offset in range(0, len(content), 7 if path.suffix == ".json" else 1):
            flipped = bytearray(content)
            flipped[offset] ^= 0x01
            path.write_bytes(flipped)
            assert verify_bundle(stored.directory, TRUSTED), f"{path.name} at {offset}"
        path.write_bytes(content)
    assert verify_bundle(stored.directory, TRUSTED) == ()


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (ViolationKind.MALFORMED, MalformedDocument),
        (ViolationKind.NOT_CANONICAL, IntegrityFailed),
        (ViolationKind.UNSIGNED, SignatureRejected),
        (ViolationKind.SIGNATURE, SignatureRejected),
        (ViolationKind.MISSING, IntegrityFailed),
        (ViolationKind.TRUNCATED, SizeMismatch),
        (ViolationKind.EXTENDED, SizeMismatch),
        (ViolationKind.ALTERED, DigestMismatch),
        (ViolationKind.UNKNOWN, UnknownFile),
        (ViolationKind.NOT_A_FILE, UnknownFile),
    ],
)
def test_each_kind_of_violation_has_its_error(kind, error):
    with pytest.raises(error) as caught:
        raise_first([Violation(kind, "a", "first"), Violation(ViolationKind.MISSING, "b", "second")])
    assert type(caught.value) is error
    assert caught.value.message == "first (and 1 more)"
    assert caught.value.details == {"violations": ["a: first", "b: second"]}


def test_no_violation_raises_nothing():
    raise_first(())


# Assembling


def test_assembling_works_out_factors_and_key():
    spec, profile = a_spec(name="bert", namespace="acme"), a_profile()
    manifest = assemble(
        spec,
        profile,
        fingerprint=a_fingerprint(),
        artifacts=(an_artifact(),),
        qualification=a_qualification(),
        compile_report=a_report(),
        provenance=a_manifest().provenance,
    )
    assert (manifest.namespace, manifest.name) == ("acme", "bert")
    assert manifest.build_key == key_of(manifest.factors)
    assert manifest.spec == spec and manifest.profile == profile


UNSAFE = ["/etc/passwd", "../a", "a/../b", "", "a//b", "a\0b", "a\\b", "lib/", ".", "x" * 300, "\ud800"]


@pytest.mark.parametrize("path", UNSAFE, ids=repr)
def test_hostile_paths_are_refused_everywhere(tmp_path, bytes_of, path):
    artifact = an_artifact(files=(altered(LIBRARY, path=path),))
    assert why_unsafe(path)
    with pytest.raises(MalformedDocument):
        materialise_view(lambda _: None, artifact, tmp_path / "view")
    with pytest.raises(MalformedDocument):
        write_bundle(tmp_path / "bundle", manifest=a_manifest(artifacts=(artifact,)), files={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/evil", "../evil", "a\x00b"])
def test_a_manifest_that_lists_a_hostile_path_is_malformed(tmp_path, path):
    manifest = a_manifest(artifacts=(an_artifact(files=(altered(LIBRARY, path=path),)),))
    (tmp_path / "manifest.json").write_bytes(encode(manifest))
    found = verify_bundle(tmp_path, None)
    assert [violation.kind for violation in found] == [ViolationKind.MALFORMED]
    assert "cannot be used" in found[0].text


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_paths_that_exclude_each_other_are_refused(paths):
    assert why_unsafe_together(paths) is not None
    assert why_unsafe_together(("a/b", "a/c", "ab", "b")) is None


def test_one_digest_with_two_sizes_is_malformed(tmp_path):
    files = (LIBRARY, altered(LIBRARY, path="lib/other.so", size_bytes=1))
    with pytest.raises(MalformedDocument, match="with 130 and with 1 bytes"):
        write_bundle(tmp_path / "bundle", manifest=a_manifest(artifacts=(an_artifact(files=files),)), files={})


# Views


def test_a_view_has_the_files_under_their_names(stored, tmp_path):
    artifact = stored.manifest.artifacts[0]
    view = materialise_view(stored.blob_path, artifact, tmp_path / "views" / "0")
    found = {str(path.relative_to(view)): path.read_bytes() for path in view.rglob("*") if path.is_file()}
    assert found == {file.path: BYTES[file.digest] for file in artifact.files}
    assert (view / "lib/model.so").samefile(stored.blob_path(LIBRARY.digest))  # a hard link


def test_a_view_keeps_its_bytes_when_the_blob_is_evicted(stored, tmp_path):
    view = materialise_view(stored.blob_path, stored.manifest.artifacts[0], tmp_path / "view")
    stored.blob_path(LIBRARY.digest).unlink()
    assert (view / "lib/model.so").read_bytes() == BYTES[LIBRARY.digest]


def test_a_complete_view_is_returned_as_it_is(stored, tmp_path):
    artifact = stored.manifest.artifacts[0]
    view = materialise_view(stored.blob_path, artifact, tmp_path / "view")
    before = view.stat().st_ino
    assert materialise_view(stored.blob_path, artifact, tmp_path / "view").stat().st_ino == before
    # Fetched anew meanwhile: another file with the same bytes, so the view is right still.
    blob = stored.blob_path(LIBRARY.digest)
    blob.unlink()
    blob.write_bytes(BYTES[LIBRARY.digest])
    assert materialise_view(stored.blob_path, artifact, tmp_path / "view").stat().st_ino == before


def damage(path: Path) -> bytes:
    """Change one byte in place: size and inode stay. Returns the earlier bytes."""
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return content


def test_a_view_of_a_damaged_blob_is_made_again_when_the_blob_was_fetched_anew(stored, tmp_path):
    artifact = stored.manifest.artifacts[0]
    view = materialise_view(stored.blob_path, artifact, tmp_path / "view")
    blob = stored.blob_path(LIBRARY.digest)
    whole = damage(blob)
    assert (view / "lib/model.so").read_bytes() != whole, "the view is a link to the damaged file"
    blob.unlink()
    blob.write_bytes(whole)
    materialise_view(stored.blob_path, artifact, tmp_path / "view")
    assert (view / "lib/model.so").read_bytes() == whole


def test_a_view_of_copies_that_was_damaged_is_made_again(stored, tmp_path, monkeypatch):
    def link(*_, **__):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    artifact = stored.manifest.artifacts[0]
    view = materialise_view(stored.blob_path, artifact, tmp_path / "view")
    whole = damage(view / "lib/model.so")
    materialise_view(stored.blob_path, artifact, tmp_path / "view")
    assert (view / "lib/model.so").read_bytes() == whole


def test_a_damaged_view_is_made_again(stored, tmp_path):
    artifact = stored.manifest.artifacts[0]
    view = materialise_view(stored.blob_path, artifact, tmp_path / "view")
    (view / "cubin/k.cubin").unlink()
    (view / "lib/model.so").unlink()
    (view / "lib/model.so").write_bytes(b"short")
    materialise_view(stored.blob_path, artifact, tmp_path / "view")
    assert (view / "lib/model.so").read_bytes() == BYTES[LIBRARY.digest]
    assert (view / "cubin/k.cubin").read_bytes() == BYTES[CUBIN.digest]


def test_a_missing_blob_leaves_no_view(stored, tmp_path):
    artifact = stored.manifest.artifacts[0]
    with pytest.raises(BlobNotFound) as caught:
        materialise_view(lambda digest: None, artifact, tmp_path / "views" / "0")
    assert caught.value.details == {"digest": LIBRARY.digest}
    assert not (tmp_path / "views").exists()


@pytest.mark.parametrize("code", [1, 18, 31])  # EPERM, EXDEV, EMLINK
def test_where_there_are_no_hard_links_files_are_copied(stored, tmp_path, monkeypatch, code):
    def link(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    view = materialise_view(stored.blob_path, stored.manifest.artifacts[0], tmp_path / "view")
    assert not (view / "lib/model.so").samefile(stored.blob_path(LIBRARY.digest))
    assert (view / "lib/model.so").read_bytes() == BYTES[LIBRARY.digest]


def test_a_full_disk_leaves_no_view(stored, tmp_path, monkeypatch):
    def link(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(LocalStorageFull):
        materialise_view(stored.blob_path, stored.manifest.artifacts[0], tmp_path / "views" / "0")
    assert list((tmp_path / "views").iterdir()) == []


def test_many_threads_make_one_view(stored, tmp_path):
    artifact = stored.manifest.artifacts[0]
    views: list[Path] = []
    errors: list[BaseException] = []

    def make() -> None:
        try:
            views.append(materialise_view(stored.blob_path, artifact, tmp_path / "views" / "0"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and len(views) == 16
    assert [path.name for path in (tmp_path / "views").iterdir()] == ["0"]
