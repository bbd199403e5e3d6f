"""What the OpenAPI description allows, the service answers: no request that is made from it finds a bug."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core import NotSet

from aot.schema.codec import decode
from aot.schema.endpoints import ENDPOINTS
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Scope
from registry.storage.protocol import ServedStore
from tests.builders import a_profile, a_spec
from tests.service import Service, a_service

EXAMPLES = 15
DESCRIPTION = "/schema/openapi.json"
LINKS = {("GET", "/blobs/{digest}"), ("PUT", "/blobs/{digest}"), ("HEAD", "/blobs/{digest}")}
OPERATIONS = sorted({(row.method, row.path) for row in ENDPOINTS.values()} | LINKS)
OF_AN_ATTEMPT = {row.path for row in ENDPOINTS.values() if row.scope is Scope.BUILD}
# One service takes every request of an operation, in whatever state the one before has left it.
LENIENT = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path / "registry") as service:
        service.register(a_profile())
        yield service


def what_is_there(service: Service) -> tuple[dict[str, str], str]:
    """Values of path parameters that lead to something, and the token of an attempt that runs."""
    bundle = service.published(a_spec(), tags=("latest",)).bundle
    spec = a_spec(name="other")
    claim = service.claim(spec.profile, build=service.submit(spec).build.id)
    known = {"build": claim.build, "digest": bundle, "target": "latest", "tag": "latest"}
    return {**known, "namespace": "default", "name": a_spec().name}, claim.token


def requests_for(service: Service, method: str, path: str, *, known: dict[str, str]) -> st.SearchStrategy[Any]:
    """Requests that the description allows, with names of things that are there; with any text; and others."""
    description = service.http.get(DESCRIPTION).json()
    spelled = {
        "Digest": [known["digest"], f"sha256:{'0' * 64}"],
        "Name": [known["name"], a_profile().name, "worker-1"],
        "Namespace": ["default", "other"],
        "Tag": ["latest", "v1"],
        "Reference": ["default/mini:latest"],
        "Capability": [a_profile().capability, "cuda:sm_90"],
    }
    real = schemathesis.openapi.from_dict(with_spellings(description, spelled))[path][method]
    free = schemathesis.openapi.from_dict(description)[path][method]
    allowed, refused = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
    return st.one_of(
        real.as_strategy(generation_mode=allowed),
        free.as_strategy(generation_mode=allowed),
        free.as_strategy(generation_mode=refused),
    )


def with_spellings(part: Any, spelled: dict[str, list[str]]) -> Any:
    """The description, saying of each kind of text which values there are: a random one never parses."""
    if isinstance(part, list):
        return [with_spellings(one, spelled) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "string" and part.get("title") in spelled:
        return {"type": "string", "enum": [str(value) for value in spelled[part["title"]]]}
    return {name: with_spellings(one, spelled) for name, one in part.items()}


def send(service: Service, case: Any, place: dict[str, str], *, token: str) -> Any:
    values = {**(case.path_parameters or {}), **place}
    url = re.sub(r"{(\w+)}", lambda match: quote(str(values[match[1]]), safe=""), case.path)
    headers = {"authorization": f"Bearer {token}", "content-type": case.media_type or "application/json"}
    return service.http.request(case.method, url, params=case.query, content=content_of(case.body), headers=headers)


def content_of(body: Any) -> bytes | None:
    if isinstance(body, NotSet):
        return None
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def test_the_description_names_every_endpoint(service: Service) -> None:
    paths = service.http.get(DESCRIPTION).json()["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    links = LINKS if isinstance(service.deps.store, ServedStore) else set()
    assert {one for one in OPERATIONS if one not in LINKS} | links == {
        one for one in described if not one[1].startswith("/schema")
    }


def marked(operation: tuple[str, str]) -> Any:
    on_files = pytest.mark.embedded("links of an object store lead past the registry")
    return pytest.param(*operation, marks=on_files if operation in LINKS else ())


@pytest.mark.parametrize(("method", "path"), [marked(operation) for operation in OPERATIONS])
def test_what_the_description_allows_finds_no_bug(service: Service, method: str, path: str) -> None:
    known, attempt = what_is_there(service)
    requests = requests_for(service, method, path, known=known)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=LENIENT,
    )
    @given(case=requests, real=st.booleans())
    def check(case: Any, real: bool) -> None:
        place = {name: known[name] for name in case.path_parameters or {} if real and name in known}
        answer = send(service, case, place, token=attempt if path in OF_AN_ATTEMPT else service.admin)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400 and method != "HEAD":
            assert decode(answer.content, ErrorBody).message

    check()
