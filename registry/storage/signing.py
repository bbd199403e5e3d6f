"""Signed, expiring links to blobs that the registry serves itself. The signature is the whole right.

HMAC-SHA256 over method, digest, size and expiry: a link to read cannot be turned into one to write, nor into one to
another blob, another size or a later hour.
"""

import hmac
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from aot.errors import Forbidden, InvalidConfig
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.clock import Clock, utc_now

SECRET_BYTES = 32


@dataclass(frozen=True)
class LinkSigner:
    """Writes and checks links under `public_url`, which is how clients reach this registry."""

    secret: bytes = field(repr=False)
    public_url: str
    clock: Clock = utc_now

    def link(self, blob: Blob, method: str, *, expires_in: timedelta) -> Link:
        """A link that answers to `method` until `expires_in` has passed."""
        expires = int(self.clock().timestamp() + expires_in.total_seconds())
        signature = self._sign(method, blob, expires)
        # By hand, since all of it is digits and hex: a bundle has hundreds of blobs, and a pod waits for their links.
        query = f"size={blob.size_bytes}&expires={expires}&sig={signature}"
        url = f"{self.public_url.rstrip('/')}/blobs/{blob.digest}?{query}"
        return Link(digest=blob.digest, size_bytes=blob.size_bytes, url=url, method=method)

    def check(self, method: str, blob: Blob, *, expires: int, signature: str) -> None:
        """Return when the link was written by this secret and has not expired. Raises Forbidden."""
        # HEAD tells no more than GET does.
        wanted = self._sign("GET" if method == "HEAD" else method, blob, expires)
        if not hmac.compare_digest(wanted.encode(), signature.encode()):
            raise Forbidden(
                f"the link does not allow {method} of {blob.digest}",
                hint="ask the registry for a link, and use it as it is",
            )
        if expires < self.clock().timestamp():
            raise Forbidden(
                f"the link to {blob.digest} expired at {datetime.fromtimestamp(expires, UTC).isoformat()}",
                hint="ask the registry for a new link; if this repeats, compare the clocks of both hosts",
            )

    def _sign(self, method: str, blob: Blob, expires: int) -> str:
        text = f"{method}\n{blob.digest}\n{blob.size_bytes}\n{expires}"
        signing = self._keyed.copy()
        signing.update(text.encode())
        return signing.hexdigest()

    @cached_property
    def _keyed(self) -> hmac.HMAC:
        # Setting up a key takes longer than signing a link with it.
        return hmac.new(self.secret, digestmod="sha256")


def load_secret(path: Path) -> bytes:
    """Return the secret kept at `path`, making one (mode 0600) when there is none.

    Processes that start together agree: the first file to appear wins. Raises InvalidConfig when the file is
    readable by others or damaged.
    """
    if not path.exists():
        _write_secret(path)
    if path.stat().st_mode & 0o077:
        raise InvalidConfig(f"{path} is readable by other users", hint=f"chmod 600 {path}")
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise InvalidConfig(
            f"{path} holds {len(secret)} bytes, wanted {SECRET_BYTES}",
            hint="remove it: a new secret is made, and links handed out before stop working",
        )
    return secret


def _write_secret(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".secret-")  # 0600 by contract
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        os.link(temporary, path)  # unlike rename, this fails when another process was first
    except FileExistsError:
        return
    finally:
        os.unlink(temporary)
