"""The local cache in one process: verified writes, damage, documents, use, eviction."""

import errno
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aot.cache import Incoming, LocalCache
from aot.errors import DigestMismatch, InvalidConfig, LocalStorageFull, SizeMismatch
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Reference
from aot.schema.spec import Blob
from aot.schema.wire.bundles import SignedManifest

CONTENT = b"compiled" * 1000


def blob_of(content: bytes) -> Blob:
    return Blob(digest=Digest.of(content), size_bytes=len(content))


def put(cache: LocalCache, content: bytes, *, age_seconds: float = 0) -> Blob:
    blob = blob_of(content)
    with cache.incoming(blob) as writer:
        writer.write(content)
    if age_seconds:
        path = cache.path_of(blob.digest)
        assert path is not None
        os.utime(path, (time.time() - age_seconds,) * 2)
    return blob


def files_under(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path: Path) -> LocalCache:
    return LocalCache(tmp_path / "cache", limit_bytes=10_000)


def test_making_a_cache_touches_nothing(tmp_path: Path) -> None:
    cache = LocalCache(tmp_path / "cache")
    assert cache.path_of(Digest.of(b"x")) is None
    assert cache.used_bytes() == 0
    assert not cache.root.exists()


def test_a_written_blob_is_found_whole_and_read_only(cache: LocalCache) -> None:
    blob = put(cache, CONTENT)
    path = cache.path_of(blob.digest)
    assert path is not None and path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o222 == 0
    assert cache.verified_path(blob.digest) == path


def test_a_blob_has_no_name_before_it_is_whole(cache: LocalCache) -> None:
    blob = blob_of(CONTENT)
    with cache.incoming(blob) as writer:
        writer.write(CONTENT[:100])
        assert cache.path_of(blob.digest) is None
        writer.write(CONTENT[100:])
    assert cache.path_of(blob.digest) is not None


@pytest.mark.parametrize(
    ("written", "error"),
    [(CONTENT[:-1], SizeMismatch), (CONTENT + b"x", SizeMismatch), (bytes(len(CONTENT)), DigestMismatch)],
    ids=["too few", "too many", "others"],
)
def test_wrong_bytes_leave_nothing_behind(cache: LocalCache, written: bytes, error: type[Exception]) -> None:
    with pytest.raises(error), cache.incoming(blob_of(CONTENT)) as writer:
        writer.write(written)
    assert files_under(cache.root) == []


def test_an_error_of_the_block_passes_through_and_leaves_nothing(cache: LocalCache) -> None:
    with pytest.raises(ZeroDivisionError), cache.incoming(blob_of(CONTENT)) as writer:
        writer.write(CONTENT)
        raise ZeroDivisionError
    assert files_under(cache.root) == []


def test_ensure_fetches_once(cache: LocalCache) -> None:
    calls: list[int] = []

    def fetch(writer: Incoming) -> None:
        calls.append(1)
        writer.write(CONTENT)

    first = cache.ensure(blob_of(CONTENT), fetch)
    assert cache.ensure(blob_of(CONTENT), fetch) == first
    assert calls == [1]
    assert files_under(cache.root) == [first.relative_to(cache.root)]  # no lock, no temporary file


def test_ensure_replaces_a_blob_that_was_cut_short(cache: LocalCache) -> None:
    blob = put(cache, CONTENT)
    path = cache.path_of(blob.digest)
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(CONTENT[:10])
    assert cache.missing([blob]) == (blob,)
    assert cache.ensure(blob, lambda writer: writer.write(CONTENT)).read_bytes() == CONTENT


def test_a_flipped_bit_is_found_and_the_entry_removed(cache: LocalCache) -> None:
    blob = put(cache, CONTENT)
    path = cache.path_of(blob.digest)
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(b"\x01" + CONTENT[1:])
    with pytest.raises(DigestMismatch):
        cache.verified_path(blob.digest)
    assert cache.path_of(blob.digest) is None
    assert not cache.verify(blob.digest)


def test_use_is_noted_at_most_once_a_minute(cache: LocalCache) -> None:
    blob = put(cache, CONTENT, age_seconds=30)
    path = cache.path_of(blob.digest)
    assert path is not None and time.time() - path.stat().st_mtime > 29
    os.utime(path, (time.time() - 61,) * 2)
    cache.path_of(blob.digest)
    assert time.time() - path.stat().st_mtime < 10


def test_eviction_removes_the_least_recently_used_down_to_the_bound(cache: LocalCache) -> None:
    old, middle, new = (put(cache, bytes([n]) * 4000, age_seconds=(3 - n) * 100) for n in range(3))
    evicted = cache.evict()
    assert (evicted.removed, evicted.freed_bytes, evicted.used_bytes) == (1, 4000, 8000)
    assert cache.path_of(old.digest) is None
    assert cache.missing([middle, new]) == ()


def test_what_is_held_is_not_evicted(cache: LocalCache) -> None:
    held = put(cache, b"a" * 6000, age_seconds=1000)
    other = put(cache, b"b" * 6000)
    with cache.hold([held.digest]):
        cache.evict(limit_bytes=0)
        assert cache.path_of(held.digest) is not None
        assert cache.path_of(other.digest) is None
    assert cache.evict(limit_bytes=0).used_bytes == 0


def test_a_view_goes_before_its_blobs_unless_its_bundle_is_held(cache: LocalCache) -> None:
    blob = put(cache, CONTENT)
    bundle = Digest.of(b"manifest")
    view = cache.view_path(bundle, 0)
    view.mkdir(parents=True)
    os.link(cache.path_of(blob.digest) or "", view / "model.so")
    with cache.hold([bundle, blob.digest]):
        cache.evict(limit_bytes=0)
        assert (view / "model.so").exists()
    cache.evict(limit_bytes=0)
    assert not view.exists() and cache.path_of(blob.digest) is None


def test_eviction_removes_what_dead_writers_left_but_not_a_living_one(cache: LocalCache) -> None:
    with cache.incoming(blob_of(CONTENT)) as writer:
        writer.write(CONTENT)
        dead = cache.root / "incoming" / "left-behind"
        dead.write_bytes(b"half")
        for path in (dead, writer.path):
            os.utime(path, (time.time() - 1000,) * 2)
        cache.evict()
        assert not dead.exists()
    assert cache.path_of(Digest.of(CONTENT)) is not None


def a_signed_manifest(text: str = "{}") -> SignedManifest:
    return SignedManifest(digest=Digest.of(text.encode()), manifest=text, envelope=Envelope(payload="", signatures=()))


def test_a_manifest_comes_back_as_it_was_stored(cache: LocalCache) -> None:
    signed = a_signed_manifest()
    assert cache.get_manifest(signed.digest) is None
    cache.put_manifest(signed)
    assert cache.get_manifest(signed.digest) == signed


@pytest.mark.parametrize("damage", [b"", b"{", b'{"digest":"sha256:00","manifest":"{}"}'])
def test_a_damaged_manifest_is_absent(cache: LocalCache, damage: bytes) -> None:
    signed = a_signed_manifest()
    cache.put_manifest(signed)
    (path,) = (cache.root / "manifests").iterdir()
    path.write_bytes(damage)
    assert cache.get_manifest(signed.digest) is None
    assert not path.exists()


def test_another_manifest_under_this_name_is_absent(cache: LocalCache) -> None:
    signed, other = a_signed_manifest(), a_signed_manifest('{"other":1}')
    cache.put_manifest(signed)
    cache.put_manifest(other)
    manifests = cache.root / "manifests"
    (manifests / f"{other.digest.hex}.json").rename(manifests / f"{signed.digest.hex}.json")
    assert cache.get_manifest(signed.digest) is None


def test_a_tag_is_recalled_with_the_time_it_was_seen(cache: LocalCache) -> None:
    reference = Reference.parse("team/bert:stable")
    assert cache.recall_tag(reference) is None
    cache.remember_tag(reference, [Digest.of(b"a")])
    cache.remember_tag(reference, [Digest.of(b"b"), Digest.of(b"c")])
    tag = cache.recall_tag(reference)
    assert tag is not None and tag.bundles == (Digest.of(b"b"), Digest.of(b"c"))
    assert datetime.now(UTC) - tag.seen_at < timedelta(minutes=1)


def test_a_full_disk_is_named_and_leaves_nothing(cache: LocalCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, final: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Incoming, "finish", full)
    with pytest.raises(LocalStorageFull, match="No space left"):
        put(cache, CONTENT)
    assert files_under(cache.root) == []


def test_a_path_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = LocalCache(tmp_path / "file" / "cache")
    with pytest.raises(InvalidConfig, match="Not a directory") as raised:
        put(cache, CONTENT)
    assert "AOT_CACHE_DIR" in raised.value.hint
    with cache.hold([Digest.of(CONTENT)]):
        assert cache.evict().removed == 0


# Real small and read-only disks: a tmpfs in a mount namespace of its own, where the system allows one.

OPENING = """
import os, subprocess, sys
from pathlib import Path
from aot.cache import LocalCache
from aot.errors import InvalidConfig, LocalStorageFull
from aot.schema.digest import Digest
from aot.schema.spec import Blob

root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)], check=True)
cache = LocalCache(root)

def ensure(content):
    blob = Blob(digest=Digest.of(content), size_bytes=len(content))
    return cache.ensure(blob, lambda writer: writer.write(content))
"""

ON_A_SMALL_DISK = """
first, second, big = os.urandom(600_000), os.urandom(600_000), os.urandom(2_000_000)
ensure(first)
with cache.hold([Digest.of(first)]):
    try:
        ensure(second)
        raise SystemExit("a full disk went unnoticed")
    except LocalStorageFull as error:
        assert "No space" in error.message
    assert cache.path_of(Digest.of(first))
    assert not list((root / "incoming").iterdir())
ensure(second)  # nobody holds the first any more: room is made
assert cache.path_of(Digest.of(first)) is None
try:
    ensure(big)
    raise SystemExit("more than the disk went unnoticed")
except LocalStorageFull:
    assert not list((root / "incoming").iterdir())
print("done")
"""

ON_A_READ_ONLY_DISK = """
path = ensure(b"in the image")
subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
with cache.hold([Digest.of(b"in the image")]):
    assert ensure(b"in the image") == path == cache.verified_path(Digest.of(b"in the image"))
assert cache.evict(limit_bytes=0).removed == 0
try:
    ensure(b"other")
except InvalidConfig as error:
    assert "Read-only" in error.message
    print("done")
"""


@pytest.mark.parametrize("story", [ON_A_SMALL_DISK, ON_A_READ_ONLY_DISK], ids=["small", "read-only"])
def test_a_real_disk_that_is_small_or_read_only(tmp_path: Path, story: str) -> None:
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*enter, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("this system allows no mount namespaces")
    done = subprocess.run(
        [*enter, sys.executable, "-c", OPENING + story, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout == "done\n", done.stderr
