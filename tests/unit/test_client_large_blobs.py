"""Blobs that take long: patience is for waiting, not for the bytes themselves, and links may expire on the way."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot.cache import LocalCache
from aot.client import Body, Reply, RetryPolicy
from aot.client.blobs import put_blob
from aot.errors import Forbidden, LocalStorageFull, RegistryUnreachable
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import SLOWEST_BYTES_PER_SECOND, Link
from tests.builders import a_file, a_manifest, an_artifact
from tests.simulator import RegistrySimulator, SimulatedReply

MIB = 1 << 20
CONTENT = b"library " * 5000
EXPIRED = Forbidden("the link has expired")


class SlowLine:
    """Every request takes `seconds` of its clock; the first `cuts` of them end without an answer."""

    def __init__(self, *, seconds: float, cuts: int) -> None:
        self.now = 0.0
        self.sent = 0
        self._seconds = seconds
        self._cuts = cuts

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body = None, timeout_seconds: float
    ) -> Reply:
        self.sent += 1
        self.now += self._seconds
        if self.sent <= self._cuts:
            raise RegistryUnreachable("the line was cut", details={"sent": True})
        return SimulatedReply(201)

    def retry(self) -> RetryPolicy:
        return RetryPolicy(attempts=5, budget_seconds=30.0, sleep=lambda _: None, now=lambda: self.now)


def put(line: SlowLine, path: Path, size_bytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(size_bytes)
    link = Link(digest=Digest.of(b"any"), size_bytes=size_bytes, url="http://store.test/blob", method="PUT")
    put_blob(line, link, path, timeout_seconds=30.0, retry=line.retry())


def test_a_large_upload_that_is_cut_after_minutes_is_sent_again(tmp_path: Path) -> None:
    line = SlowLine(seconds=300 * MIB / SLOWEST_BYTES_PER_SECOND, cuts=4)
    put(line, tmp_path / "large", 300 * MIB)
    assert line.sent == 5


def test_a_line_that_is_slower_than_any_is_given_up(tmp_path: Path) -> None:
    line = SlowLine(seconds=6 * 300 * MIB / SLOWEST_BYTES_PER_SECOND, cuts=4)
    with pytest.raises(RegistryUnreachable):
        put(line, tmp_path / "large", 300 * MIB)
    assert line.sent == 1


def test_a_small_upload_ends_with_the_budget(tmp_path: Path) -> None:
    line = SlowLine(seconds=31.0, cuts=4)
    with pytest.raises(RegistryUnreachable):
        put(line, tmp_path / "small", MIB)
    assert line.sent == 1


# Links that expire


def a_bundle() -> Manifest:
    return a_manifest(artifacts=(an_artifact(files=(a_file("lib/model.so", CONTENT),)),))


def pull(simulator: RegistrySimulator, place: Path, *, refuse: int = 0, renewing: bool = True) -> tuple[Path, ...]:
    """Fetch a bundle whose first requests for bytes are refused as expired."""
    digest = simulator.add(manifest := a_bundle())
    client = simulator.client()
    links = client.get_download_links(digest)
    simulator.refuse(EXPIRED, times=refuse)
    return client.fetch_blobs(manifest.blobs, links, LocalCache(place), workers=1, bundle=digest if renewing else None)


def test_a_link_that_has_expired_is_asked_for_again(tmp_path: Path) -> None:
    simulator = RegistrySimulator()
    (path,) = pull(simulator, tmp_path, refuse=1)
    assert path.read_bytes() == CONTENT
    assert sum(one.path.endswith("/links") for one in simulator.sent) == 2


def test_a_new_link_that_is_refused_at_once_is_the_end(tmp_path: Path) -> None:
    simulator = RegistrySimulator()
    send, refused = simulator.send, []

    def refusing(method: str, url: str, **options: Any) -> Reply:
        if "/blobs/" in url:
            refused.append(url)
            simulator.refuse(EXPIRED)
        return send(method, url, **options)

    simulator.send = refusing  # type: ignore[method-assign]
    with pytest.raises(Forbidden, match="expired"):
        pull(simulator, tmp_path)
    assert len(refused) == 2


def test_without_a_bundle_to_ask_about_it_is_the_end(tmp_path: Path) -> None:
    with pytest.raises(Forbidden, match="expired"):
        pull(RegistrySimulator(), tmp_path, refuse=1, renewing=False)


def test_a_line_that_brings_much_between_its_cuts_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.client.blobs.PLENTY_BYTES", 1000)
    simulator = RegistrySimulator()
    digest = simulator.add(manifest := a_bundle())
    client = simulator.client()
    simulator.cut_after(1000, times=39)
    (path,) = client.fetch_blobs(manifest.blobs, client.get_download_links(digest), LocalCache(tmp_path / "cache"))
    assert path.read_bytes() == CONTENT


# Room for them


def test_nothing_is_fetched_into_a_cache_without_room_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(f_blocks=1000, f_bavail=len(CONTENT) - 1, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda place: full)
    simulator = RegistrySimulator()
    with pytest.raises(LocalStorageFull, match=f"{len(CONTENT)} bytes are to be fetched"):
        pull(simulator, tmp_path / "cache")
    assert not any("/blobs/" in one.path for one in simulator.sent)


def disk_of(root: Path, room_bytes: int) -> Callable[[Path], SimpleNamespace]:
    """A disk with room for so many bytes of files below `root`."""

    def statvfs(place: Path) -> SimpleNamespace:
        used = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        return SimpleNamespace(f_blocks=room_bytes, f_bavail=max(0, room_bytes - used), f_frsize=1)

    return statvfs


def put_other(cache: LocalCache, content: bytes) -> Digest:
    blob = Blob(digest=Digest.of(content), size_bytes=len(content))
    with cache.incoming(blob) as writer:
        writer.write(content)
    return blob.digest


def test_blobs_of_other_bundles_give_way_unless_they_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LocalCache(tmp_path)
    other = put_other(cache, bytes(len(CONTENT)))
    monkeypatch.setattr(os, "statvfs", disk_of(tmp_path, len(CONTENT) + 5000))
    with cache.hold([other]), pytest.raises(LocalStorageFull):
        pull(RegistrySimulator(), tmp_path)
    assert cache.path_of(other) is not None
    assert pull(RegistrySimulator(), tmp_path)[0].read_bytes() == CONTENT
    assert cache.path_of(other) is None


def test_no_more_gives_way_than_is_lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LocalCache(tmp_path)
    others = [put_other(cache, bytes([number]) * 1000) for number in range(3)]
    monkeypatch.setattr(os, "statvfs", disk_of(tmp_path, len(CONTENT) + 3000 - 500))
    pull(RegistrySimulator(), tmp_path)
    assert sum(cache.path_of(other) is not None for other in others) == 2


def test_what_another_process_has_fetched_of_them_needs_no_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, (blob,) = LocalCache(tmp_path), a_bundle().blobs
    monkeypatch.setattr(os, "statvfs", disk_of(tmp_path, len(CONTENT) + 1000))
    with cache.incoming(blob) as writer:
        writer.write(CONTENT[:30_000])
        writer._file.flush()
        cache.make_room([blob, blob])
        writer.write(CONTENT[30_000:])
    with cache.hold([blob.digest]), pytest.raises(LocalStorageFull):
        cache.make_room([blob, Blob(digest=Digest.of(b"more"), size_bytes=2000)])


def test_what_lies_in_the_cache_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pull(RegistrySimulator(), tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda place: SimpleNamespace(f_blocks=1000, f_bavail=0, f_frsize=1))
    assert pull(RegistrySimulator(), tmp_path)[0].read_bytes() == CONTENT


def test_a_file_system_that_does_not_tell_its_size_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = put_other(LocalCache(tmp_path), b"of another bundle")
    monkeypatch.setattr(os, "statvfs", lambda place: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=1))
    assert pull(RegistrySimulator(), tmp_path)[0].read_bytes() == CONTENT
    assert LocalCache(tmp_path).path_of(other) is not None
