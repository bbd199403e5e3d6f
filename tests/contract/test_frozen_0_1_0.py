"""Version 0.1.0, as it was released: its client, its requests and its documents still work with what is here.

`tests/golden/0.1.0` holds the wheel, one recorded walk through every endpoint (tests/recorded.py), and the documents
that it wrote. None of them is ever written again: where one of these tests fails, what is deployed would break.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aot.errors import AotError, Unauthenticated
from aot.runtime.fetch import verify_signed
from aot.schema.codec import decode, encode
from aot.schema.decision import Selection
from aot.schema.digest import Digest
from aot.schema.endpoints import ENDPOINTS
from aot.schema.environment import Environment
from aot.schema.lock import decode_lock, encode_lock
from aot.schema.manifest import Envelope, Manifest, decode_manifest, encode_manifest
from aot.schema.names import Reference
from aot.schema.project import decode_project
from aot.schema.spec import Spec
from aot.schema.wire.bundles import ResolveReply
from aot.schema.wire.errors import ErrorBody
from aot.trust import TrustedKeys
from tests import recorded
from tests.builders import a_file, a_manifest, a_profile, a_spec, an_artifact
from tests.commands import COMMAND, Ran, Shell, a_shell, end
from tests.recorded import ADDRESS, FROZEN, LINKS, REFUSALS, Exchange, load
from tests.service import URL, a_service

WHEEL = FROZEN / "aot_registry-0.1.0-py3-none-any.whl"
DOCUMENTS = FROZEN / "documents"
of_files = pytest.mark.embedded("recorded with links that lead to the registry")
KINDS = {
    "envelope": Envelope,
    "environment": Environment,
    "manifest": Manifest,
    "manifest-frozen": Manifest,
    "manifest-gpu": Manifest,
    "selection": Selection,
    "spec-program": Spec,
}
# Decodes, with the wheel's own types, what a registry of today has answered.
OLD_READER = """
import sys
import aot
assert aot.__file__.startswith(sys.argv[1]) and aot.__version__ == "0.1.0", aot.__file__
import msgspec
from aot.schema.codec import decode
from aot.schema.endpoints import ENDPOINTS
from aot.schema.wire.errors import ErrorBody

told = []
for endpoint, status, body in msgspec.json.decode(sys.stdin.buffer.read()):
    try:
        if status >= 400:
            told.append(decode(body, ErrorBody).to_error().code)
        elif ENDPOINTS[endpoint].reply is None:
            told.append("NoneType" if not body else body)
        else:
            told.append(type(decode(body, ENDPOINTS[endpoint].reply)).__name__)
    except Exception as error:
        told.append(f"{endpoint}: {error}")
sys.stdout.buffer.write(msgspec.json.encode(told))
"""

Answer = tuple[Exchange, int, bytes]


def lost(before: Any, now: Any, where: str = "$") -> Iterator[str]:
    """Say what `before` has and `now` has not: fields, elements, or another kind of value. More may be there."""
    match before, now:
        case dict(), dict():
            for key, value in before.items():
                if key in now:
                    yield from lost(value, now[key], f"{where}.{key}")
                else:
                    yield f"{where}.{key} is gone"
        case list(), list() if len(now) >= len(before):
            for index, value in enumerate(before):
                yield from lost(value, now[index], f"{where}[{index}]")
        case list(), list():
            yield f"{where} has {len(now)} elements, had {len(before)}"
        case (int() | float(), int() | float()) if isinstance(before, bool) == isinstance(now, bool):
            return
        case _ if type(before) is not type(now):
            yield f"{where} is {now!r}, was {before!r}"


@cache
def exchanges() -> tuple[Exchange, ...]:
    return tuple(load(FROZEN))


def reply_of(exchange: Exchange) -> bytes:
    return recorded.content_of(exchange.reply)


def api(*, refused: bool) -> list[Any]:
    """The recorded exchanges of the API, links left aside."""
    chosen = [one for one in exchanges() if one.refused is refused and one.endpoint not in LINKS.values()]
    return [pytest.param(one, id=f"{one.step}-{one.endpoint}") for one in chosen]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where 0.1.0 lies as an installer would put it."""
    place = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(place)
    return place


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    """Every recorded request, sent to the registry of today."""
    with a_service(tmp_path_factory.mktemp("registry")) as service:

        def send(method: str, url: str, headers: Any, body: bytes) -> tuple[int, bytes]:
            place = url.replace(ADDRESS, URL)
            answer = service.http.request(method, place, headers=headers, content=body or None)
            return answer.status_code, answer.content

        return recorded.replay(list(exchanges()), send, token=service.admin)


def test_every_endpoint_of_0_1_0_was_recorded_and_is_still_there() -> None:
    served = {one.endpoint for one in exchanges() if not one.refused}
    assert (len(served), served - {*ENDPOINTS, *LINKS.values()}) == (28 + 2, set())
    assert {path.stem for path in (FROZEN / "exchanges").iterdir()} == {*served, REFUSALS}
    assert len({one.status for one in exchanges() if one.refused}) >= 5


def test_no_secret_and_no_place_of_the_recording_was_kept() -> None:
    for path in (FROZEN / "exchanges").iterdir():
        text = path.read_text()
        assert not [word for word in ("127.0.0.1", "localhost", "/tmp/", "&sig=", "expires=") if word in text], path


@of_files
def test_todays_registry_answers_every_request_of_0_1_0_as_before(answers: list[Answer]) -> None:
    told = [f"{one.step} {one.endpoint}: {status} {body!r}" for one, status, body in answers if status != one.status]
    assert not told, told[0]  # the others follow from it


@of_files
def test_todays_registry_answers_with_every_field_that_0_1_0_had(answers: list[Answer]) -> None:
    told = {}
    for one, _, body in answers:
        if one.endpoint in LINKS.values() and not one.refused:
            assert body.decode() == (one.reply or ""), one.step
        elif gone := list(lost(one.reply, msgspec.json.decode(body) if body else None)):
            told[f"{one.step} {one.endpoint}"] = gone
    assert told == {}


@of_files
def test_the_client_of_0_1_0_understands_every_answer_of_today(answers: list[Answer], installed: Path) -> None:
    api_answers = [one for one in answers if one[0].endpoint not in LINKS.values()]
    sent = [(one.endpoint, status, body.decode()) for one, status, body in api_answers]
    ran = subprocess.run(
        [sys.executable, "-c", OLD_READER, str(installed)],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        input=msgspec.json.encode(sent),
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    wanted = [
        one.reply["code"] if one.refused else getattr(ENDPOINTS[one.endpoint].reply, "__name__", "NoneType")
        for one, _, _ in api_answers
    ]
    assert msgspec.json.decode(ran.stdout) == wanted


@pytest.mark.parametrize("exchange", api(refused=False))
def test_todays_client_reads_a_reply_of_0_1_0_whole(exchange: Exchange) -> None:
    kind = ENDPOINTS[exchange.endpoint].reply
    if kind is None:
        assert exchange.reply is None
        return
    again = msgspec.json.decode(encode(decode(reply_of(exchange), kind)))
    assert list(lost(exchange.reply, again)) == []


@pytest.mark.parametrize("exchange", api(refused=True))
def test_todays_client_raises_what_0_1_0_refused_with(exchange: Exchange) -> None:
    error = decode(reply_of(exchange), ErrorBody).to_error()
    assert type(error) is not AotError
    assert (error.code, error.message, error.details) == (
        exchange.reply["code"],
        exchange.reply["message"],
        exchange.reply.get("details", {}),
    )


def test_a_refusal_is_raised_as_its_class() -> None:
    first = next(one for one in exchanges() if one.status == 401)
    assert isinstance(decode(reply_of(first), ErrorBody).to_error(), Unauthenticated)


def test_todays_client_verifies_what_0_1_0_signed() -> None:
    replies = {one.endpoint: reply_of(one) for one in exchanges() if not one.refused}
    trusted = TrustedKeys.of(msgspec.json.decode(replies["get_keys"])["keys"])
    (signed,) = decode(replies["resolve"], ResolveReply).bundles
    manifest = verify_signed(signed, Reference("default/mini:latest"), trusted)
    assert Digest.of(signed.manifest.encode()) == signed.digest
    assert encode_manifest(manifest) == (signed.manifest.encode(), signed.digest)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_document_of_0_1_0_is_read_whole(name: str) -> None:
    content = (DOCUMENTS / f"{name}.json").read_bytes()
    again = msgspec.json.decode(encode(decode(content, KINDS[name])))
    assert again == msgspec.json.decode(content)


@pytest.mark.parametrize("name", sorted(name for name in KINDS if name.startswith("manifest")))
def test_a_manifest_of_0_1_0_keeps_its_digest(name: str) -> None:
    canonical = msgspec.json.encode(msgspec.json.decode((DOCUMENTS / f"{name}.json").read_bytes()), order="sorted")
    manifest = decode_manifest(canonical)
    assert encode_manifest(manifest) == (canonical, Digest.of(canonical))


def test_a_lock_and_a_project_of_0_1_0_are_read() -> None:
    content = (DOCUMENTS / "aot.lock").read_bytes()
    assert encode_lock(decode_lock(content)) == content
    project = decode_project((DOCUMENTS / "aot.toml").read_text())
    assert [model.name for model in project.models] == ["minilm", "ranker"]


@pytest.fixture(scope="module")
def shell(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A registry of today with one bundle, and the shell of somebody who has 0.1.0 installed."""
    profile = a_profile("cpu-base", capability="cpu:x86-64")
    with a_shell(tmp_path_factory.mktemp("shell")) as shell:
        shell.service.register(profile)
        file = a_file("lib/model.so", b"\x7fELF " + b"library" * 900)
        artifacts = (an_artifact(capability="cpu:x86-64", files=(file,)),)
        spec = a_spec(profile=profile.name)
        build = shell.service.submit(spec, tags=("latest",)).build
        claim = shell.service.claim(profile.name, build=build.id)
        shell.service.publish(claim, a_manifest(spec, profile=profile, artifacts=artifacts))
        yield shell.with_environ(PYTHONPATH=str(installed))


def old(shell: Shell, *words: str) -> Ran:
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=shell.home,
        env=dict(shell.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return end(process)


def test_the_command_of_0_1_0_works_with_todays_registry(shell: Shell) -> None:
    assert old(shell, "version").out.split()[-1] == "0.1.0"
    (bundle,) = old(shell, "ls", "--json").json["bundles"]
    assert old(shell, "show", "mini").lines[0] == f"bundle     {bundle['digest']}"
    pulled = old(shell, "pull", "mini", "--as-bundle", str(shell.home / "pulled"))
    assert (pulled.code, pulled.out.strip()) == (0, bundle["digest"])
    verified = old(shell, "verify", str(shell.home / "pulled"))
    assert (verified.code, "signature verified" in verified.out) == (0, True), verified.err
    missing = old(shell, "show", "mini:nothing")
    assert (missing.code, missing.out) == (7, "")
