"""AOT_BLOB_URL: every setting is read once, does what it says on a real server, and is refused by name when wrong."""

import http.client
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from aot.errors import InvalidConfig
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.storage import open_store
from registry.storage.place import GIB, MIB, READERS, Encryption, S3Place, Style
from registry.storage.s3 import S3BlobStore, connect_s3
from tests.contract.conftest import a_place, empty_bucket, s3_client
from tests.contract.test_blob_store import follow, upload

ROOT = Path(__file__).parents[2]
LIVES = timedelta(minutes=5)
CONTENT = b"some bytes" * 100
BLOB = Blob(digest=Digest.of(CONTENT), size_bytes=len(CONTENT))
KEY = "arn:aws:kms:eu-central-1:123456789012:key/12345678-1234-1234-1234-123456789012"


def test_every_setting_is_read() -> None:
    url = (
        "s3://bucket/a/prefix/?endpoint=http://store:9000/&public_endpoint=https://s3.example.com&region=eu-central-1"
        f"&style=virtual&sse=aws:kms&kms_key={quote(KEY)}&largest_put=64MiB&part=5242880"
    )
    assert S3Place.parse(url) == S3Place(
        bucket="bucket",
        prefix="a/prefix",
        endpoint="http://store:9000",
        public_endpoint="https://s3.example.com",
        region="eu-central-1",
        style=Style.VIRTUAL,
        sse=Encryption.KMS,
        kms_key=KEY,
        largest_put_bytes=64 * MIB,
        part_bytes=5 * MIB,
    )


def test_what_is_not_said_has_a_default() -> None:
    place = S3Place.parse("s3://bucket")
    assert place == S3Place(bucket="bucket")
    assert (place.largest_put_bytes, place.part_bytes, place.key_prefix) == (5 * GIB, 64 * MIB, "")
    assert place.addressing_style is Style.AUTO
    assert S3Place.parse("s3://bucket?endpoint=http://store").addressing_style is Style.PATH
    assert S3Place.parse("s3://bucket?endpoint=http://store&style=auto").addressing_style is Style.AUTO


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("endpoind=http://store", "names 'endpoind', known are endpoint, public_endpoint, region"),
        ("region=a&region=b", "region='b', wanted each name once"),
        ("region=", "region='', wanted text"),
        ("endpoint=store:9000", "endpoint='store:9000', wanted http://host"),
        ("endpoint=http://", "endpoint='http://'"),
        ("endpoint=http://store:99999", "endpoint='http://store:99999'"),
        ("public_endpoint=http://user:secret@store", "public_endpoint="),
        ("style=host", "style='host', wanted one of auto, path, virtual"),
        ("sse=aes256", "sse='aes256', wanted one of AES256, aws:kms"),
        ("kms_key=k", "kms_key='k', wanted sse=aws:kms beside it"),
        ("sse=AES256&kms_key=k", "kms_key='k', wanted sse=aws:kms beside it"),
        ("largest_put=0", "largest_put='0'"),
        ("largest_put=6GiB", "largest_put='6GiB', wanted 1 to 5368709120 bytes"),
        ("largest_put=5GB", "largest_put='5GB'"),
        ("part=4MiB", "part='4MiB', wanted 5242880 to"),
    ],
)
def test_what_is_wrong_is_named(query: str, said: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        S3Place.parse(f"s3://bucket?{query}")
    assert said in raised.value.message
    assert "docs/deploy.md" in raised.value.hint


def test_the_documents_list_every_setting_with_its_default() -> None:
    text = (ROOT / "docs/deploy.md").read_text()
    for name in READERS:
        assert f"| `{name}` |" in text
    assert "`5GiB`" in text and "`64MiB`" in text


def test_links_lead_to_the_public_endpoint_and_are_signed_for_it(
    nanio_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = urlsplit(nanio_endpoint).port
    bucket = empty_bucket(nanio_endpoint, monkeypatch)
    # The same server under two names: a signature holds for one of them.
    store = connect_s3(a_place(nanio_endpoint, bucket, public_endpoint=f"http://localhost:{port}"))
    blob = upload(store, CONTENT)
    link = store.download_link(blob, expires_in=LIVES)
    assert urlsplit(link.url).netloc == f"localhost:{port}"
    assert follow(link).body == CONTENT
    by_the_other_name = Link(
        digest=link.digest, size_bytes=link.size_bytes, url=link.url.replace("//localhost", "//127.0.0.1")
    )
    assert follow(by_the_other_name).status == 403
    assert store.stat(blob.digest) == len(CONTENT), "the registry itself goes by the endpoint"


def test_the_region_is_part_of_the_signature(nanio_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = a_place(nanio_endpoint, empty_bucket(nanio_endpoint, monkeypatch), region="eu-north-1")
    link = connect_s3(place).download_link(BLOB, expires_in=LIVES)
    assert "/eu-north-1/s3/aws4_request" in parse_qs(urlsplit(link.url).query)["X-Amz-Credential"][0]
    moved = link.url.replace("eu-north-1", "eu-south-1")
    assert follow(link).status == 404
    assert follow(Link(digest=link.digest, size_bytes=1, url=moved)).status == 403


def test_path_and_virtual_style_name_the_bucket_where_they_should(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = urlsplit(s3_endpoint).port
    bucket = empty_bucket(s3_endpoint, monkeypatch)
    path = connect_s3(a_place(s3_endpoint, bucket))
    blob = upload(path, CONTENT)
    assert urlsplit(path.download_link(blob, expires_in=LIVES).url).path.startswith(f"/{bucket}/some/prefix/")
    # The registry speaks by path here, and clients by host name: only the links are under test.
    virtual = S3BlobStore(
        s3_client(s3_endpoint),
        a_place(s3_endpoint, bucket, style=Style.VIRTUAL, public_endpoint=f"http://s3.localhost:{port}"),
    )
    parts = urlsplit(virtual.download_link(blob, expires_in=LIVES).url)
    assert parts.netloc == f"{bucket}.s3.localhost:{port}" and parts.path.startswith("/some/prefix/")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"{parts.path}?{parts.query}", headers={"host": f"{bucket}.s3.amazonaws.com"})
    assert connection.getresponse().read() == CONTENT


@pytest.mark.parametrize(
    ("deviations", "headers"),
    [
        ({"sse": Encryption.AES256}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"sse": Encryption.KMS, "kms_key": KEY},
            {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": KEY},
        ),
    ],
)
def test_everything_that_is_written_is_encrypted_as_told(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, deviations: dict[str, str], headers: dict[str, str]
) -> None:
    bucket = empty_bucket(s3_endpoint, monkeypatch)
    store = connect_s3(a_place(s3_endpoint, bucket, largest_put_bytes=5 * MIB, part_bytes=5 * MIB, **deviations))
    link = store.upload_link(BLOB, expires_in=LIVES)
    assert headers.items() <= link.headers.items()
    assert set(headers) <= set(parse_qs(urlsplit(link.url).query)["X-Amz-SignedHeaders"][0].split(";"))
    upload(store, CONTENT)
    store.records().put("one", b"{}")
    large = bytes(6 * MIB)
    blob = Blob(digest=Digest.of(large), size_bytes=len(large))
    incoming = store.incoming_of(Namespace("default"))
    for part in incoming.link(blob, expires_in=LIVES).parts:
        place = Link(digest=blob.digest, size_bytes=part.size_bytes, url=part.url, method="PUT")
        assert follow(place, large[part.start : part.start + part.size_bytes]).status == 200
    assert incoming.complete(blob) == len(large)
    stream, version = incoming.open(blob.digest)
    stream.close()
    assert incoming.adopt(blob, version=version, seconds=20)
    client = s3_client(s3_endpoint)
    keys = [item["Key"] for item in client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert len(keys) == 4
    for key in keys:
        found = client.head_object(Bucket=bucket, Key=key)
        assert found["ServerSideEncryption"] == str(deviations["sse"])
        assert found.get("SSEKMSKeyId") == deviations.get("kms_key")


def test_a_url_with_everything_opens_a_store(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bucket = empty_bucket(s3_endpoint, monkeypatch)
    url = f"s3://{bucket}/p?endpoint={s3_endpoint}&region=us-east-1&style=path&sse=AES256&largest_put=5MiB&part=5MiB"
    store = open_store(url, data_dir=tmp_path, public_url="http://unused")
    assert isinstance(store, S3BlobStore) and store.largest_put_bytes == 5 * MIB
    assert read_back(store) == CONTENT


def read_back(store: S3BlobStore) -> bytes:
    with store.open(upload(store, CONTENT).digest) as stream:
        return stream.read()
