"""Links of one second are those that boto3's client makes, though it is asked for the first alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import botocore.session
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError

from aot.errors import InvalidConfig
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from registry.storage.place import Encryption, S3Place, Style
from registry.storage.s3 import S3BlobStore, _client_of
from registry.storage.s3_links import S3DownloadLinks

HOUR = timedelta(hours=1)
DIGESTS = [Digest.of(bytes([number])) for number in range(50)]
KEYS = ("AKIAEXAMPLE", "secret+/=example")
TOKEN = "IQoJb3JpZ2lu//with+signs=&and%more=="


def a_session(credentials: Any) -> boto3.Session:
    """One that has these, wherever the host keeps others."""
    core = botocore.session.get_session()
    core._credentials = credentials  # as botocore's own providers leave them there
    return boto3.Session(botocore_session=core)


def a_store(credentials: Any = None, **named: Any) -> S3BlobStore:
    """A store that nobody speaks to."""
    place = S3Place(**{"bucket": "bucket", "prefix": "some/prefix", "region": "eu-central-1", **named})
    session = a_session(credentials or Credentials(*KEYS))
    return S3BlobStore(_client_of(session, place, place.endpoint), place, session=session)


@dataclass
class Counted:
    """A store's own way to a link, counting how often the client was asked."""

    store: S3BlobStore
    asked: list[Digest] = field(default_factory=list)

    def __call__(self, digest: Digest, expires_in: timedelta) -> str:
        self.asked.append(digest)
        return self.store._presigned_get(digest, expires_in)


def date_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["X-Amz-Date"][0]


def in_one_second(links: S3DownloadLinks, presign: Counted, expires_in: timedelta = HOUR) -> Iterator[tuple[str, str]]:
    """For every digest our link and the client's, all of one second, which the client is asked for once besides."""
    for _ in range(5):  # a second may end meanwhile
        presign.asked.clear()
        ours = [links.url(digest, expires_in=expires_in) for digest in DIGESTS]
        asked = list(presign.asked)
        theirs = [presign(digest, expires_in) for digest in DIGESTS]
        if len({date_of(url) for url in ours + theirs}) == 1:
            assert asked in (DIGESTS[:1], [])
            return zip(ours, theirs, strict=True)
    raise AssertionError("no second was long enough")


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"prefix": ""},
        {"prefix": "with space/ü+~&=%25?#/sha256"},
        {"bucket": "with.dots.in.it"},
        {"region": "us-east-1"},
        {"region": "cn-north-1"},
        {"endpoint": "http://127.0.0.1:9000"},
        {"endpoint": "https://[::1]:9000"},
        {"endpoint": "https://store.example.com/below/a/path"},
        {"endpoint": "https://Store.Example.com:443"},
        {"endpoint": "http://store:9000", "style": Style.VIRTUAL},
        {"endpoint": "http://store:9000", "style": Style.AUTO},
        {"style": Style.PATH},
        {"endpoint": "http://store:9000", "public_endpoint": "https://s3.example.com"},
        {"sse": Encryption.AES256},
        {"sse": Encryption.KMS, "kms_key": "alias/some-key"},
    ],
)
@pytest.mark.parametrize("token", [None, TOKEN])
def test_links_are_the_clients_own_and_it_is_asked_once_a_second(named: dict[str, Any], token: str | None) -> None:
    store = a_store(Credentials(*KEYS, token), **named)
    presign = Counted(store)
    links = S3DownloadLinks(presign, credentials=store._signer._request_signer._credentials)
    for ours, theirs in in_one_second(links, presign):
        assert ours == theirs
        assert ("X-Amz-Security-Token" in ours) == (token is not None)


def test_the_store_hands_out_these_links() -> None:
    store = a_store(endpoint="http://store:9000")
    presign = Counted(store)
    store._download_links._presign = presign
    blobs = [Blob(digest=digest, size_bytes=1) for digest in DIGESTS]
    urls = [store.download_link(blob, expires_in=HOUR).url for blob in blobs]
    assert len(presign.asked) == len({date_of(url) for url in urls}) < len(DIGESTS)


@pytest.mark.parametrize("access_key", ["with/slashes/in/it", "with spaces & signs"])
def test_an_access_key_may_have_any_signs(access_key: str) -> None:
    store = a_store(Credentials(access_key, "secret"))
    presign = Counted(store)
    links = S3DownloadLinks(presign, credentials=Credentials(access_key, "secret"))
    assert all(ours == theirs for ours, theirs in in_one_second(links, presign))


def test_another_life_is_another_link() -> None:
    store = a_store()
    presign = Counted(store)
    links = S3DownloadLinks(presign, credentials=Credentials(*KEYS))
    for lives in (HOUR, timedelta(minutes=1), timedelta(milliseconds=5), HOUR):
        for ours, theirs in in_one_second(links, presign, lives):
            assert ours == theirs
            assert parse_qs(urlsplit(ours).query)["X-Amz-Expires"] == [str(max(1, int(lives.total_seconds())))]


def test_a_link_lives_from_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    presign = Counted(a_store())
    links = S3DownloadLinks(presign, credentials=Credentials(*KEYS))
    links.url(DIGESTS[0], expires_in=HOUR)
    now = int(datetime.now(UTC).timestamp())
    monkeypatch.setattr("registry.storage.s3_links.time.time", lambda: now + 5.0)
    links.url(DIGESTS[1], expires_in=HOUR)
    assert presign.asked == DIGESTS[:2], "a link of five seconds ago would have less to live"


def test_credentials_that_refresh_sign_no_link_after_their_end() -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    made: list[str] = []

    def metadata() -> dict[str, str]:
        made.append(f"KEY{len(made)}")
        expiry = (now[0] + timedelta(hours=1)).isoformat()
        return {"access_key": made[-1], "secret_key": f"of {made[-1]}", "token": made[-1], "expiry_time": expiry}

    credentials = RefreshableCredentials.create_from_metadata(metadata(), metadata, "test")
    credentials._time_fetcher = lambda: now[0]
    store = a_store(credentials)
    presign = Counted(store)
    links = S3DownloadLinks(presign, credentials=credentials)
    for key in ("KEY0", "KEY1", "KEY2"):
        for ours, theirs in in_one_second(links, presign):
            assert ours == theirs
            query = parse_qs(urlsplit(ours).query)
            assert query["X-Amz-Credential"][0].startswith(f"{key}/")
            assert query["X-Amz-Security-Token"] == [key]
        now[0] += timedelta(minutes=59)
    assert made == ["KEY0", "KEY1", "KEY2"]


@pytest.mark.parametrize(("life", "wanted"), [(timedelta(minutes=16), 16 * 60), (timedelta(hours=2), 3600)])
def test_no_link_outlives_the_credentials_that_sign_it(life: timedelta, wanted: int) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def metadata() -> dict[str, str]:
        return {"access_key": "K", "secret_key": "s", "token": "t", "expiry_time": (now + life).isoformat()}

    credentials = RefreshableCredentials.create_from_metadata(metadata(), metadata, "test")
    credentials._time_fetcher = lambda: now
    store = a_store(credentials)
    blob = Blob(digest=DIGESTS[0], size_bytes=1)
    for link in (store.download_link(blob, expires_in=HOUR), store.upload_link(blob, expires_in=HOUR)):
        assert parse_qs(urlsplit(link.url).query)["X-Amz-Expires"] == [str(wanted)]


def test_credentials_that_changed_between_leave_no_pattern() -> None:
    """The client signs with the next ones already."""
    store = a_store(Credentials("new", "new"))
    presign = Counted(store)
    links = S3DownloadLinks(presign, credentials=Credentials("old", "old"))
    urls = [links.url(digest, expires_in=HOUR) for digest in DIGESTS]
    assert presign.asked == DIGESTS
    assert all("X-Amz-Credential=new%2F" in url for url in urls)


@pytest.mark.parametrize("version", ["s3", UNSIGNED])
def test_a_link_of_another_kind_is_the_clients(version: Any) -> None:
    client = a_session(Credentials(*KEYS)).client(
        "s3", region_name="us-east-1", config=Config(signature_version=version)
    )
    store = S3BlobStore(client, S3Place(bucket="bucket"), session=a_session(Credentials(*KEYS)))
    presign = Counted(store)
    links = S3DownloadLinks(presign, credentials=Credentials(*KEYS))
    assert ["X-Amz-" in links.url(digest, expires_in=HOUR) for digest in DIGESTS[:3]] == [False] * 3
    assert presign.asked == DIGESTS[:3]


def test_a_link_that_binds_a_header_is_the_clients() -> None:
    """The pattern knows the host alone."""
    store = a_store()

    def presign(digest: Digest, expires_in: timedelta) -> str:
        parameters = {"Bucket": "bucket", "Key": store._key(digest), "ChecksumMode": "ENABLED"}
        return store._presigned("get_object", parameters, expires_in)

    links = S3DownloadLinks(presign, credentials=Credentials(*KEYS))
    assert "x-amz-checksum-mode" in links.url(DIGESTS[0], expires_in=HOUR)
    assert links._pattern is None


def test_without_credentials_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    session = boto3.Session()
    place = S3Place(bucket="bucket", region="us-east-1")
    store = S3BlobStore(_client_of(session, place, None), place, session=session)
    with pytest.raises(InvalidConfig, match="credentials"):
        store.download_link(Blob(digest=DIGESTS[0], size_bytes=1), expires_in=HOUR)


def test_credentials_that_do_not_come_are_named() -> None:
    class Away:
        def get_frozen_credentials(self) -> None:
            raise CredentialRetrievalError(provider="role", error_msg="nobody answers")

    with pytest.raises(InvalidConfig, match="nobody answers"):
        S3DownloadLinks(Counted(a_store()), credentials=Away()).url(DIGESTS[0], expires_in=HOUR)
