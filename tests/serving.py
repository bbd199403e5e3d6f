"""Real servers on loopback for tests: an ASGI application on uvicorn."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from litestar import Litestar

from registry.api.errors import HANDLERS
from registry.storage.links import link_routes
from registry.storage.protocol import BlobStore


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    """A bound loopback socket and its URL, known before the application that needs it is made."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        yield listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def serving(app: Any, listener: socket.socket) -> Iterator[None]:
    """Serve `app` on uvicorn in a thread until the block ends."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10)


def blob_app(store: BlobStore) -> Litestar:
    """The link routes alone, answering errors as the registry does."""
    return Litestar(link_routes(store), exception_handlers=HANDLERS)
