"""The application's routes are the table's endpoints, and the description says so."""

import re

import pytest

from aot.schema.endpoints import ENDPOINTS
from registry.storage.protocol import ServedStore
from tests.service import Service, a_service

PUBLIC = {("GET", "/")}
OF_NO_TABLE = {("GET", "/metrics")}  # wants a token, as what is in the table does
OF_LINKS = {("PUT", "/blobs/{digest}"), ("GET", "/blobs/{digest}"), ("HEAD", "/blobs/{digest}")}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with a_service(tmp_path_factory.mktemp("routes")) as service:
        yield service


def test_the_route_table_equals_the_endpoints(service: Service) -> None:
    found = {
        (method, re.sub(r":\w+}", "}", route.path_format if hasattr(route, "path_format") else route.path))
        for route in service.http.app.routes
        for handler in route.route_handlers
        for method in handler.http_methods
        if method != "OPTIONS" and not route.path.startswith("/schema")
    }
    of_links = OF_LINKS if isinstance(service.deps.store, ServedStore) else set()  # else they lead past the registry
    assert found == {(row.method, row.path) for row in ENDPOINTS.values()} | PUBLIC | OF_NO_TABLE | of_links


def test_every_route_that_is_not_in_the_table_says_that_it_is_public(service: Service) -> None:
    guarded = [path for _, path in OF_NO_TABLE]
    for route in service.http.app.routes:
        for handler in route.route_handlers:
            named = "endpoint" in handler.opt or route.path in guarded
            public = bool(handler.opt.get("exclude_from_auth"))
            assert named != public or "OPTIONS" in getattr(handler, "http_methods", ())
    for path in guarded:
        assert service.http.get(path).status_code == 401


def test_the_description_names_every_endpoint_with_its_types_and_the_bearer_scheme(service: Service) -> None:
    described = service.http.get("/schema/openapi.json").json()
    assert described["info"] == {
        "title": "AOT Registry",
        "version": "0.1.0",
        "description": described["info"]["description"],
    }
    assert described["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    assert described["security"] == [{"bearer": []}]
    schemas = described["components"]["schemas"]
    for name, row in ENDPOINTS.items():
        operation = described["paths"][row.path][row.method.lower()]
        assert operation["operationId"] == name
        if row.request is not None:
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            assert body == {"allOf": [{"$ref": f"#/components/schemas/{row.request.__name__}"}]}
            assert row.request.__name__ in schemas
        if row.reply is not None:
            answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
            assert answer == {"allOf": [{"$ref": f"#/components/schemas/{row.reply.__name__}"}]}
            assert row.reply.__name__ in schemas
        assert "ErrorBody" in str(operation["responses"]["403"])
    missing = set(re.findall(r"#/components/schemas/(\w+)", str(described))) - set(schemas)
    assert missing == set()


def test_the_first_page_lists_every_endpoint(service: Service) -> None:
    page = service.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert all(row.path in page.text for row in ENDPOINTS.values())


def test_a_body_over_the_limit_is_refused(tmp_path) -> None:
    with a_service(tmp_path, AOT_MAX_BODY_BYTES="1000") as service:
        headers = {"authorization": f"Bearer {service.admin}"}
        answer = service.http.post("/v1/find", content=b"x" * 2000, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "invalid-input")


def test_a_missing_body_is_named(service: Service) -> None:
    answer = service.http.post("/v1/find", headers={"authorization": f"Bearer {service.admin}"})
    assert (answer.status_code, answer.json()["message"]) == (400, "wanted a body, found none")
