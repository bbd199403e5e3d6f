"""A registry in memory that can lie, for stories about the client: it is a `Transport`, so no socket is involved.

    simulator = RegistrySimulator()
    digest = simulator.add(a_manifest(), tags=("latest",))
    simulator.contents[blob.digest] = b"other bytes"       # serves wrong bytes
    simulator.cut_after(1000, times=2)                     # ends two bodies early
    simulator.refuse(StorageUnavailable("..."), times=3)   # answers 503 three times
    simulator.unreachable = True                           # is gone
    client = simulator.client()

It signs with its own key, `simulator.key`; `simulator.trusted` is the set that a client would be given from outside.
"""

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from aot.client import Body, RegistryClient, Reply, RetryPolicy
from aot.errors import (
    AotError,
    BlobNotFound,
    BundleNotFound,
    BundleWithdrawn,
    MalformedDocument,
    NotFound,
    ProfileNotFound,
    RegistryUnreachable,
    TagNotFound,
    Unauthenticated,
    Unavailable,
)
from aot.keys import factors_of, key_of
from aot.schema.codec import decode, encode
from aot.schema.digest import Digest
from aot.schema.endpoints import ENDPOINTS
from aot.schema.manifest import Manifest, Statement, decode_manifest, encode_manifest
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.profile import Profile
from aot.schema.spec import Blob, Spec
from aot.schema.wire.blobs import DownloadLinksRequest, Link, LinksReply, OpenUploadsRequest
from aot.schema.wire.bundles import FindReply, FindRequest, FindTarget, ResolveReply, SignedManifest
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import HealthReply, KeysReply, ProfileListing, ProfileView, Receipt
from aot.trust import SigningKey, TrustedKeys, sign
from tests.builders import BYTES

URL = "http://registry.test"
TOKEN = "a-token"


class Sent(NamedTuple):
    """One request as it arrived."""

    method: str
    url: str
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        return urlsplit(self.url).path


@dataclass
class SimulatedReply:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_at: int | None = None  # the connection ends after this many bytes of the body
    position: int = 0
    closed: bool = False

    def read(self, limit_bytes: int) -> bytes:
        end = len(self.body) if self.cut_at is None else min(self.cut_at, len(self.body))
        if self.position >= end < len(self.body):
            raise RegistryUnreachable("the connection was cut", details={"sent": True})
        chunk = self.body[self.position : min(end, self.position + min(limit_bytes, 4096))]
        self.position += len(chunk)
        return chunk

    def close(self) -> None:
        self.closed = True


class RegistrySimulator:
    def __init__(self, key: SigningKey | None = None) -> None:
        self.key = key or SigningKey.generate()
        self.contents: dict[Digest, bytes] = {}
        self.manifests: dict[Digest, SignedManifest] = {}
        self.profiles: dict[Name, Profile] = {}
        self.tags: dict[Reference, tuple[Digest, ...]] = {}
        self.withdrawn: dict[Digest, str] = {}
        self.receipts: list[Receipt] = []
        self.sent: list[Sent] = []
        self.replies: list[SimulatedReply] = []
        self.unreachable = False
        self.knows_ranges = True
        self.links_at_once = True  # False: a registry of an older version, or bundles of many blobs
        self._refusals: list[AotError] = []
        self._cuts: list[int] = []
        self._routes: dict[str, Callable[..., Any]] = {
            "resolve": self._resolve,
            "find": self._find,
            "get_download_links": self._links,
            "open_uploads": self._open_uploads,
            "send_receipt": self._receive_receipt,
            "list_profiles": self._list_profiles,
            "get_keys": lambda: KeysReply(keys=(str(self.key.public),)),
            "get_health": lambda: HealthReply(status="ok", version="simulated"),
        }

    @property
    def trusted(self) -> TrustedKeys:
        return TrustedKeys.of([str(self.key.public)])

    def client(self, **deviations: Any) -> RegistryClient:
        """A client of this registry that waits for nothing between attempts."""
        retry = deviations.pop("retry", RetryPolicy(attempts=4, sleep=lambda _: None))
        return RegistryClient(self, URL, deviations.pop("token", TOKEN), retry=retry, **deviations)

    # What it holds

    def add(
        self,
        manifest: Manifest,
        *,
        tags: tuple[str, ...] = ("latest",),
        contents: Mapping[Digest, bytes] | None = None,
        key: SigningKey | None = None,
    ) -> Digest:
        """Publish a bundle, its blobs taken from `contents` or from what the builders made. A tag moves to it."""
        content, digest = encode_manifest(manifest)
        statement = Statement(
            manifest=digest, namespace=manifest.namespace, name=manifest.name, build_key=manifest.build_key
        )
        self.manifests[digest] = SignedManifest(
            digest=digest,
            manifest=content.decode(),
            envelope=sign(statement, key or self.key),
            tags=tuple(Tag(tag) for tag in tags),
        )
        self.profiles[manifest.profile.name] = manifest.profile
        known = {**BYTES, **(contents or {})}
        self.contents.update({blob.digest: known[blob.digest] for blob in manifest.blobs})
        for tag in tags:
            self._move(Reference.parse(f"{manifest.namespace}/{manifest.name}:{tag}"), digest, manifest)
        return digest

    def _move(self, reference: Reference, digest: Digest, manifest: Manifest) -> None:
        # One bundle a profile stands under a tag.
        kept = tuple(
            other
            for other in self.tags.get(reference, ())
            if decode_manifest(self.manifests[other].manifest.encode()).profile.name != manifest.profile.name
        )
        self.tags[reference] = (*kept, digest)

    def withdraw(self, digest: Digest, *, reason: str = "wrong results") -> None:
        self.withdrawn[digest] = reason

    # How it fails

    def refuse(self, error: AotError, *, times: int = 1) -> None:
        """Answer the next requests, blobs included, with this error."""
        self._refusals += [error] * times

    def cut_after(self, bytes_sent: int, *, times: int = 1) -> None:
        """End the bodies of the next blobs after so many bytes each."""
        self._cuts += [bytes_sent] * times

    # Transport

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body = None, timeout_seconds: float
    ) -> Reply:
        self.sent.append(Sent(method, url, dict(headers)))
        if self.unreachable:
            raise RegistryUnreachable("could not reach the simulator", details={"sent": False})
        content = body if isinstance(body, bytes) else b"" if body is None else body.read()
        try:
            if self._refusals:
                raise self._refusals.pop(0)
            reply = self._answer(method, url, headers, content)
        except AotError as error:
            reply = SimulatedReply(_status_of(error), encode(ErrorBody.of(error)))
        self.replies.append(reply)
        return reply

    def _answer(self, method: str, url: str, headers: Mapping[str, str], content: bytes) -> SimulatedReply:
        path = urlsplit(url).path
        if path.startswith("/blobs/"):
            return self._blob(method, Digest.parse(path.removeprefix("/blobs/")), headers, content)
        if headers.get("authorization") != f"Bearer {TOKEN}":
            raise Unauthenticated("the token is not known")
        for name, endpoint in ENDPOINTS.items():
            shape = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", endpoint.path)
            match = re.fullmatch(shape, path)
            if match and endpoint.method == method and name in self._routes:
                values: dict[str, Any] = {key: unquote(value) for key, value in match.groupdict().items()}
                values |= {key: value[0] for key, value in parse_qs(urlsplit(url).query).items()}
                if endpoint.request is not None:
                    values["request"] = decode(content, endpoint.request)
                answer = self._routes[name](**values)
                return SimulatedReply(204) if answer is None else SimulatedReply(200, encode(answer))
        raise NotFound(f"the simulator does not serve {method} {path}")

    # Endpoints

    def _resolve(self, namespace: str, name: str, target: str, links: str = "false") -> ResolveReply:
        if target.startswith("sha256:"):
            pinned = [Digest.parse(digest) for digest in target.split(",")]
            digests = tuple(digest for digest in pinned if digest in self.manifests)
            missing: AotError = BundleNotFound(f"there is no bundle {pinned[0]}")
        else:
            reference = Reference.parse(f"{namespace}/{name}:{target}")
            digests = self.tags.get(reference, ())
            missing = TagNotFound(f"there is no {reference}")
        if not digests:
            raise missing
        live = tuple(digest for digest in digests if digest not in self.withdrawn)
        if not live:
            reason = self.withdrawn[digests[0]]
            raise BundleWithdrawn(f"{digests[0]} was withdrawn: {reason}", details={"reason": reason})
        signed = tuple(self._signed(digest) for digest in live)
        if links == "false" or not self.links_at_once:
            return ResolveReply(bundles=signed)
        blobs: dict[Blob, None] = {}
        for one in signed:
            with contextlib.suppress(MalformedDocument):  # of a newer version
                blobs |= dict.fromkeys(decode_manifest(one.manifest.encode()).blobs)
        return ResolveReply(bundles=signed, links=tuple(self._link(blob, "GET") for blob in blobs))

    def _list_profiles(self) -> ProfileListing:
        return ProfileListing(
            profiles=tuple(ProfileView(profile=one, live_workers=1, queued=0) for one in self.profiles.values())
        )

    def _find(self, request: FindRequest) -> FindReply:
        return FindReply(targets=tuple(self._target(spec) for spec in request.specs))

    def _target(self, spec: Spec) -> FindTarget:
        if spec.profile not in self.profiles:
            raise ProfileNotFound(f"there is no profile {spec.profile}")
        factors = factors_of(spec, self.profiles[spec.profile])
        key = key_of(factors)
        answers = (
            signed
            for digest, signed in self.manifests.items()
            if decode_manifest(signed.manifest.encode()).build_key == key and digest not in self.withdrawn
        )
        return FindTarget(build_key=key, factors=factors, bundle=next(answers, None))

    def _links(self, digest: str, request: DownloadLinksRequest) -> LinksReply:
        signed = self._signed(Digest.parse(digest))
        if signed.digest in self.withdrawn:
            raise BundleWithdrawn(f"{digest} was withdrawn", details={"reason": self.withdrawn[signed.digest]})
        blobs = decode_manifest(signed.manifest.encode()).blobs
        wanted = set(request.digests) or {blob.digest for blob in blobs}
        return LinksReply(links=tuple(self._link(blob, "GET") for blob in blobs if blob.digest in wanted))

    def _open_uploads(self, request: OpenUploadsRequest) -> LinksReply:
        missing = (blob for blob in request.blobs if blob.digest not in self.contents)
        return LinksReply(links=tuple(self._link(blob, "PUT") for blob in missing))

    def _receive_receipt(self, request: Receipt) -> None:
        self.receipts.append(request)

    def _signed(self, digest: Digest) -> SignedManifest:
        if digest not in self.manifests:
            raise BundleNotFound(f"there is no bundle {digest}")
        return self.manifests[digest]

    def _link(self, blob: Blob, method: str) -> Link:
        url = f"{URL}/blobs/{blob.digest}?sig=simulated"
        return Link(digest=blob.digest, size_bytes=blob.size_bytes, url=url, method=method)

    def _blob(self, method: str, digest: Digest, headers: Mapping[str, str], content: bytes) -> SimulatedReply:
        if method == "PUT":
            self.contents[digest] = content
            return SimulatedReply(201)
        if digest not in self.contents:
            raise BlobNotFound(f"there is no blob {digest}")
        body = self.contents[digest]
        asked = re.fullmatch(r"bytes=(\d+)-", headers.get("range", ""))
        cut_at = self._cuts.pop(0) if self._cuts else None
        if asked is None or not self.knows_ranges:
            return SimulatedReply(200, body, {"content-length": str(len(body))}, cut_at)
        start = int(asked[1])
        if start >= len(body):
            return SimulatedReply(416, headers={"content-range": f"bytes */{len(body)}"})
        part = {"content-range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
        return SimulatedReply(206, body[start:], part, cut_at)


def a_reference(namespace: str = "default", name: str = "mini", *, tag: str = "latest") -> Reference:
    return Reference.parse(f"{Namespace.parse(namespace)}/{Name.parse(name)}:{tag}")


def _status_of(error: AotError) -> int:
    match error:
        case Unauthenticated():
            return 401
        case NotFound():
            return 404
        case BundleWithdrawn():
            return 410
        case Unavailable():
            return 503
    return 400
