"""Who may call what: every endpoint of the table, tokens of every kind, and what strangers learn."""

from typing import Any

import pytest

from aot.errors import (
    AotError,
    BuildNotFound,
    BundleNotFound,
    Forbidden,
    InvalidInput,
    LeaseLost,
    NotFound,
    TagNotFound,
    Unauthenticated,
)
from aot.schema.digest import Digest
from aot.schema.endpoints import ENDPOINTS
from aot.schema.names import Name, Namespace, Reference
from aot.schema.wire import blobs, builds, bundles, workers
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Outcome, Receipt, Scope, TokenRequest
from tests.builders import a_blob, a_profile, a_spec, an_environment
from tests.service import Service, a_service

DIGEST = Digest.of(b"some bundle")
PLACES = {
    "build": "b",
    "digest": DIGEST,
    "namespace": "default",
    "name": "mini",
    "target": "latest",
    "tag": "latest",
}

# One well-formed body for every request type of the table.
BODIES: dict[Any, Any] = {
    None: None,
    builds.SubmitRequest: builds.SubmitRequest(spec=a_spec()),
    builds.CancelRequest: builds.CancelRequest(),
    builds.RetryRequest: builds.RetryRequest(),
    builds.ClaimRequest: builds.ClaimRequest(worker=Name("w"), profiles=(Name("cpu-v3"),)),
    builds.ProgressRequest: builds.ProgressRequest(),
    builds.FailRequest: builds.FailRequest(error=ErrorBody(code="backend-failed", message="no")),
    builds.ReleaseRequest: builds.ReleaseRequest(reason="shutting down"),
    bundles.PublishRequest: bundles.PublishRequest(manifest="{}"),
    bundles.PushRequest: bundles.PushRequest(manifest="{}"),
    bundles.FindRequest: bundles.FindRequest(specs=()),
    bundles.TagRequest: bundles.TagRequest(bundle=DIGEST),
    bundles.WithdrawRequest: bundles.WithdrawRequest(reason="wrong"),
    blobs.OpenUploadsRequest: blobs.OpenUploadsRequest(namespace=Namespace("default"), blobs=(a_blob(),)),
    blobs.DownloadLinksRequest: blobs.DownloadLinksRequest(),
    workers.RegisterRequest: workers.RegisterRequest(worker=Name("w"), profiles=(a_profile(),)),
    workers.Receipt: Receipt(
        reference=Reference("default/mini:latest"),
        bundle=None,
        environment=an_environment(),
        outcome=Outcome.EAGER,
    ),
    workers.TokenRequest: TokenRequest(label="ci", scopes=(Scope.READ,)),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with a_service(tmp_path_factory.mktemp("auth")) as service:
        yield service


def call(service: Service, name: str, token: str) -> Any:
    row = ENDPOINTS[name]
    place = {key: value for key, value in PLACES.items() if f"{{{key}}}" in row.path}
    return service.call(name, BODIES[row.request], token=token, **place)


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer  ", "Basic abc", "Bearer aot_unknown"])
def test_every_endpoint_refuses_a_caller_without_a_known_token(service: Service, name: str, header: str | None) -> None:
    path = ENDPOINTS[name].path
    for key, value in PLACES.items():
        path = path.replace(f"{{{key}}}", value)
    headers = {} if header is None else {"authorization": header}
    answer = service.http.request(ENDPOINTS[name].method, path, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("name", ENDPOINTS)
def test_every_endpoint_refuses_an_expired_token(service: Service, name: str) -> None:
    token = service.token(Scope.ADMIN, seconds=10)
    service.clock.advance(10)
    with pytest.raises(Unauthenticated):
        call(service, name, token)


@pytest.mark.parametrize("name", [name for name, row in ENDPOINTS.items() if row.scope is not None])
def test_every_endpoint_refuses_a_token_without_its_scope(service: Service, name: str) -> None:
    others = [scope for scope in Scope if scope not in (ENDPOINTS[name].scope, Scope.ADMIN)]
    with pytest.raises(AotError) as refusal:
        call(service, name, service.token(*others))
    # What reads one thing by name says the thing is not there, in the words it has for what does not exist.
    hides = ENDPOINTS[name].scope is Scope.READ and "{" in ENDPOINTS[name].path
    assert isinstance(refusal.value, NotFound if hides else Forbidden)


@pytest.mark.parametrize("name", [name for name, row in ENDPOINTS.items() if row.scope is not Scope.BUILD])
def test_an_administrator_passes_every_scope_but_that_of_an_attempt(service: Service, name: str) -> None:
    try:
        call(service, name, service.admin)
    except AotError as error:
        assert not isinstance(error, Unauthenticated | Forbidden)


@pytest.mark.parametrize("name", [name for name, row in ENDPOINTS.items() if row.scope is Scope.BUILD])
def test_nobody_acts_for_an_attempt_without_its_token(service: Service, name: str) -> None:
    with pytest.raises(Forbidden):
        call(service, name, service.admin)


def test_what_the_framework_adds_needs_a_token_too(service: Service) -> None:
    assert service.http.options("/v1/builds").status_code == 401
    known = {"authorization": f"Bearer {service.token()}"}
    assert service.http.options("/v1/builds", headers=known).status_code == 204


def test_pages_without_secrets_are_open(service: Service) -> None:
    assert service.http.get("/").status_code == 200
    assert service.http.get("/schema/openapi.json").status_code == 200


def test_what_lies_in_another_namespace_is_not_found_in_the_same_words_as_what_does_not_exist(
    tmp_path,
) -> None:
    with a_service(tmp_path) as service:
        service.register(a_profile())
        reply = service.published(a_spec(namespace="theirs"), tags=("v1",))
        stranger = service.token(Scope.READ, Scope.SUBMIT, Scope.TAG, namespaces=("ours",))
        unknown = Digest.of(b"unknown")

        def answers(call: str, **place: str) -> list[str]:
            with pytest.raises(NotFound) as refusal:
                body = BODIES[ENDPOINTS[call].request]
                service.call(call, body, token=stranger, **place)
            return [type(refusal.value).__name__, refusal.value.message, refusal.value.hint]

        def compare(call: str, kind: type[NotFound], there: dict[str, str], absent: dict[str, str]) -> None:
            found, missing = answers(call, **there), answers(call, **absent)
            assert found[0] == kind.__name__
            for key in there:
                found[1] = found[1].replace(there[key], "X")
                missing[1] = missing[1].replace(absent[key], "X")
            assert found == missing

        model = {"namespace": "theirs", "name": "mini"}
        for name in ("get_build", "get_build_log", "cancel"):
            compare(name, BuildNotFound, {"build": reply.build}, {"build": "0" * 28})
        for name in ("get_bundle", "withdraw", "get_download_links"):
            compare(name, BundleNotFound, {"digest": reply.bundle}, {"digest": unknown})
        compare("resolve", BundleNotFound, {"target": reply.bundle, **model}, {"target": unknown, **model})
        compare("resolve", TagNotFound, {"target": "v1", **model}, {"target": "v2", **model})

        assert service.call("list_builds", token=stranger).builds == ()
        assert service.call("search", token=stranger).bundles == ()
        [target] = service.call(
            "find", bundles.FindRequest(specs=(a_spec(namespace="theirs"),)), token=stranger
        ).targets
        assert (target.bundle, target.build) == (None, None)
        for body in (builds.SubmitRequest(spec=a_spec(namespace="theirs")),):
            with pytest.raises(Forbidden):
                service.call("submit", body, token=stranger)
        with pytest.raises(Forbidden):
            service.upload([a_blob()], namespace="theirs", token=stranger)


def test_the_token_of_a_claim_works_for_that_build_while_that_attempt_holds_the_lease(tmp_path) -> None:
    with a_service(tmp_path) as service:
        service.register(a_profile())
        service.submit(a_spec("one"))
        service.submit(a_spec("two"))
        first, second = service.claim("cpu-v3"), service.claim("cpu-v3")
        assert service.call("renew", token=first.token, build=first.build).stop is None
        with pytest.raises(Forbidden):
            service.call("renew", token=first.token, build=second.build)
        service.upload([a_blob(b"new")], token=first.token)
        with pytest.raises(Forbidden):
            service.upload([a_blob(b"new")], namespace="other", token=first.token)
        with pytest.raises(Forbidden):
            service.call("list_builds", token=first.token)
        service.clock.advance(service.deps.settings.lease.total_seconds())
        with pytest.raises(LeaseLost):
            service.call("renew", token=first.token, build=first.build)
        with pytest.raises(LeaseLost):
            service.upload([a_blob(b"newer")], token=first.token)


def test_a_created_token_does_what_was_asked_until_it_expires(service: Service) -> None:
    request = TokenRequest(label="ci", scopes=(Scope.READ,), namespaces=(Namespace("ours"),), expires_in_seconds=60)
    reply = service.call("create_token", request)
    assert (reply.expires_at - service.clock()).total_seconds() == 60
    assert service.call("list_builds", token=reply.token).builds == ()
    with pytest.raises(Forbidden):
        service.call("create_token", request, token=reply.token)
    service.clock.advance(60)
    with pytest.raises(Unauthenticated):
        service.call("list_builds", token=reply.token)


def test_a_created_token_reaches_no_further_than_its_creator(service: Service) -> None:
    limited = service.token(Scope.ADMIN, namespaces=("ours", "also-ours"))
    for namespaces in ((), ("theirs",), ("ours", "theirs")):
        request = TokenRequest(label="x", scopes=(Scope.READ,), namespaces=tuple(map(Namespace, namespaces)))
        with pytest.raises(Forbidden):
            service.call("create_token", request, token=limited)
    request = TokenRequest(label="x", scopes=(Scope.READ,), namespaces=(Namespace("ours"),))
    assert service.call("create_token", request, token=limited).token.startswith("aot_")


@pytest.mark.parametrize(
    ("scopes", "seconds"), [((Scope.BUILD,), None), ((), None), ((Scope.READ,), 0), ((Scope.READ,), -1)]
)
def test_a_token_that_makes_no_sense_is_refused(service: Service, scopes: tuple[Scope, ...], seconds: float) -> None:
    with pytest.raises(InvalidInput):
        service.call("create_token", TokenRequest(label="x", scopes=scopes, expires_in_seconds=seconds))


@pytest.mark.embedded("reads SQLite's files")
def test_secrets_are_not_kept(service: Service) -> None:
    secret = service.token(Scope.READ)
    for path in service.deps.settings.data_dir.glob("registry.sqlite3*"):
        assert secret.encode() not in path.read_bytes()
