"""Writing a bundle and reading it again."""

import pytest

from aot.bundle import ViolationKind, read_bundle, verify_bundle, write_bundle, write_envelope
from aot.errors import DigestMismatch, InvalidInput, LocalStorageFull, MalformedDocument, SizeMismatch
from aot.schema.manifest import encode_manifest
from tests.unit.bundle.bundles import CUBIN, TRUSTED, kinds, signed, two_artifacts


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
