"""What is left out of a request to an older registry: the one field that it names, and nothing of a question."""

from typing import Any

import msgspec
import pytest

from aot.client import RegistryClient
from aot.client.older import MOST_FIELDS, without_unknown
from aot.errors import InvalidConfig, MalformedDocument
from aot.schema.codec import encode
from aot.schema.wire.builds import ReleaseRequest
from aot.schema.wire.errors import ErrorBody
from tests.simulator import SimulatedReply

JSON = {"content-type": "application/json"}


def refused(path: str, field: str, kind: str = "receipt") -> MalformedDocument:
    return MalformedDocument(f"the {kind} does not decode at {path}: Object contains unknown field `{field}`")


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("$", {"new": 1, "old": {"new": 2}}, {"old": {"new": 2}}),
        ("$.a.b", {"a": {"b": {"new": 1, "old": 2}, "new": 3}}, {"a": {"b": {"old": 2}, "new": 3}}),
        ("$.a[...]", {"a": [{"new": 1}, {"old": 2}, {"new": None}]}, {"a": [{}, {"old": 2}, {}]}),
        ("$.a[...].b", {"a": {"x": {"b": {"new": 1}}, "y": {}}}, {"a": {"x": {"b": {}}, "y": {}}}),
    ],
)
def test_the_field_is_dropped_where_it_stands(path: str, before: Any, after: Any) -> None:
    content = without_unknown("send_receipt", msgspec.json.encode(before), refused(path, "new"))
    assert content is not None and msgspec.json.decode(content) == after


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("submit", refused("$", "new", "submitrequest")),
        ("publish", refused("$", "new", "publishrequest")),
        ("send_receipt", refused("$", "other")),  # which it does not have
        ("send_receipt", refused("$.nowhere[...].b", "new")),
        ("send_receipt", refused("$", "new", "buildview")),  # an answer that does not decode was no refusal
        ("send_receipt", MalformedDocument("the receipt does not decode at $: Object missing required field `new`")),
    ],
)
def test_and_nothing_where_that_would_say_something_else(name: str, error: MalformedDocument) -> None:
    assert without_unknown(name, b'{"new":1,"old":2}', error) is None


def test_whoever_names_ever_more_fields_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    class Endless:
        def send(self, method: str, url: str, *, body: Any = None, **_: Any) -> SimulatedReply:
            sent.append(body)
            told = refused("$", "reason", "releaserequest")
            return SimulatedReply(400, encode(ErrorBody.of(told)), JSON)

    monkeypatch.setattr("aot.client.calls.without_unknown", lambda name, content, error: content)
    client = RegistryClient(Endless(), "http://old", "token")
    with pytest.raises(InvalidConfig, match=f"refused {MOST_FIELDS} fields"):
        client.call("release", path={"build": "b"}, body=ReleaseRequest(reason="full"))
    assert len(sent) == MOST_FIELDS
