"""A pushed bundle whose bytes come damaged: whoever pushed it has done nothing wrong, and the store may have."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aot.errors import MalformedDocument, StorageUnavailable
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace
from aot.schema.state import BlobState, BuildState, BundleState
from aot.schema.wire.errors import ErrorBody
from aot.trust import TrustedKeys
from registry.db.models import BlobRow
from registry.services.damage import quarantine_if_wrong
from registry.services.fsck import fsck
from registry.services.suspects import MOST_A_RELEASE, Suspects
from tests import worker_stand
from tests.builders import BYTES, a_manifest, a_profile, a_qualification, a_readable_artifact, altered
from tests.simulator import SimulatedReply
from tests.worker_stand import Stand
from worker.run import MOST_HOST_FAULTS, Ended, run_build

stand = worker_stand.stand  # a fixture


def a_pushed(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Digest, Any]:
    """A pushed bundle that waits for its proof, its one file, and its build. The proof itself takes no time."""
    stand.run()
    pushed = a_manifest(altered(stand.spec, name=Name("pushed")), artifacts=(a_readable_artifact(),))
    reply = stand.service.push(pushed)
    qualified = SimpleNamespace(
        artifacts=pushed.artifacts, qualification=a_qualification(), canaries=pushed.canaries, paths={}
    )
    monkeypatch.setattr("aot.pipeline.build.qualify", lambda *_, **__: qualified)
    return pushed, pushed.artifacts[0].files[0].digest, reply


def damage(stand: Stand, digest: Digest) -> None:
    stand.service.overwrite(digest, BYTES[digest][::-1])


def damage_on_the_way(stand: Stand, digest: Digest, monkeypatch: pytest.MonkeyPatch) -> None:
    send = stand.transport.send

    def flipped(method: str, url: str, **options: Any) -> Any:
        reply = send(method, url, **options)
        if method == "GET" and digest.hex in url.replace("/", ""):
            reply._left = reply._left[::-1]
        return reply

    monkeypatch.setattr(stand.transport, "send", flipped)


def refuse_fields(
    stand: Stand, path: str, fields: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """As a registry that does not know them. Returns what is sent to `path`, as it happens."""
    send, told = stand.transport.send, []

    def older(method: str, url: str, *, body: Any = None, **options: Any) -> Any:
        if not url.endswith(path):
            return send(method, url, body=body, **options)
        told.append(msgspec.json.decode(body))
        if unknown := [field for field in fields if field in told[-1]]:
            refusal = MalformedDocument(
                f"the releaserequest does not decode at $: Object contains unknown field `{unknown[0]}`"
            )
            return SimulatedReply(400, encode(ErrorBody.of(refusal)), {"content-type": "application/json"})
        return send(method, url, body=body, **options)

    monkeypatch.setattr(stand.transport, "send", older)
    return told


def state_of(stand: Stand, digest: Digest) -> BlobState:
    with stand.service.deps.sessions.reading() as session:
        return session.get(BlobRow, digest).state  # type: ignore[union-attr]


def next_attempt(stand: Stand) -> Ended:
    stand.service.clock.advance(3601)  # a worker is not handed what it gave back just now, nor anybody what came often
    stand.service.register(a_profile())
    return run_build(stand.bench)


def test_a_blob_that_is_wrong_in_the_store_is_taken_out_and_the_bundle_is_proven_with_the_right_one(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed, file, reply = a_pushed(stand, monkeypatch)
    damage(stand, file)
    assert run_build(stand.bench) is Ended.RELEASED
    stand.service.deps.suspects.wait(20)
    assert (state_of(stand, file), stand.service.deps.store.stat(file)) == (BlobState.PENDING, None)
    bundle = stand.service.call("get_bundle", digest=reply.bundle)
    assert bundle.state is BundleState.PENDING and str(file) in bundle.withdrawn_reason

    assert next_attempt(stand) is Ended.NOTHING, "there is nothing to prove until its bytes are there again"
    for _ in range(2):
        stand.service.sweep()
        waiting = stand.service.call("get_build", build=reply.build).waiting
        assert "holds other bytes" in waiting and waiting.endswith("push the bundle again")

    assert stand.service.push(pushed).build == reply.build
    assert stand.service.sweep().healed == (reply.bundle,)
    stand.service.sweep()
    assert next_attempt(stand) is Ended.PUBLISHED
    view = stand.service.call("get_build", build=reply.build)
    assert (view.state, view.attempt) == (BuildState.PUBLISHED, 2)


def test_a_source_that_is_wrong_in_the_store_is_waited_for_like_the_bundle(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed, _, reply = a_pushed(stand, monkeypatch)
    source = pushed.spec.blobs[0].digest
    damage(stand, source)
    assert run_build(stand.bench) is Ended.RELEASED
    stand.service.deps.suspects.wait(20)
    assert state_of(stand, source) is BlobState.PENDING

    assert next_attempt(stand) is Ended.NOTHING
    stand.service.sweep()
    waiting = stand.service.call("get_build", build=reply.build).waiting
    assert waiting.endswith(f"lacks {source}; push the bundle again, with what it was built from")

    assert stand.service.push(pushed).build == reply.build
    stand.service.sweep()
    assert state_of(stand, source) is BlobState.STORED, "hashed, though no bundle names it"
    stand.service.sweep()
    assert next_attempt(stand) is Ended.PUBLISHED


@pytest.mark.parametrize("of", ["bundle", "source"])
def test_what_is_missing_in_the_store_is_tried_less_and_less_until_it_is_looked_for(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    pushed, file, reply = a_pushed(stand, monkeypatch)
    lost = file if of == "bundle" else pushed.spec.blobs[0].digest
    stand.service.deps.store.delete(lost)
    told: list[Any] = []
    add = stand.service.deps.suspects.add
    monkeypatch.setattr(stand.service.deps.suspects, "add", lambda digests, look: (told.append(digests), add([], look)))
    for _ in range(MOST_HOST_FAULTS + 1):
        stand.service.clock.advance(61)
        stand.service.register(a_profile())
        assert run_build(stand.bench) is Ended.RELEASED
    assert set(told) == {(lost,)}
    for seconds, ended in ((61, Ended.NOTHING), (60, Ended.RELEASED), (200, Ended.NOTHING), (41, Ended.RELEASED)):
        stand.service.clock.advance(seconds)
        stand.service.register(a_profile())
        assert run_build(stand.bench) is ended

    fsck(stand.service.deps, trusted=TrustedKeys.of(()))
    assert next_attempt(stand) is Ended.NOTHING
    stand.service.sweep()
    assert f"lacks {lost}" in stand.service.call("get_build", build=reply.build).waiting
    stand.service.push(pushed)
    stand.service.sweep()
    stand.service.sweep()
    assert next_attempt(stand) is Ended.PUBLISHED


def test_what_is_damaged_on_its_way_is_fetched_again_however_often(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file, reply = a_pushed(stand, monkeypatch)
    with monkeypatch.context() as broken:
        damage_on_the_way(stand, file, broken)
        ended = [next_attempt(stand) for _ in range(MOST_HOST_FAULTS + 1)]
    assert ended == [Ended.RELEASED] * (MOST_HOST_FAULTS + 1)
    stand.service.deps.suspects.wait(20)
    view = stand.service.call("get_build", build=reply.build)
    assert view.state is BuildState.QUEUED and "came damaged" in view.waiting and str(file) in view.waiting
    assert state_of(stand, file) is BlobState.STORED, "it was looked at, and is right"
    assert next_attempt(stand) is Ended.PUBLISHED


def test_an_older_registry_gets_the_build_back_without_being_told_which_blob_it_was(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file, reply = a_pushed(stand, monkeypatch)
    damage_on_the_way(stand, file, monkeypatch)
    told = refuse_fields(stand, "/release", ("damaged",), monkeypatch)
    assert run_build(stand.bench) is Ended.RELEASED
    assert [set(sent) for sent in told] == [{"damaged", "reason"}, {"reason"}]
    assert stand.service.call("get_build", build=reply.build).state is BuildState.QUEUED


def test_a_workers_word_takes_nothing_out(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is right, what is missing, and what another namespace holds alone stay as they are."""
    _, file, _ = a_pushed(stand, monkeypatch)
    deps = stand.service.deps
    other = Namespace("other")
    mine = Namespace("default")
    assert not quarantine_if_wrong(file, namespace=mine, deps=deps)
    damage(stand, file)
    assert not quarantine_if_wrong(file, namespace=other, deps=deps)
    deps.store.delete(file)
    assert not quarantine_if_wrong(file, namespace=mine, deps=deps)
    assert state_of(stand, file) is BlobState.STORED


def test_what_was_found_right_is_not_read_for_every_worker_behind_a_bad_line() -> None:
    looked: list[Digest] = []
    digests = [Digest.of(bytes([number])) for number in range(MOST_A_RELEASE + 1)]
    suspects = Suspects()

    def look(digest: Digest) -> bool:
        looked.append(digest)
        if digest == digests[1]:
            raise StorageUnavailable("the store is away", hint="wait")
        if digest == digests[2]:
            raise ZeroDivisionError("a fault of ours")
        return digest == digests[0]

    for _ in range(2):
        suspects.add(digests, look)
        suspects.wait(20)
    assert looked == [*digests[:MOST_A_RELEASE], *digests[:3]], "what was wrong, or not read, is looked at again"
