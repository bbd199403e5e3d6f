"""Work on many things of a store of which one may be out of order: it must not keep the others from their turn."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from aot.errors import Unavailable

T = TypeVar("T")
# So many failures in a row are the store's, not the things': what is left is the next pass's.
MOST_FAILURES = 3
log = structlog.get_logger()


def one_by_one(things: Iterable[T], act: Callable[[T], None], *, most_failures: int = MOST_FAILURES) -> None:
    """Act on each thing, whatever becomes of the others. Raises the first Unavailable at the end."""
    first: Unavailable | None = None
    failures = 0
    for thing in things:
        try:
            act(thing)
            failures = 0
        except Unavailable as error:
            first = first or error
            failures += 1
            log.warning("left-for-the-next-pass", code=error.code, reason=error.message)
            if failures == most_failures:
                break
    if first is not None:
        raise first
