"""One call from an address and a token to a client."""

from aot.client.http import HttpTransport
from aot.client.registry import RegistryClient
from aot.client.retry import RetryPolicy

TIMEOUT_SECONDS = 30.0


def open_client(
    url: str, token: str | None, *, timeout_seconds: float = TIMEOUT_SECONDS, attempts: int = 5
) -> RegistryClient:
    """Return a client of the registry at `url`; nothing is sent yet. Raises InvalidConfig for a token that is none.

    `timeout_seconds` bounds each wait for the network, and no attempt at a request begins later than that.
    """
    retry = RetryPolicy(attempts=attempts, budget_seconds=timeout_seconds)
    return RegistryClient(HttpTransport(), url, token, timeout_seconds=timeout_seconds, retry=retry)
