"""The application of the registry for one test after another: routes are the same, the object graph is each test's own.

The framework takes a tenth of a second to find out what every handler wants, which is longer than most tests run.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from litestar import Litestar
from litestar.datastructures import State

from registry.app import create_app_from
from registry.deps import Deps


class Standing:
    """Stands for the object graph of whoever has the application now."""

    def __init__(self, deps: Deps) -> None:
        self.now: Any = deps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


class StandingStore:
    """Stands for the blob store of that graph, in routes that are made for one store."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._standing.now.store, name)


# By what an application is built for: idle ones. Several services of one test have one each.
_idle: defaultdict[object, list[tuple[Standing, Litestar]]] = defaultdict(list)


@contextmanager
def an_app(deps: Deps) -> Iterator[Litestar]:
    """The application over `deps`, for the block alone."""
    idle = _idle[type(deps.store), deps.settings.max_body_bytes]
    standing, app = idle.pop() if idle else _build(deps)
    standing.now, app.state = deps, State({"deps": standing})
    yield app
    standing.now = None  # a request that comes too late fails
    idle.append((standing, app))


def _build(deps: Deps) -> tuple[Standing, Litestar]:
    standing = Standing(deps)
    # What is taken out of the graph while the application is built, and would be the first one's for ever.
    early = {"store": StandingStore(standing), "sessions": SimpleNamespace(close=lambda: standing.now.sessions.close())}
    standing.__dict__.update(early)
    app = create_app_from(standing)  # type: ignore[arg-type]
    for name in early:
        del standing.__dict__[name]
    return standing, app
