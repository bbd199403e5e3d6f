"""Which blob store a URL names."""

from pathlib import Path

from registry.storage.directory import DirectoryBlobStore
from registry.storage.place import S3Place
from registry.storage.protocol import BlobStore
from registry.storage.signing import LinkSigner, load_secret

SECRET_FILE = "links.secret"


def open_store(url: str, *, data_dir: Path, public_url: str, secret: bytes | None = None) -> BlobStore:
    """Return the store that `url` names: `directory`, or `s3://bucket/prefix?name=value&…`
    (`registry.storage.place`).

    `directory` is `data_dir/blobs`, its links signed with `secret` (by default a 0600 file in `data_dir`, made when
    there is none). An S3 store is probed: what it does not enforce is known before the first upload. Raises
    InvalidConfig, and StorageUnavailable when the object store does not answer.
    """
    if url in ("", "directory"):
        key = load_secret(data_dir / SECRET_FILE) if secret is None else secret
        store = DirectoryBlobStore(data_dir / "blobs", LinkSigner(key, public_url))
        store.sweep_incoming()
        return store
    place = S3Place.parse(url)
    from registry.storage.s3 import connect_s3  # boto3 costs 200 ms, and embedded registries do without

    return connect_s3(place)
