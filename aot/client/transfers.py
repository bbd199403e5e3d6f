"""Sets of blobs at once: whatever is missing, in parallel, and no work after the first failure."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from aot.cache import Incoming, LocalCache
from aot.client.blobs import Renew, Stretch, get_blob, put_stretch, stretches_of
from aot.client.retry import RetryPolicy
from aot.client.transport import Transport
from aot.errors import BlobNotFound, Forbidden, InvalidSource
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link

T = TypeVar("T")
U = TypeVar("U")


def fetch_blobs(
    transport: Transport,
    blobs: Iterable[Blob],
    links: Iterable[Link],
    cache: LocalCache,
    *,
    workers: int,
    timeout_seconds: float,
    retry: RetryPolicy,
    renew: Renew | None = None,
) -> tuple[Path, ...]:
    """Make sure that `cache` holds every blob, and return their paths in order.

    Sizes come from `blobs`, which the caller has from a verified manifest; a link only says where. What is there
    already needs no link. `renew` gives another link for one that has expired. Raises BlobNotFound for a blob without
    one, LocalStorageFull before the first byte where they do not fit, and the first error of any transfer.
    """
    by_digest = {link.digest: link for link in links}
    wanted = tuple(blobs)

    def fetch(blob: Blob, stopped: Callable[[], bool]) -> Path:
        def receive(into: Incoming) -> None:
            link = by_digest.get(blob.digest)
            if link is None:
                raise BlobNotFound(f"the registry gave no link to {blob.digest}", hint="it may have been deleted")
            get_blob(
                transport,
                link,
                into,
                limit_bytes=blob.size_bytes,
                timeout_seconds=timeout_seconds,
                retry=retry,
                stopped=stopped,
                renew=renew,
            )

        return cache.ensure(blob, receive)

    order = transfer_order([blob.size_bytes for blob in wanted])
    # Held meanwhile: another process that evicts could otherwise take the first while the last arrives.
    with cache.hold(blob.digest for blob in wanted):
        cache.make_room(wanted)
        paths = in_parallel(fetch, tuple(wanted[index] for index in order), workers=workers)
    return tuple(path for _, path in sorted(zip(order, paths, strict=True)))


def transfer_order(sizes: Sequence[int]) -> list[int]:
    """Indexes into `sizes`: the largest first, since the last to arrive should not take long alone, small ones between.

    Small blobs keep the store busy and large ones the reader, so they go together: those of at least the mean size in
    falling order, the others spread evenly among them.
    """
    falling = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    mean = sum(sizes) / max(1, len(sizes))
    large = [index for index in falling if sizes[index] >= mean]
    small = falling[len(large) :]
    # Each one's place between 0 and 1; of two at one place, the larger.
    places = [(at / len(some), index) for some in (large, small) for at, index in enumerate(some)]
    return [index for _, index in sorted(places, key=lambda place: (place[0], -sizes[place[1]]))]


def upload_blobs(
    transport: Transport,
    links: Iterable[Link],
    files: Mapping[Digest, Path],
    *,
    workers: int,
    timeout_seconds: float,
    retry: RetryPolicy,
    renew: Renew | None = None,
) -> None:
    """Put the file of every link, found by its digest in `files`; the parts of large ones at once.

    Raises the first error of any transfer. `renew` gives another link for a blob whose link has expired meanwhile, or
    whose upload in parts is over: given up, or whole, where only the answer to a part got lost. None where the blob has
    arrived.
    """

    def send(stretch: Stretch) -> None:
        path = files.get(stretch.link.digest)
        if path is None:
            raise InvalidSource(
                f"there is no file for {stretch.link.digest}", hint="pass every blob that was announced"
            )
        put_stretch(transport, stretch, path, timeout_seconds=timeout_seconds, retry=retry)

    def put(stretch: Stretch, stopped: Callable[[], bool]) -> None:
        if stopped():
            return
        try:
            send(stretch)
        except (Forbidden, BlobNotFound):
            if renew is None:
                raise
            again = renew(stretch.whole)
            # A part that is not among those it lists has arrived.
            for other in stretches_of(again) if again else ():
                if other.start == stretch.start:
                    send(other)

    in_parallel(put, tuple(stretch for link in links for stretch in stretches_of(link)), workers=workers)


def in_parallel(work: Callable[[T, Callable[[], bool]], U], items: tuple[T, ...], *, workers: int) -> tuple[U, ...]:
    """Apply `work` to every item in at most `workers` threads, and return the results in order.

    The first error stops the rest, and is raised; so does an interrupt of the calling thread. `work` is handed a
    function that tells when to stop.
    """
    results: dict[int, U] = {}
    failures: list[BaseException] = []
    stop = threading.Event()
    pending = iter(enumerate(items))
    taking = threading.Lock()

    def run() -> None:
        while not stop.is_set():
            with taking:
                index, item = next(pending, (-1, None))
            if index < 0:
                return
            try:
                results[index] = work(cast(T, item), stop.is_set)
            except BaseException as error:
                failures.append(error)  # before the rest is stopped: the first of the list is the cause
                stop.set()

    # Daemons: an interrupted program does not wait for the timeout of a silent connection.
    threads = [threading.Thread(target=run, name="aot-transfer", daemon=True) for _ in items[:workers]]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
    if failures:
        raise failures[0]
    return tuple(results[index] for index in range(len(items)))
