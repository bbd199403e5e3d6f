"""The fleet: workers, profiles, receipts, tokens, keys, health."""

from aot.client.calls import Calls
from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile
from aot.schema.wire.workers import (
    HealthReply,
    KeysReply,
    ProfileListing,
    ReadyReply,
    Receipt,
    RegisterReply,
    RegisterRequest,
    Scope,
    TokenReply,
    TokenRequest,
    WorkerListing,
)


class FleetCalls(Calls):
    def register_worker(self, worker: Name, *, profiles: tuple[Profile, ...]) -> RegisterReply:
        """Say which profiles this worker is, its own first. Raises Conflict when another is one of that name."""
        request = RegisterRequest(worker=worker, profiles=profiles)
        reply: RegisterReply = self.call("register_worker", body=request)
        return reply

    def list_workers(self) -> WorkerListing:
        reply: WorkerListing = self.call("list_workers")
        return reply

    def list_profiles(self) -> ProfileListing:
        reply: ProfileListing = self.call("list_profiles")
        return reply

    def send_receipt(self, receipt: Receipt) -> None:
        """Account for a load. Sent once: a receipt that is lost is lost."""
        self.call("send_receipt", body=receipt)

    def create_token(
        self,
        label: str,
        *,
        scopes: tuple[Scope, ...],
        namespaces: tuple[Namespace, ...] = (),
        expires_in_seconds: float | None = None,
    ) -> TokenReply:
        """The reply is the only place where the secret is shown."""
        request = TokenRequest(label=label, scopes=scopes, namespaces=namespaces, expires_in_seconds=expires_in_seconds)
        reply: TokenReply = self.call("create_token", body=request)
        return reply

    def get_keys(self) -> KeysReply:
        """The registry's public keys. Not a root of trust: that one comes from outside the registry."""
        reply: KeysReply = self.call("get_keys")
        return reply

    def get_health(self) -> HealthReply:
        reply: HealthReply = self.call("get_health")
        return reply

    def get_ready(self) -> ReadyReply:
        reply: ReadyReply = self.call("get_ready")
        return reply
