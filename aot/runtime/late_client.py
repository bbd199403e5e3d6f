"""The registry's client as a pod has it: opened when something is first asked.

A node that holds what a digest pins asks nothing before the first output, so it does not import what a request needs.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from aot.config import Config
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.spec import Blob

if TYPE_CHECKING:
    from aot.cache import LocalCache
    from aot.client import RegistryClient
    from aot.schema.wire.blobs import Link
    from aot.schema.wire.bundles import ResolveReply
    from aot.schema.wire.signed import SignedManifest
    from aot.schema.wire.workers import Receipt

# Few: a pod that waits for a registry is slower than one that runs eagerly.
POD_ATTEMPTS = 2


class LateClient:
    """What a pod asks of the registry. Every method raises what RegistryClient's does, and InvalidConfig for a token
    that is none."""

    def __init__(self, url: str, config: Config) -> None:
        self._url = url
        self._config = config

    def resolve(self, reference: Reference, *, pins: Sequence[Digest] = ()) -> "tuple[SignedManifest, ...]":
        return self._client.resolve(reference, pins=pins)

    def resolve_with_links(self, reference: Reference, *, pins: Sequence[Digest] = ()) -> "ResolveReply":
        return self._client.resolve_with_links(reference, pins=pins)

    def get_download_links(self, bundle: Digest, blobs: Iterable[Digest]) -> "tuple[Link, ...]":
        return self._client.get_download_links(bundle, blobs)

    def fetch_blobs(
        self, wanted: Iterable[Blob], links: "Iterable[Link]", cache: "LocalCache", *, bundle: Digest | None = None
    ) -> tuple[Path, ...]:
        return self._client.fetch_blobs(wanted, links, cache, bundle=bundle)

    def send_receipt(self, receipt: "Receipt") -> None:
        self._client.send_receipt(receipt)

    @cached_property
    def _client(self) -> "RegistryClient":
        from aot.client.connect import open_client

        config = self._config
        return open_client(self._url, config.token, timeout_seconds=config.timeout_seconds, attempts=POD_ATTEMPTS)
