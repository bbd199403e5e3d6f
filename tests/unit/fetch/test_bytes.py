"""Blobs on their way in: verified while written, resumed when cut, whole or not there."""

import errno
import os

import pytest

from aot.cache import Incoming
from aot.errors import AotError, DigestMismatch, LocalStorageFull, RegistryUnreachable, SizeMismatch
from aot.runtime.fetch import ensure_artifacts
from aot.schema.manifest import Manifest
from tests.builders import a_file, a_manifest, an_artifact
from tests.simulator import RegistrySimulator
from tests.unit.fetch.nodes import MINI, Node


def a_large_bundle() -> Manifest:
    files = tuple(a_file(f"lib/{number}.so", bytes([number]) * 50_000) for number in range(3))
    return a_manifest(artifacts=(an_artifact(files=files),))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda content: content[:-1], SizeMismatch),
        (lambda content: content + b"!", SizeMismatch),
        (lambda content: content[:-1] + b"!", DigestMismatch),
    ],
    ids=["truncated", "extended", "altered"],
)
def test_wrong_bytes_never_get_their_name(
    node: Node, simulator: RegistrySimulator, change, error: type[AotError]
) -> None:
    manifest = a_large_bundle()
    simulator.add(manifest)
    blob = manifest.blobs[0]
    right = simulator.contents[blob.digest]
    simulator.contents[blob.digest] = change(right)
    with pytest.raises(error):
        node.fetch()
    assert node.cache.path_of(blob.digest) is None
    simulator.contents[blob.digest] = right
    assert len(node.fetch()) == 3


def test_a_cut_connection_is_resumed(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_large_bundle())
    simulator.cut_after(20_000, times=3)
    paths = node.fetch()
    assert {path.read_bytes()[:1] for path in paths.values()} == {b"\0", b"\1", b"\2"}


def test_a_registry_that_goes_in_the_middle_of_a_pull_loses_nothing(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_large_bundle())
    candidate, selection = node.choose()
    simulator.cut_after(1_000, times=100)
    with pytest.raises(RegistryUnreachable):
        ensure_artifacts(candidate, selection, client=simulator.client(), cache=node.cache)
    assert list((node.cache.root / "incoming").iterdir()) == []
    simulator._cuts.clear()
    assert len(node.fetch()) == 3


def test_a_full_disk_is_told_and_leaves_no_half_file(
    node: Node, simulator: RegistrySimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.add(a_large_bundle())
    candidate, selection = node.choose()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(LocalStorageFull, match="No space left"):
        patched.setattr(Incoming, "finish", full)
        ensure_artifacts(candidate, selection, client=simulator.client(), cache=node.cache)
    assert list((node.cache.root / "incoming").iterdir()) == []
    assert len(node.fetch()) == 3


def test_a_disk_that_fills_up_on_the_way_is_not_taken_for_wrong_bytes(
    node: Node, simulator: RegistrySimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.add(a_large_bundle())
    candidate, selection = node.choose()
    taken = Incoming.write

    def full(self: Incoming, chunk: bytes) -> None:
        taken(self, chunk)
        raise LocalStorageFull("No space left on device")

    monkeypatch.setattr(Incoming, "write", full)
    with pytest.raises(LocalStorageFull, match="No space left"):
        ensure_artifacts(candidate, selection, client=simulator.client(), cache=node.cache)
    assert list((node.cache.root / "incoming").iterdir()) == []


def test_a_damaged_blob_of_the_cache_is_fetched_again(node: Node, simulator: RegistrySimulator) -> None:
    manifest = a_large_bundle()
    simulator.add(manifest)
    path = node.fetch()[manifest.blobs[0].digest]
    path.chmod(0o644)
    path.write_bytes(b"!" * path.stat().st_size)
    assert node.fetch()[manifest.blobs[0].digest].read_bytes() == simulator.contents[manifest.blobs[0].digest]


def test_a_damaged_blob_is_never_handed_out_offline(node: Node, simulator: RegistrySimulator) -> None:
    manifest = a_large_bundle()
    pinned = MINI.pinned_to(simulator.add(manifest))
    path = node.fetch(pinned)[manifest.blobs[0].digest]
    path.chmod(0o644)
    path.write_bytes(b"!" * path.stat().st_size)
    node.client = None
    with pytest.raises(DigestMismatch):
        node.fetch(pinned)


def test_only_the_blobs_of_the_selected_artifacts_are_fetched(node: Node, simulator: RegistrySimulator) -> None:
    fitting, other = a_file("lib/a.so", b"fits"), a_file("lib/b.so", b"does not")
    manifest = a_manifest(
        artifacts=(an_artifact(files=(fitting,)), an_artifact(capability="cuda:sm_90", files=(other,)))
    )
    simulator.add(manifest)
    assert set(node.fetch()) == {fitting.digest}
    assert node.cache.path_of(other.digest) is None
