"""A registry of 0.1.0 before clients and workers of today: what it reads whole, and what it is told without.

Its side is 0.1.0's own types, out of the released wheel, in a process of their own.
"""

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from aot.client import Body, RegistryClient
from aot.client.older import ACCOUNTS
from aot.environment import observe_environment
from aot.errors import MalformedDocument
from aot.pipeline import observe_profiles
from aot.schema.codec import encode
from aot.schema.endpoints import ENDPOINTS
from aot.schema.names import Name, Reference
from aot.schema.spec import Blob, Spec
from aot.schema.wire.builds import FailRequest, ReleaseRequest, SubmitRequest
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Outcome, Receipt, RegisterRequest
from tests.builders import a_report, a_spec, altered
from tests.documents import messages
from tests.recorded import FROZEN, endpoint_of
from tests.simulator import SimulatedReply

# Takes requests as 0.1.0 did: a line with the endpoint and the body, and one with "" or its refusal.
OLD_TYPES = """
import sys
import aot
assert aot.__file__.startswith(sys.argv[1]) and aot.__version__ == "0.1.0", aot.__file__
import msgspec
from aot.errors import AotError
from aot.schema.codec import decode, encode
from aot.schema.endpoints import ENDPOINTS
from aot.schema.manifest import decode_manifest
from aot.schema.wire.errors import ErrorBody

for line in sys.stdin.buffer:
    endpoint, body = msgspec.json.decode(line)
    told = ""
    try:
        if (kind := ENDPOINTS[endpoint].request) is not None:
            request = decode(body, kind)
            if hasattr(request, "manifest"):
                decode_manifest(request.manifest.encode())
    except AotError as error:
        told = encode(ErrorBody.of(error)).decode()
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\\n")
    sys.stdout.buffer.flush()
"""
NEWER = {"retry", "list_kernels", "untag"}  # endpoints that 0.1.0 does not have
REPLIES = {name: reply for name, (_, reply) in messages().items()}


class OldRegistry:
    """The transport to it. `refused`: what it did not read, as endpoint and message; `read`: the body that it did."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.refused: list[tuple[str, str]] = []
        self.read: dict[str, Any] = {}
        self._process = process

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body = None, timeout_seconds: float
    ) -> SimulatedReply:
        name = endpoint_of(method, url.removeprefix("http://old").partition("?")[0])
        text = body.decode() if isinstance(body, bytes) else ""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode((name, text)) + b"\n")
        self._process.stdin.flush()
        told = msgspec.json.decode(self._process.stdout.readline())
        if told:
            self.refused.append((name, msgspec.json.decode(told)["message"]))
            return SimulatedReply(400, told.encode(), {"content-type": "application/json"})
        self.read[name] = msgspec.json.decode(text) if text else None
        reply = REPLIES[name]
        return SimulatedReply(200, b"" if reply is None else encode(reply), {"content-type": "application/json"})


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    place = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(FROZEN / "aot_registry-0.1.0-py3-none-any.whl") as wheel:
        wheel.extractall(place)
    running = subprocess.Popen(
        [sys.executable, "-c", OLD_TYPES, str(place)], cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield running
    assert running.stdin is not None
    running.stdin.close()
    running.wait(10)


@pytest.fixture
def old(process: subprocess.Popen[bytes]) -> OldRegistry:
    return OldRegistry(process)


def call(old: OldRegistry, name: str, request: Any) -> Any:
    path = {word: "x" for word in ("build", "digest", "namespace", "name", "target", "tag")}
    return RegistryClient(old, "http://old", "token").call(name, path=path, body=request)


@pytest.mark.parametrize("name", sorted(set(messages()) - NEWER))
def test_a_plain_request_of_today_is_read_whole(old: OldRegistry, name: str) -> None:
    request, _ = messages()[name]
    call(old, name, request)
    assert old.refused == []


def test_what_this_host_is_registered_as_is_read_whole(old: OldRegistry) -> None:
    profiles = observe_profiles(observe_environment(), only=None)
    call(old, "register_worker", RegisterRequest(worker=Name("worker-1"), profiles=profiles))
    assert old.refused == []


def test_a_receipt_of_this_host_arrives_without_what_it_has_no_words_for(old: OldRegistry) -> None:
    environment = observe_environment()
    newer = altered(
        environment,
        container=altered(environment.container, cxx11_abi=True, bytecode="cpython-311 a70d0d0a"),
        process=altered(environment.process, conv_precision="ieee"),
    )
    receipt = Receipt(
        reference=Reference("default/mini:latest"),
        bundle=None,
        environment=newer,
        outcome=Outcome.EAGER,
        reasons=("no",),
    )
    RegistryClient(old, "http://old", "token").send_receipt(receipt)
    read = old.read["send_receipt"]
    assert (read["reference"], read["outcome"], read["reasons"]) == ("default/mini:latest", "eager", ["no"])
    assert read["environment"]["container"]["libc"] == environment.container.libc
    fields = [message.rpartition("`")[0].rpartition("`")[2] for _, message in old.refused]
    assert "cxx11_abi" in fields and len(set(fields)) == len(fields)


def test_a_worker_tells_how_its_attempt_ended(old: OldRegistry) -> None:
    blob = Blob(digest=messages()["tag"][0].bundle, size_bytes=1)
    call(old, "release", ReleaseRequest(reason="its disk is full", damaged=(blob.digest,), host_fault=True))
    assert (old.read["release"], len(old.refused)) == ({"reason": "its disk is full"}, 2)
    error = ErrorBody(code="backend-failed", message="the compiler crashed")
    call(old, "fail", FailRequest(error=error, report=a_report()))
    assert old.read["fail"]["error"]["message"] == "the compiler crashed"
    assert set(old.read["fail"]["report"]) <= {field.name for field in msgspec.structs.fields(a_report())}


def test_a_question_is_not_asked_by_halves(old: OldRegistry) -> None:
    """A spec without what the registry does not know is another spec."""
    content = msgspec.to_builtins(SubmitRequest(spec=a_spec()), enc_hook=str)
    content["spec"]["recipe"] = {"of_tomorrow": 1}
    with pytest.raises(MalformedDocument, match="of_tomorrow"):
        call(old, "submit", content)
    assert (len(old.refused), old.read) == (1, {})
    assert Spec not in {ENDPOINTS[name].request for name in ACCOUNTS}
