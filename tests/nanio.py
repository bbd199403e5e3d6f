"""An S3 server that enforces signatures and expiry: nanio, in this process, on a directory."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.serving import listening, serving


def nanio_app(directory: Path, *, keys: Mapping[str, str]) -> Any:
    """The server's application, on buckets below `directory`."""
    from nanio.app import build_app
    from nanio.auth.credentials import StaticCredentialResolver
    from nanio.config import Settings

    directory.mkdir(parents=True, exist_ok=True)
    return build_app(Settings(data_dir=directory, credentials=StaticCredentialResolver(dict(keys))))


@contextlib.contextmanager
def nanio_server(directory: Path, *, keys: Mapping[str, str]) -> Iterator[str]:
    """Serve buckets below `directory` to these access keys, and yield the address."""
    with listening() as (listener, url), serving(nanio_app(directory, keys=keys), listener):
        yield url
