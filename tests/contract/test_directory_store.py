"""What is the directory's alone: where files lie, links, the secret, a disk that refuses, bounded memory."""

import errno
import hashlib
import http.client
import os
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest

from aot.errors import Forbidden, InvalidConfig, SizeMismatch, StorageUnavailable
from aot.schema.codec import decode
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.errors import ErrorBody
from registry.storage import open_store
from registry.storage.directory import DirectoryBlobStore
from registry.storage.ranges import ByteRange, Unsatisfiable, parse_range
from registry.storage.signing import LinkSigner, load_secret
from tests.contract.test_blob_store import HOUR, blob_of, follow, upload
from tests.serving import blob_app, listening, serving

CONTENT = b"0123456789" * 1000
BLOB = blob_of(CONTENT)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryBlobStore]:
    with listening() as (listener, url):
        store = DirectoryBlobStore(tmp_path / "blobs", LinkSigner(b"s" * 32, url))
        with serving(blob_app(store), listener):
            yield store


def write(store: DirectoryBlobStore, content: bytes = CONTENT) -> Path:
    blob = blob_of(content)
    with store.incoming(blob) as writer:
        writer.write(content)
    return store.root / blob.digest.hex[:2] / blob.digest.hex[2:]


def test_a_blob_lies_under_its_digest_and_cannot_be_written(tmp_path: Path) -> None:
    path = write(DirectoryBlobStore(tmp_path, LinkSigner(b"", "")))
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert list((tmp_path / "incoming").iterdir()) == []


@pytest.mark.parametrize("wrong", [CONTENT[:-1], CONTENT + b"x", bytes(len(CONTENT))])
def test_wrong_bytes_leave_nothing(store: DirectoryBlobStore, wrong: bytes) -> None:
    answer = follow(store.upload_link(BLOB, expires_in=HOUR), wrong)
    assert answer.status == 422
    assert decode(answer.body, ErrorBody).code in ("size-mismatch", "digest-mismatch")
    assert [path for path in store.root.rglob("*") if path.is_file()] == []


def test_an_upload_that_is_cut_leaves_nothing(store: DirectoryBlobStore) -> None:
    parts = urlsplit(store.upload_link(BLOB, expires_in=HOUR).url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.putrequest("PUT", f"{parts.path}?{parts.query}")
    connection.putheader("content-length", str(BLOB.size_bytes))
    connection.endheaders()
    connection.send(CONTENT[:100])
    deadline = time.monotonic() + 10
    while not list(store.root.glob("incoming/*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    connection.close()
    while list(store.root.glob("incoming/*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert store.stat(BLOB.digest) is None


def test_a_second_upload_does_not_touch_the_file_but_heals_a_damaged_one(store: DirectoryBlobStore) -> None:
    path = write(store)
    inode = path.stat().st_ino
    upload(store, CONTENT)
    assert path.stat().st_ino == inode
    path.chmod(0o644)
    path.write_bytes(CONTENT[:5])
    upload(store, CONTENT)
    assert path.read_bytes() == CONTENT


def test_a_file_that_cannot_be_read_is_replaced_by_the_next_upload(
    store: DirectoryBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(store)
    inode = path.stat().st_ino

    def bad_sector(*_: object, **__: object) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("registry.storage.directory.filecmp.cmp", bad_sector)
    assert write(store) == path
    assert path.read_bytes() == CONTENT and path.stat().st_ino != inode


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_came_while_another_was_deleted_gets_its_name_back_without_hard_links(
    store: DirectoryBlobStore, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    path, rename = write(store), Path.rename
    version = store.version(BLOB.digest)

    def no_links(*_: object, **__: object) -> None:
        if again:
            write(store)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    def came_meanwhile(self: Path, to: Path) -> Path:
        if self == path:
            monkeypatch.setattr(Path, "rename", rename)
            self.unlink()
            write(store)
        return rename(self, to)

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(Path, "rename", came_meanwhile)
    assert not store.delete(BLOB.digest, version=version)
    assert path.read_bytes() == CONTENT
    assert list((store.root / "incoming").iterdir()) == []


def altered(url: str, **changes: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), **changes})))


@pytest.mark.parametrize(
    "changes",
    [{"expires": "4000000000"}, {"size": "1"}, {"sig": "0" * 64}, {"sig": ""}, {"expires": "soon"}, {"size": "-1"}],
)
def test_a_link_that_was_changed_is_refused(store: DirectoryBlobStore, changes: dict[str, str]) -> None:
    write(store)
    link = store.download_link(BLOB, expires_in=HOUR)
    with urllib.request.urlopen(link.url) as reply:
        assert reply.read() == CONTENT
    answer = follow(link.__class__(digest=link.digest, size_bytes=link.size_bytes, url=altered(link.url, **changes)))
    assert answer.status == 403
    body = decode(answer.body, ErrorBody)
    assert body.code == "forbidden" and body.hint and body.message


def test_a_link_to_one_blob_does_not_open_another(store: DirectoryBlobStore) -> None:
    write(store)
    other = blob_of(b"another" * 10)
    url = store.download_link(other, expires_in=HOUR).url.replace(other.digest, BLOB.digest)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(url)
    assert raised.value.code == 403


def test_a_refused_upload_hears_why(store: DirectoryBlobStore) -> None:
    content = bytes(20_000_000)
    link = store.upload_link(blob_of(content), expires_in=timedelta(seconds=-5))
    answer = follow(link, content)
    assert answer.status == 403
    assert "expired at" in decode(answer.body, ErrorBody).message


def test_a_link_expires_by_the_clock_it_was_written_with() -> None:
    present = [NOON]
    signer = LinkSigner(b"s" * 32, "http://host", clock=lambda: present[0])
    query = dict(parse_qsl(urlsplit(signer.link(BLOB, "GET", expires_in=HOUR).url).query))
    given = {"expires": int(query["expires"]), "signature": query["sig"]}
    present[0] = NOON + timedelta(minutes=59)
    signer.check("GET", BLOB, **given)
    signer.check("HEAD", BLOB, **given)
    with pytest.raises(Forbidden, match="does not allow PUT"):
        signer.check("PUT", BLOB, **given)
    present[0] = NOON + timedelta(minutes=61)
    with pytest.raises(Forbidden, match="expired at 2026-01-01T13:00:00"):
        signer.check("GET", BLOB, **given)
    with pytest.raises(Forbidden):
        LinkSigner(b"t" * 32, "http://host", clock=lambda: NOON).check("GET", BLOB, **given)


def test_head_tells_the_size(store: DirectoryBlobStore) -> None:
    write(store)
    answer = follow(store.download_link(BLOB, expires_in=HOUR), method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert answer.headers["etag"] == f'"{BLOB.digest}"'


def test_a_range_of_something_else_is_answered_whole(store: DirectoryBlobStore) -> None:
    write(store)
    link = store.download_link(BLOB, expires_in=HOUR)
    assert follow(link, range="bytes=1-2", if_range='"other"').status == 200
    assert follow(link, range="bytes=1-2", if_range=f'"{BLOB.digest}"').body == b"12"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, None),
        ("", None),
        ("bytes=-", None),
        ("items=0-1", None),
        ("bytes=0-1,3-4", None),
        ("bytes=5-2", None),
        ("bytes=0-", ByteRange(0, 10)),
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=9-99", ByteRange(9, 10)),
        ("bytes=-3", ByteRange(7, 10)),
        ("bytes=-99", ByteRange(0, 10)),
        ("bytes=10-", Unsatisfiable.RANGE),
        ("bytes=-0", Unsatisfiable.RANGE),
    ],
)
def test_ranges(header: str | None, wanted: object) -> None:
    assert parse_range(header, size=10) == wanted


def test_the_secret_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "data" / "links.secret"
    secrets: list[bytes] = []
    threads = [threading.Thread(target=lambda: secrets.append(load_secret(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(secrets) == 8 and len(set(secrets)) == 1 and len(secrets[0]) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["links.secret"]
    path.chmod(0o644)
    with pytest.raises(InvalidConfig, match="readable by other users"):
        load_secret(path)


def test_two_registries_over_one_directory_follow_each_others_links(tmp_path: Path) -> None:
    first, second = (open_store("directory", data_dir=tmp_path, public_url="http://host") for _ in range(2))
    assert isinstance(first, DirectoryBlobStore) and isinstance(second, DirectoryBlobStore)
    query = dict(parse_qsl(urlsplit(first.download_link(BLOB, expires_in=HOUR).url).query))
    second.signer.check("GET", BLOB, expires=int(query["expires"]), signature=query["sig"])


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, StorageUnavailable), (errno.EIO, StorageUnavailable), (errno.EROFS, InvalidConfig)],
)
def test_a_disk_that_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    store = DirectoryBlobStore(tmp_path, LinkSigner(b"", ""))
    monkeypatch.setattr("registry.storage.directory.os.fsync", refuse)
    with pytest.raises(error, match=os.strerror(number)):
        write(store)
    monkeypatch.undo()
    assert list((tmp_path / "incoming").iterdir()) == []
    assert store.stat(BLOB.digest) is None


def test_what_a_crash_left_is_swept_after_a_day(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path, LinkSigner(b"", ""))
    write(store)
    old, new = tmp_path / "incoming" / "old", tmp_path / "incoming" / "new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    assert store.sweep_incoming() == 1
    assert (old.exists(), new.exists()) == (False, True)


def test_a_writer_of_too_much_is_stopped_at_the_first_byte(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path, LinkSigner(b"", ""))
    with pytest.raises(SizeMismatch), store.incoming(Blob(digest=BLOB.digest, size_bytes=10)) as writer:
        writer.write(CONTENT)


SERVER = """
import socket, sys
from pathlib import Path
import uvicorn
from registry.storage.directory import DirectoryBlobStore
from registry.storage.signing import LinkSigner
from tests.serving import blob_app
listener = socket.socket(fileno=int(sys.argv[1]))
store = DirectoryBlobStore(Path(sys.argv[2]), LinkSigner(b"s" * 32, "http://unused"))
uvicorn.Server(uvicorn.Config(blob_app(store), log_level="warning")).run(sockets=[listener])
"""


def peak_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_memory_does_not_grow_with_the_blob(tmp_path: Path) -> None:
    size = 150_000_000
    source = tmp_path / "source"
    with source.open("wb") as file:
        for _ in range(150):
            file.write(os.urandom(1_000_000))
    with source.open("rb") as file:
        blob = Blob(digest=Digest.from_hex(hashlib.file_digest(file, "sha256").hexdigest()), size_bytes=size)
    with listening() as (listener, url):
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(listener.fileno()), str(tmp_path / "blobs")],
            pass_fds=[listener.fileno()],
            cwd=Path(__file__).parents[2],
        )
        try:
            signer = LinkSigner(b"s" * 32, url)
            warm = tmp_path / "warm"
            warm.write_bytes(b"warm")
            put(signer, blob_of(b"warm"), warm)
            before = peak_bytes(server.pid)
            put(signer, blob, source)
            received = 0
            with urllib.request.urlopen(signer.link(blob, "GET", expires_in=HOUR).url) as reply:
                while chunk := reply.read(1 << 20):
                    received += len(chunk)
            assert received == size
            assert peak_bytes(server.pid) - before < 30_000_000
        finally:
            server.terminate()
            server.wait(10)


def put(signer: LinkSigner, blob: Blob, path: Path) -> None:
    with path.open("rb") as file:
        request = urllib.request.Request(signer.link(blob, "PUT", expires_in=HOUR).url, data=file, method="PUT")
        request.add_header("content-length", str(blob.size_bytes))
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert reply.status == 201


def test_a_file_that_was_damaged_on_disk_is_replaced_by_the_next_upload_of_the_right_bytes(
    store: DirectoryBlobStore,
) -> None:
    path = write(store)
    os.chmod(path, 0o644)
    path.write_bytes(CONTENT[::-1])  # of the same size
    assert write(store).read_bytes() == CONTENT


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_put_while_an_older_version_is_deleted_stays(
    store: DirectoryBlobStore, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Put before the file is moved aside, that one is moved back; put after, it is the next file of that name."""
    path = write(store)
    version = store.version(BLOB.digest)
    rename = Path.rename

    def put_meanwhile(self: Path, target: Path) -> Path:
        if target.name.startswith("gone-"):
            monkeypatch.setattr(Path, "rename", rename)
            if moment == "before":
                store.delete(BLOB.digest)
                write(store)
            rename(self, target)
            if moment == "after":
                write(store)
            return target
        return rename(self, target)

    assert version is not None
    monkeypatch.setattr(Path, "rename", put_meanwhile)
    assert store.delete(BLOB.digest, version=version) == (moment == "after")
    assert path.read_bytes() == CONTENT
    assert store.version(BLOB.digest) != version
    assert list((store.root / "incoming").iterdir()) == []
    assert not store.delete(BLOB.digest, version=version)


def test_what_a_crash_left_of_a_delete_is_swept_by_when_it_was_begun(store: DirectoryBlobStore) -> None:
    aside = store.root / "incoming" / "gone-1"
    write(store).rename(aside)
    os.utime(aside, (0, 0))  # uploaded long ago
    assert store.sweep_incoming() == 0
    assert store.sweep_incoming(older_than_seconds=-1) == 1
