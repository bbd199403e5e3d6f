"""Views: the files of one artifact under their own names."""

import os
import threading
from pathlib import Path

import pytest

from aot.bundle import materialise_view
from aot.errors import BlobNotFound, LocalStorageFull
from tests.builders import BYTES
from tests.unit.bundle.bundles import CUBIN, LIBRARY, damage


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
