"""The API's page: the whole description, with nothing that another host would have to send."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from aot.schema.endpoints import ENDPOINTS
from registry.web.reference import page_of
from tests.service import URL, Service, a_service

PAGES = ("/", "/schema")
LOADING = {"src", "href", "srcset", "data", "action", "poster"}


class Page(HTMLParser):
    """What a page points to, what it holds, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.anchors: list[str] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.links += [value for name, value in given.items() if name in LOADING]
        self.anchors += [given["id"]] if "id" in given else []
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path / "registry") as service:
        yield service


def read(service: Service, path: str) -> Page:
    answer = service.http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    return Page(answer.text)


@pytest.mark.parametrize("path", PAGES)
def test_all_that_a_page_points_to_is_served_by_the_registry(service: Service, path: str) -> None:
    page = read(service, path)
    assert page.links
    for link in page.links:
        target = urlsplit(urljoin(f"{URL}{path}", link))
        assert f"{target.scheme}://{target.netloc}" == URL, link
        assert service.http.get(target.path).status_code == 200, link
        assert not target.fragment or target.fragment in read(service, target.path).anchors, link


def test_the_reference_runs_no_script_and_forbids_what_it_does_not_have(service: Service) -> None:
    page = read(service, "/schema")
    assert not page.tags & {"script", "iframe", "img", "link", "object", "form"}
    assert page.policy.startswith("default-src 'none';")
    assert "unsafe" not in page.policy and "http" not in page.policy


def test_the_reference_has_every_endpoint_and_every_type(service: Service) -> None:
    page = read(service, "/schema")
    description = service.http.get("/schema/openapi.json").json()
    assert set(ENDPOINTS) <= set(page.anchors)
    assert set(description["components"]["schemas"]) <= set(page.anchors)
    assert len(page.anchors) == len(set(page.anchors))


def test_an_operation_is_described_by_its_own_docstring(service: Service) -> None:
    paths = service.http.get("/schema/openapi.json").json()["paths"]
    for methods in paths.values():
        for operation in methods.values():
            if operation.get("operationId") in ENDPOINTS:
                assert operation["description"].startswith(operation["summary"]), operation["operationId"]


def test_the_page_needs_no_token_and_the_endpoints_still_do(service: Service) -> None:
    assert service.http.get("/schema").status_code == 200
    assert service.http.get("/v1/bundles").status_code == 401


def test_an_example_is_whole_or_says_that_it_was_cut() -> None:
    def shown(example: str) -> str:
        described = {"properties": {"text": {"type": "string", "examples": [example]}}}
        return page_of({"info": {"title": "", "version": ""}, "paths": {}, "components": {"schemas": {"T": described}}})

    assert "such as default/minilm:latest<" in shown("default/minilm:latest")
    assert "such as sha256:0000000000000...<" in shown("sha256:" + 64 * "0")


def test_a_description_cannot_write_markup_into_the_page() -> None:
    text = "<script>alert(1)</script>"
    described = {"type": "object", "description": text, "properties": {text: {"type": "string", "title": text}}}
    operation = {"operationId": text, "summary": text, "description": f"{text}.", "responses": {}}
    page = page_of(
        {
            "info": {"title": text, "version": text, "description": text},
            "paths": {f"/{text}": {"get": operation}},
            "components": {"schemas": {text: described}},
        }
    )
    assert "script" not in Page(page).tags
