"""The seam between the client and the network: one method. The simulator of the tests is one more transport."""

from collections.abc import Mapping
from typing import BinaryIO, Protocol

Body = bytes | BinaryIO | None
"""A stream is read once, from where it stands; its length goes with it in the header `content-length`."""


class Reply(Protocol):
    """An answer whose body has not been read yet. Close it, read or not."""

    status: int
    headers: Mapping[str, str]  # names in lower case

    def read(self, limit_bytes: int) -> bytes:
        """Up to `limit_bytes` more of the body; empty at its end.

        Raises RegistryUnreachable when the connection ends before the body does.
        """

    def close(self) -> None:
        """Give the connection back. Never raises."""


class Transport(Protocol):
    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body = None, timeout_seconds: float
    ) -> Reply:
        """Send one request and return the answer, whatever its status. Redirects are not followed.

        `timeout_seconds` bounds each wait, for the connection and for the next bytes, not the whole transfer.
        Raises RegistryUnreachable, `details["sent"]` False when the request cannot have arrived, and InvalidConfig
        for an address or a certificate that no retry will mend.
        """
