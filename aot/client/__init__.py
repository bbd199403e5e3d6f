"""The HTTP client of the registry: one method an endpoint, and the transfer of blobs by links.

Used by every flow of design.md, section 5, that starts outside the registry. Refusals arrive as the error classes
of `aot.errors`; only the family Unavailable is retried. The HTTP machinery is imported when the first request is
made, so that importing this package costs nothing.
"""

from aot.client.http import HttpTransport
from aot.client.registry import RegistryClient
from aot.client.retry import RetryPolicy
from aot.client.transport import Body, Reply, Transport

__all__ = ["Body", "HttpTransport", "RegistryClient", "Reply", "RetryPolicy", "Transport"]
