"""Blobs of many gigabytes in the registry: how long links to them live, and that nobody waits for the disk."""

import os
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from aot.schema.digest import Digest
from aot.schema.spec import Blob
from registry.services.blobs import LONGEST_LIVES, lives_for
from registry.storage import directory
from registry.storage.directory import DirectoryBlobStore
from registry.storage.signing import LinkSigner
from tests.builders import a_profile, a_spec
from tests.service import a_service
from tests.stack import Stack, standing

HOUR = timedelta(hours=1)
GIB = 1 << 30


def a_large(size_bytes: int, name: bytes = b"large") -> Blob:
    return Blob(digest=Digest.of(name), size_bytes=size_bytes)


def test_links_live_for_what_all_bytes_take_on_a_slow_line() -> None:
    assert lives_for([a_large(1000)], least=HOUR) == HOUR
    assert lives_for([a_large(20 * GIB)], least=HOUR) == HOUR + timedelta(seconds=20 * 1024)
    assert lives_for([a_large(GIB), a_large(GIB, b"other")], least=HOUR) == HOUR + timedelta(seconds=2 * 1024)


def test_links_live_no_longer_than_a_store_signs_for_unless_that_is_set() -> None:
    assert lives_for([a_large(1 << 40)], least=HOUR) == LONGEST_LIVES
    assert lives_for([a_large(GIB)], least=timedelta(days=30)) == timedelta(days=30)


@pytest.mark.skipif(standing() is not Stack.EMBEDDED, reason="an S3 link says when it was signed, not when it ends")
def test_the_links_of_a_claim_live_for_its_source_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.services.blobs.SLOWEST_BYTES_PER_SECOND", 1)
    with a_service(tmp_path) as service:
        service.register(a_profile())
        spec = a_spec()
        service.submit(spec)
        claim = service.claim(spec.profile)
        (link,) = claim.links
        ends = int(parse_qs(urlsplit(link.url).query)["expires"][0]) - service.deps.store.signer.clock().timestamp()
    lives = service.deps.settings.link_lives.total_seconds() + link.size_bytes
    assert lives - 5 <= ends <= lives


def test_what_is_written_goes_to_the_disk_while_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SYNC_BYTES", 300)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    content = bytes(range(250)) * 4
    store = DirectoryBlobStore(tmp_path, LinkSigner(b"s" * 32, "http://unused"))
    blob = Blob(digest=Digest.of(content), size_bytes=len(content))
    with store.incoming(blob) as writer:
        for start in range(0, len(content), 100):
            writer.write(content[start : start + 100])
    assert synced == [300, 600, 900], "the rest is synced when it is whole"
    assert store.open(blob.digest).read() == content
