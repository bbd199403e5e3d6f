"""RegistryClient: one typed method for every endpoint of `aot.schema.endpoints`, and the transfer of blobs."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from aot.cache import LocalCache
from aot.client import blobs, transfers
from aot.client.build_calls import BuildCalls
from aot.client.bundle_calls import BundleCalls
from aot.client.fleet_calls import FleetCalls
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link

WORKERS = 8


class RegistryClient(BuildCalls, BundleCalls, FleetCalls):
    """Safe to share between threads.

    Every method raises the error that the registry meant, and RegistryUnreachable when it gave no answer within the
    retry policy.
    """

    def put_blob(self, link: Link, path: Path) -> None:
        """Send the file at `path` to `link`, which `open_uploads` gave.

        Raises SizeMismatch or DigestMismatch when the file is not the blob, Forbidden when the link has expired.
        """
        blobs.put_blob(self.transport, link, path, timeout_seconds=self.timeout_seconds, retry=self.retry_policy)

    def get_blob(self, link: Link, into: blobs.Sink, *, limit_bytes: int | None = None) -> None:
        """Write the bytes behind `link` to `into`, which verifies them; a cut connection is resumed.

        `limit_bytes` is the size that a verified manifest gives the blob, by default the link's.
        """
        blobs.get_blob(
            self.transport,
            link,
            into,
            limit_bytes=link.size_bytes if limit_bytes is None else limit_bytes,
            timeout_seconds=self.timeout_seconds,
            retry=self.retry_policy,
        )

    def fetch_blobs(
        self,
        wanted: Iterable[Blob],
        links: Iterable[Link],
        cache: LocalCache,
        *,
        workers: int = WORKERS,
        bundle: Digest | None = None,
    ) -> tuple[Path, ...]:
        """Make sure that `cache` holds every blob, in parallel, and return their paths in order.

        Sizes come from `wanted`, which the caller has from a verified manifest; what is there already needs no
        link. The first error stops the rest. Where fetching takes longer than a link lives, another one is asked for
        as to a blob of `bundle`. Raises BlobNotFound for a blob that has no link.
        """

        def renew(link: Link) -> Link | None:
            assert bundle is not None
            return next(iter(self.get_download_links(bundle, [link.digest])), None)

        return transfers.fetch_blobs(
            self.transport,
            wanted,
            links,
            cache,
            workers=workers,
            timeout_seconds=self.timeout_seconds,
            retry=self.retry_policy,
            renew=None if bundle is None else renew,
        )

    def upload_blobs(
        self,
        links: Iterable[Link],
        files: Mapping[Digest, Path],
        *,
        workers: int = WORKERS,
        namespace: Namespace | None = None,
    ) -> None:
        """Put the file of every link, in parallel; the parts of large ones too. The first error stops the rest.

        Where an upload takes longer than its link lives, `namespace` is asked for another link, once for each request.
        """

        def renew(link: Link) -> Link | None:
            assert namespace is not None
            blob = Blob(digest=link.digest, size_bytes=link.size_bytes)
            return next(iter(self.open_uploads(namespace, [blob])), None)

        transfers.upload_blobs(
            self.transport,
            links,
            files,
            workers=workers,
            timeout_seconds=self.timeout_seconds,
            retry=self.retry_policy,
            renew=None if namespace is None else renew,
        )
