"""Where blobs lie: one protocol, three stores, and the links by which clients reach the bytes themselves."""

from registry.storage.choose import open_store
from registry.storage.links import link_routes
from registry.storage.protocol import BlobStore

__all__ = ["BlobStore", "link_routes", "open_store"]
