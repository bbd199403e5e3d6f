"""A registry in this process, for tests: the real application with a clock to turn, on SQLite and a directory store.

Or on what `tests.stack` is told.

    with a_service(tmp_path) as service:
        service.register(a_profile())
        view = service.submit(a_spec()).build
        claim = service.claim("cpu-v3")
        service.publish(claim)

Refusals are raised as the classes that a client would raise.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from litestar.testing import TestClient

from aot.schema.codec import decode, encode
from aot.schema.digest import Digest
from aot.schema.endpoints import ENDPOINTS
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile
from aot.schema.spec import Blob, Spec
from aot.schema.wire.blobs import OpenUploadsRequest
from aot.schema.wire.builds import Claim, ClaimReply, ClaimRequest, SubmitReply, SubmitRequest, Ticket
from aot.schema.wire.bundles import PublishReply, PublishRequest, PushRequest
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import RegisterReply, RegisterRequest, Scope
from registry.db.migrate import migrate
from registry.deps import Deps, build_deps
from registry.queue import Queue, RecordingQueue
from registry.services import tokens
from registry.services.callers import Callers
from registry.services.sweep import Swept, sweep
from registry.settings import Settings
from registry.storage.directory import DirectoryBlobStore
from registry.storage.place import S3Place
from tests.builders import BYTES, a_manifest, manifest_text
from tests.stack import Stack, a_place, standing
from tests.standing import an_app

URL = "http://testserver.local"


@dataclass
class TurnedClock:
    """Stands still until a test turns it on. Begins at the present, because links are checked against the real one."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class SentQueue(RecordingQueue):
    """One that sends to a broker too."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue = queue

    def send(self, queue: str, ticket: Ticket) -> None:
        super().send(queue, ticket)
        self._queue.send(queue, ticket)


class Http(TestClient[Any]):
    """A client of the application, and of the object store to which its links lead. `store`: where links begin."""

    def __init__(self, app: Any, *, store: str) -> None:
        super().__init__(app, base_url=URL, raise_server_exceptions=False)
        self._store = store
        # Without certificates, which take longer to read than most tests run; without the environment's proxies.
        self._network = httpx.Client(timeout=30, verify=False, trust_env=False) if store else None

    def leads_away(self, url: str) -> bool:
        return bool(self._store) and url.startswith(self._store)

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        if self._network is not None and self.leads_away(str(request.url)):
            return self._network.send(request)
        return super().send(request, **options)

    def __exit__(self, *args: object) -> None:
        if self._network is not None:
            self._network.close()
        super().__exit__(*args)


@dataclass(frozen=True)
class Service:
    deps: Deps
    http: Http
    clock: TurnedClock
    queue: RecordingQueue
    admin: str  # a token for everything

    def token(self, *scopes: Scope, namespaces: Iterable[str] = (), seconds: float | None = None) -> str:
        """Issue a token, as an operator does."""
        with self.deps.sessions.transaction() as session:
            return tokens.issue(
                "test",
                scopes=scopes,
                namespaces=tuple(Namespace(namespace) for namespace in namespaces),
                expires_at=self.clock() + timedelta(seconds=seconds) if seconds else None,
                now=self.clock(),
                session=session,
            )

    def call(
        self,
        endpoint: str,
        body: Any = None,
        /,
        *,
        token: str | None = None,
        query: dict[str, Any] | None = None,
        **place: Any,
    ) -> Any:
        """Call the endpoint; return its reply, or raise what it refuses with. `token` None: the administrator's."""
        row = ENDPOINTS[endpoint]
        path = re.sub(r"{(\w+)}", lambda match: quote(str(place[match[1]]), safe=""), row.path)
        answer = self.http.request(
            row.method,
            path,
            content=None if body is None else encode(body),
            params=query,
            headers={"authorization": f"Bearer {self.admin if token is None else token}"},
        )
        if answer.status_code >= 400:
            raise decode(answer.content, ErrorBody).to_error()
        return None if row.reply is None else decode(answer.content, row.reply)

    def upload(self, blobs: Iterable[Blob], *, namespace: str = "default", token: str | None = None) -> list[Digest]:
        """Put what the namespace lacks; return which blobs that were."""
        request = OpenUploadsRequest(namespace=Namespace(namespace), blobs=tuple(blobs))
        links = self.call("open_uploads", request, token=token).links
        for link in links:
            answer = self.http.request(link.method, link.url, content=BYTES[link.digest], headers=link.headers)
            # 412: the object store has it already, of another namespace.
            assert answer.status_code < 300 or answer.status_code == 412, answer.text
        return [link.digest for link in links]

    def register(self, *profiles: Profile, worker: str = "worker-1") -> RegisterReply:
        return self.call("register_worker", RegisterRequest(worker=Name(worker), profiles=profiles))

    def submit(self, spec: Spec, *, token: str | None = None, **fields: Any) -> SubmitReply:
        """Upload the source, then submit."""
        self.upload(spec.blobs, namespace=spec.namespace, token=token)
        return self.call("submit", SubmitRequest(spec=spec, **fields), token=token)

    def ask(self, *profiles: str, worker: str = "worker-1", build: str | None = None) -> ClaimReply:
        names = tuple(Name(profile) for profile in profiles)
        return self.call("claim", ClaimRequest(worker=Name(worker), profiles=names, build=build))

    def claim(self, *profiles: str, worker: str = "worker-1", build: str | None = None) -> Claim:
        reply = self.ask(*profiles, worker=worker, build=build)
        assert reply.claim is not None, reply.waiting
        return reply.claim

    def publish(self, claim: Claim, manifest: Manifest | None = None) -> PublishReply:
        """Upload the bundle's blobs and publish it; by default one that is proven."""
        manifest = manifest or a_manifest(claim.spec, profile=claim.profile)
        self.upload(manifest.blobs, namespace=manifest.namespace, token=claim.token)
        text, _ = manifest_text(manifest)
        return self.call("publish", PublishRequest(manifest=text), token=claim.token, build=claim.build)

    def published(self, spec: Spec, **fields: Any) -> PublishReply:
        """Submit, claim and publish."""
        build = self.submit(spec, **fields).build
        return self.publish(self.claim(spec.profile, build=build.id))

    def push(self, manifest: Manifest, *, token: str | None = None, **fields: Any) -> PublishReply:
        """Upload source and blobs, then push."""
        self.upload((*manifest.spec.blobs, *manifest.blobs), namespace=manifest.namespace, token=token)
        text, _ = manifest_text(manifest)
        return self.call("push", PushRequest(manifest=text, **fields), token=token)

    def sweep(self) -> Swept:
        return sweep(self.deps)

    def overwrite(self, digest: Digest, content: bytes) -> None:
        """Put these bytes where the blob is, behind the back of its store."""
        store: Any = self.deps.store
        if isinstance(store, DirectoryBlobStore):
            path = store.root / digest.hex[:2] / digest.hex[2:]
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                os.chmod(path, 0o644)
            path.write_bytes(content)
        else:
            store._client.put_object(Bucket=store._bucket, Key=store._key(digest), Body=content)


@contextmanager
def a_service(data_dir: Path, *, database_url: str | None = None, **environ: str) -> Iterator[Service]:
    """A service on a fresh database, by default SQLite in `data_dir`; `environ` changes settings."""
    with a_place(data_dir, database_url=database_url) as place:
        settings = Settings.from_environ({"AOT_DATA_DIR": str(data_dir), "AOT_PUBLIC_URL": URL, **place, **environ})
        clock, built = TurnedClock(), build_deps(settings)
        queue = SentQueue(built.queue) if standing() is Stack.SERVERS else RecordingQueue()
        callers = Callers(monotonic=lambda: clock().timestamp())
        deps = replace(built, clock=clock, queue=queue, callers=callers)
        if database_url is not None:
            migrate(deps.sessions)
        with closing(built.queue), an_app(deps) as app, Http(app, store=_endpoint_of(settings)) as http:
            service = Service(deps, http, clock, queue, admin="")
            yield replace(service, admin=service.token(Scope.ADMIN))


def _endpoint_of(settings: Settings) -> str:
    """Where the links of an object store begin; empty where they lead to the registry."""
    if not settings.blob_url.startswith("s3:"):
        return ""
    place = S3Place.parse(settings.blob_url)
    return place.public_endpoint or place.endpoint or ""
