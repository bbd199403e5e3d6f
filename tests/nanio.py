"""An S3 server that enforces signatures and expiry: nanio, in this process, on a directory."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.serving import listening, serving


@contextlib.contextmanager
def nanio_server(directory: Path, *, keys: Mapping[str, str]) -> Iterator[str]:
    """Serve buckets below `directory` to these access keys, and yield the address."""
    from nanio.app import build_app
    from nanio.auth.credentials import StaticCredentialResolver
    from nanio.config import Settings

    directory.mkdir(parents=True, exist_ok=True)
    app = build_app(Settings(data_dir=directory, credentials=StaticCredentialResolver(dict(keys))))
    with listening() as (listener, url), serving(app, listener):
        yield url
