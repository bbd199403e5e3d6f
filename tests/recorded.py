"""Recorded exchanges: what a released client sent, what its registry answered, and both played again later.

`python -m tests.recorded tests/golden/0.1.0` records a release: run it in a clean checkout of that release. It starts
a registry as the process that it is in production, and walks the release's own client through every endpoint.

What differs from run to run (build ids, tokens, links, the address) is replaced by names made for the fixture, which
are valid values of their kind; so no secret is kept, and each recorded message is still a whole message. Where the
registry gave such a value first, the exchange says where (`learns`), and a replay puts its own in its place.
"""

import contextlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from aot.client import Body, RegistryClient, Reply, RetryPolicy
from aot.client.http import HttpTransport
from aot.errors import RegistryError
from aot.schema.endpoints import ENDPOINTS
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Reference, Tag
from aot.schema.recipe import Mode, Recipe
from aot.schema.report import Phase
from aot.schema.spec import Blob
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Outcome, Receipt, Scope

FROZEN = Path(__file__).parent / "golden" / "0.1.0"
ADDRESS = "http://registry.test"
ADMIN = "admin-token"
REFUSALS = "refusals"
LINKS = {"PUT": "put_blob", "GET": "get_blob"}
# What a proxy or a library adds says nothing about the protocol.
REQUEST_HEADERS = ("accept", "authorization", "content-type", "user-agent", "range")
REPLY_HEADERS = ("accept-ranges", "content-range", "content-type", "etag", "www-authenticate")


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and its answer; `step` is its place in the story. A body is JSON, or the text of a blob.

    `learns`: names that first occur in this answer, each with the JSON pointer to it.
    """

    step: int
    endpoint: str
    method: str
    url: str
    headers: dict[str, str] = {}
    body: Any = None
    status: int
    reply_headers: dict[str, str] = {}
    reply: Any = None
    learns: dict[str, str] = {}

    @property
    def refused(self) -> bool:
        return self.status >= 400


def endpoint_of(method: str, path: str) -> str:
    """The name of the endpoint, or of the kind of link, that a request goes to."""
    if path.startswith("/blobs/"):
        return LINKS[method]
    for name, row in ENDPOINTS.items():
        if row.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", row.path), path):
            return name
    raise LookupError(f"no endpoint is {method} {path}")


def load(directory: Path) -> list[Exchange]:
    """Every recorded exchange, in the order of the story."""
    files = sorted((directory / "exchanges").glob("*.json"))
    found = [one for path in files for one in msgspec.json.decode(path.read_bytes(), type=list[Exchange])]
    return sorted(found, key=lambda one: one.step)


def content_of(body: Any) -> bytes:
    """A recorded body as it travels."""
    if body is None:
        return b""
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def at(document: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) leads to."""
    for part in pointer.split("/")[1:]:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def replay(
    exchanges: list[Exchange], send: Callable[[str, str, Mapping[str, str], bytes], tuple[int, bytes]], *, token: str
) -> list[tuple[Exchange, int, bytes]]:
    """Send every recorded request to a registry of today; return each with the status and body it got now.

    `send` takes method, URL (its address already today's where the registry gave it), headers and body. Where an
    answer lacks a value that later requests need, those go out with the recorded name, and are refused.
    """
    names = {ADMIN: token}
    answers = []
    for one in exchanges:
        method, url, headers = one.method, _put(one.url, names), {k: _put(v, names) for k, v in one.headers.items()}
        status, answer = send(method, url, headers, _put(content_of(one.body).decode(), names).encode())
        answers.append((one, status, answer))
        for name, pointer in one.learns.items():
            with contextlib.suppress(KeyError, IndexError, TypeError, msgspec.DecodeError):
                names[name] = at(msgspec.json.decode(answer), pointer)
    return answers


def _put(text: str, names: Mapping[str, str]) -> str:
    # The longest first: one name may be a part of another.
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, names[name])
    return text


class Recorder:
    """A transport that sends, and keeps what was sent and answered."""

    def __init__(self, address: str, admin: str) -> None:
        self.exchanges: list[Exchange] = []
        self._inner = HttpTransport()
        self._names = {admin: ADMIN, address: ADDRESS}
        self._counts: dict[str, int] = {}

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body = None, timeout_seconds: float
    ) -> Reply:
        content = body if isinstance(body, bytes) or body is None else body.read()
        reply = self._inner.send(method, url, headers=headers, body=content, timeout_seconds=timeout_seconds)
        answer = b"".join(iter(lambda: reply.read(1 << 20), b""))
        reply.close()
        name = endpoint_of(method, urlsplit(url).path)
        told = msgspec.json.decode(answer) if answer and not (name in LINKS.values() and reply.status < 400) else answer
        learns = dict(self._learn(told, ""))
        self.exchanges.append(
            Exchange(
                step=len(self.exchanges) + 1,
                endpoint=name,
                method=method,
                url=self._named(url),
                headers={key: self._named(headers[key]) for key in REQUEST_HEADERS if key in headers},
                body=self._recorded(content, raw=name in LINKS.values()),
                status=reply.status,
                reply_headers={key: reply.headers[key] for key in REPLY_HEADERS if key in reply.headers},
                reply=self._recorded(answer, raw=isinstance(told, bytes)),
                learns=learns,
            )
        )
        return _Kept(reply.status, reply.headers, answer)

    def _learn(self, value: Any, pointer: str) -> Iterator[tuple[str, str]]:
        """Give a name to every value of an answer that the next run would have otherwise."""
        if isinstance(value, list):
            for index, one in enumerate(value):
                yield from self._learn(one, f"{pointer}/{index}")
        if not isinstance(value, dict):
            return
        for key, one in value.items():
            if isinstance(one, str) and (made := self._name_for(key, one, value)):
                self._names[one] = made
                yield made, f"{pointer}/{key}"
            else:
                yield from self._learn(one, f"{pointer}/{key}")

    def _name_for(self, key: str, value: str, beside: Mapping[str, Any]) -> str:
        if value in self._names:
            return ""
        match key:
            case "token":
                return self._count("token")
            case "id" | "build":
                return self._count("build")
            case "url":
                return f"{ADDRESS}/blobs/{beside['digest']}?sig={self._count('link')}"
        return ""

    def _count(self, kind: str) -> str:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}-{self._counts[kind]:03}"

    def _named(self, text: str) -> str:
        return _put(text, self._names)

    def _recorded(self, content: bytes | None, *, raw: bool) -> Any:
        if not content:
            return None
        text = self._named(content.decode())
        return text if raw else msgspec.json.decode(text)


class _Kept:
    """An answer that has been read already."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self._left = content

    def read(self, limit_bytes: int) -> bytes:
        part, self._left = self._left[:limit_bytes], self._left[limit_bytes:]
        return part

    def close(self) -> None:
        pass


def walk(open_client: Callable[[str | None], RegistryClient], place: Path) -> None:
    """The story: a model is submitted, built, published, found and withdrawn, another is pushed; and refusals."""
    from tests.builders import a_manifest, a_profile, a_qualification, a_spec, an_environment, manifest_text

    admin = open_client(ADMIN)
    admin.get_health(), admin.get_ready(), admin.get_keys()
    _refused(open_client(None).get_health)
    worker = open_client(admin.create_token("worker", scopes=(Scope.CLAIM,)).token)
    scopes = (Scope.READ, Scope.SUBMIT, Scope.PUSH, Scope.TAG)
    user = open_client(admin.create_token("ci", scopes=scopes, expires_in_seconds=86400.0).token)
    _refused(lambda: user.create_token("more", scopes=(Scope.ADMIN,)))
    profile, name, other = a_profile(), Name("worker-1"), Name("worker-2")
    worker.register_worker(name, profiles=(profile,)), worker.register_worker(other, profiles=(profile,))
    user.list_profiles(), user.list_workers()

    spec, manifest = a_spec(), _proven_bundle()
    _refused(lambda: user.submit(spec))
    _upload(user, spec.blobs, place)
    build = user.submit(spec, tags=(Tag("latest"),), priority=10).build.id
    user.list_builds(name=spec.name, limit=10)
    claim = worker.claim(name, profiles=(profile.name,)).claim
    assert claim is not None
    first = open_client(claim.token)
    with tempfile.TemporaryFile() as file:
        first.get_blob(claim.links[0], file)
    first.renew(build)
    first.report_progress(build, phase=Phase.COMPILING, step="region 1 of 1", lines=("a line", "another"))
    user.get_build(build), user.get_build_log(build, after=1)
    first.release(build, reason="shutting down")
    assert worker.claim(name, profiles=(profile.name,)).claim is None, "who gave it back does not get it at once"
    claim = worker.claim(other, profiles=(profile.name,), build=build).claim
    assert claim is not None
    second = open_client(claim.token)
    _refused(lambda: first.renew(build))
    text, digest = manifest_text(manifest)
    _refused(lambda: second.publish(build, text))
    _upload(second, manifest.blobs, place)
    second.publish(build, text)

    here = Reference("default/mini:latest")
    user.find([spec, a_spec("unknown")])
    user.resolve(here), user.get_build(build)
    user.search(text="min", capability="cpu:x86-64-v3", limit=5), user.get_bundle(digest)
    links = user.get_download_links(digest)
    with tempfile.TemporaryFile() as file:
        user.get_blob(links[0], file)
    user.tag(Reference("default/mini:v1"), digest)
    counters = {"calls": 3, "compiled": 3}
    user.send_receipt(
        Receipt(
            reference=here, bundle=digest, environment=an_environment(), outcome=Outcome.COMPILED, counters=counters
        )
    )
    _refused(lambda: user.resolve(Reference("default/mini:nothing")))

    unproven = a_manifest(
        a_spec(recipe=Recipe(mode=Mode.DEFAULT)), qualification=a_qualification(start=None, agreements=())
    )
    pushed = user.push(manifest_text(unproven)[0], tags=(Tag("pushed"),))
    claim = worker.claim(name, profiles=(profile.name,), build=pushed.build).claim
    assert claim is not None
    third = open_client(claim.token)
    third.get_download_links(pushed.bundle)
    third.fail(claim.build, error=ErrorBody(code="qualification-failed", message="differs", details={"max_error": 1.0}))
    unwanted = user.submit(a_spec(recipe=Recipe(fullgraph=False))).build.id
    user.cancel(unwanted, reason="not needed")
    _refused(lambda: user.cancel(build))
    user.withdraw(digest, reason="wrong weights")
    _refused(lambda: user.resolve(Reference(f"default/mini@{digest}")))


def _proven_bundle() -> Manifest:
    """A bundle that is proven beyond what the release asks for, so that a stricter rule still lets it through."""
    from tests.builders import a_manifest, a_qualification, a_speed, an_agreement, an_artifact

    points = [{"batch": batch} for batch in (1, 2, 16, 31, 32)]
    agreements = [an_agreement(point=point, variant=variant) for point in points for variant in ("", "second call")]
    speeds = tuple(a_speed(point=point) for point in points)
    return a_manifest(
        artifacts=(an_artifact(speeds=speeds),), qualification=a_qualification(agreements=tuple(agreements))
    )


def _upload(client: RegistryClient, blobs: tuple[Blob, ...], place: Path) -> None:
    from tests.builders import BYTES, a_spec

    for link in client.open_uploads(a_spec().namespace, blobs):
        path = place / link.digest.hex
        path.write_bytes(BYTES[link.digest])
        client.put_blob(link, path)


def _refused(call: Callable[[], object]) -> None:
    try:
        call()
    except RegistryError:
        return
    raise AssertionError("this was to be refused")


def record(directory: Path) -> None:
    """Write `directory/exchanges`: one file for each endpoint, and one for refusals."""
    from tests.deployment import Deployment

    with tempfile.TemporaryDirectory() as place, Deployment(Path(place) / "service", lease_seconds=60) as service:
        admin = (service.data_dir / "token").read_text().strip()
        recorder = Recorder(service.url, admin)

        def open_client(token: str | None) -> RegistryClient:
            secret = admin if token == ADMIN else token
            return RegistryClient(recorder, service.url, secret, retry=RetryPolicy(attempts=1))

        walk(open_client, Path(place))
    target = directory / "exchanges"
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.json"):
        old.unlink()
    for name in sorted({file_of(one) for one in recorder.exchanges}):
        content = msgspec.json.encode([one for one in recorder.exchanges if file_of(one) == name], order="sorted")
        (target / f"{name}.json").write_bytes(msgspec.json.format(content, indent=1) + b"\n")


def file_of(exchange: Exchange) -> str:
    return REFUSALS if exchange.refused else exchange.endpoint


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        record(Path(sys.argv[1]) if len(sys.argv) > 1 else FROZEN)
