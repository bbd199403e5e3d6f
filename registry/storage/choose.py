"""Which blob store a URL names."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from aot.errors import InvalidConfig
from registry.storage.directory import DirectoryBlobStore
from registry.storage.protocol import BlobStore
from registry.storage.signing import LinkSigner, load_secret

SECRET_FILE = "links.secret"


def open_store(url: str, *, data_dir: Path, public_url: str, secret: bytes | None = None) -> BlobStore:
    """Return the store that `url` names: `directory`, or `s3://bucket/prefix?endpoint=…&region=…`.

    `directory` is `data_dir/blobs`, its links signed with `secret` (by default a 0600 file in `data_dir`, made when
    there is none). An S3 store is probed: what it does not enforce is known before the first upload. Raises
    InvalidConfig, and StorageUnavailable when the object store does not answer.
    """
    if url in ("", "directory"):
        key = load_secret(data_dir / SECRET_FILE) if secret is None else secret
        store = DirectoryBlobStore(data_dir / "blobs", LinkSigner(key, public_url))
        store.sweep_incoming()
        return store
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if parts.scheme != "s3" or not parts.netloc or set(query) - {"endpoint", "region"}:
        raise InvalidConfig(
            f"AOT_BLOB_URL is {url!r}", hint="write `directory`, or s3://bucket/prefix?endpoint=URL&region=NAME"
        )
    from registry.storage.s3 import connect_s3  # boto3 costs 200 ms, and embedded registries do without

    return connect_s3(
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=query.get("endpoint", [None])[0],
        region=query.get("region", [None])[0],
    )
