"""Work on many things of a store of which one may be out of order: it must not keep the others from their turn."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import structlog

from aot.errors import Unavailable

T = TypeVar("T")
# So many failures in a row are the store's, not the things': what is left is the next pass's.
MOST_FAILURES = 3
# Requests to an object store take tens of milliseconds each, and wait for nothing but it.
AT_ONCE = 8
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


def several_at_once(things: Iterable[T], act: Callable[[T], None]) -> None:
    """The same, AT_ONCE of them at a time: for what is a request or two of the store each, in whatever order."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        one_by_one(_going(pool, things, act), Future.result)


def _going(pool: ThreadPoolExecutor, things: Iterable[T], act: Callable[[T], None]) -> Iterator[Future[None]]:
    """In the order in which they began, of which no more have than are asked for and AT_ONCE."""
    going: deque[Future[None]] = deque()
    for thing in things:
        if len(going) == AT_ONCE:
            yield going.popleft()
        going.append(pool.submit(act, thing))
    yield from going
