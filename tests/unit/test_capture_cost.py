"""What a capture of many small files costs: what is counted here is done once a file or less, and not for each part."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aot.bundle.form import write_bundle
from aot.bundle.paths import why_unsafe_together
from aot.capture import listing
from aot.capture.capture import capture
from aot.capture.collect import collect
from aot.capture.command import Ended
from aot.capture.plain import open_plain
from aot.capture.restore import restore
from aot.schema.digest import Digest
from aot.schema.spec import File
from tests.builders import a_manifest, an_artifact, an_environment


def write(directory: Path, *paths: str) -> Path:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(path)
    return directory


def test_a_generated_program_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = write(tmp_path / "caches", "inductor/ab/one.py", "inductor/ab/two.py", "triton/KEY/kernel.cubin")
    opened: list[str] = []

    def counting(directory: Path, path: str) -> Any:
        opened.append(path)
        return open_plain(directory, path)

    monkeypatch.setattr("aot.capture.collect.open_plain", counting)
    monkeypatch.setattr("aot.capture.plain.open_plain", counting)
    found = collect(caches, scratch=tmp_path / "scratch")
    assert sorted(opened) == [entry.path for entry in found.entries] and len(opened) == 3


def test_the_caches_of_a_capture_are_listed_once_after_each_run_and_once_to_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    children = listing._children

    def counting(place: Path, **how: Any) -> Any:
        listed.append(place.name)
        return children(place, **how)

    def run(command: object, environ: Mapping[str, str]) -> Ended:
        place = Path(environ["TORCHINDUCTOR_CACHE_DIR"], "fxgraph/ab/key/one")
        if place.exists():
            place.read_bytes()
        else:
            write(place.parents[4], "inductor/fxgraph/ab/key/one")
        return Ended(0, 1.0)

    monkeypatch.setattr(listing, "_children", counting)
    made = capture(["train"], environ={}, effective=an_environment(), scratch=tmp_path, run=run)
    assert (listed.count("first"), listed.count("second"), listed.count("key")) == (1, 2, 3)
    assert made.second is not None and (made.second.found, made.second.compiled, made.left_out) == (1, 0, 0)


def test_a_restored_directory_is_made_once_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"triton/KEY/kernel-{number}" for number in range(9)]
    found = collect(write(tmp_path / "caches", *files), scratch=tmp_path / "scratch")
    (into := tmp_path / "into").mkdir()
    asked: list[str] = []
    make, unlink = Path.mkdir, Path.unlink

    def mkdir(place: Path, *at: Any, **how: Any) -> None:
        asked.append(place.name)
        make(place, *at, **how)

    def removing(place: Path, *at: Any, **how: Any) -> None:
        if place.name.startswith(".aot-"):
            asked.append(place.name)
        unlink(place, *at, **how)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "unlink", removing)
    assert restore(found.entries, found.paths, into=into) == len(files)
    assert asked.count("KEY") <= 2 and not [name for name in asked if name.startswith(".aot-")]


def test_a_bundle_is_brought_to_the_disk_after_all_of_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [f"content {number}".encode() for number in range(5)]
    files = tuple(
        File(path=f"f{number}", digest=Digest.of(content), size_bytes=len(content))
        for number, content in enumerate(contents)
    )
    paths = {}
    for file, content in zip(files, contents, strict=True):
        paths[file.digest] = tmp_path / file.path
        paths[file.digest].write_bytes(content)
    synced: list[tuple[str, int]] = []
    sync = os.fsync

    def noting(descriptor: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        written = list(tmp_path.glob(".bundle-*/blobs/sha256/*"))
        synced.append((place.name, len(written)))
        sync(descriptor)

    monkeypatch.setattr("aot.bundle.form.os.fsync", noting)
    write_bundle(
        tmp_path / "bundle", manifest=a_manifest(artifacts=(an_artifact(files=files),), canaries=()), files=paths
    )
    blobs, others = synced[: len(files)], [name for name, _ in synced[len(files) :]]
    assert sorted(blobs) == sorted((file.digest.hex, len(files)) for file in files)
    assert others[:3] == ["manifest.json", "sha256", "blobs"] and others[-1] == tmp_path.name and len(others) == 5


@pytest.mark.parametrize(
    "paths",
    [
        ("a/b/c", "a/b/d", "a/b"),
        ("a/b/c", "a/b/d", "a"),
        ("a/b/c", "a/b", "x"),
        ("a/b", "a/c/d", "a/c"),
        ("a/b", "a/b/c"),
        ("a/x", "a/b", "a/b/c/d"),
        ("a/b/c", "a/b/c"),
    ],
)
def test_files_in_known_directories_exclude_each_other_as_others_do(paths: tuple[str, ...]) -> None:
    assert why_unsafe_together(paths) is not None and why_unsafe_together(paths[:1]) is None
