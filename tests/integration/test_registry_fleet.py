"""Workers, profiles, receipts, keys, health: what the fleet tells and is told."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from aot.errors import Conflict, Forbidden, InvalidProfile, MalformedDocument, StorageUnavailable
from aot.keys import queue_for
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.wire.workers import Outcome, ProfileView, ReadyReply, Receipt, Scope
from aot.trust import SigningKey
from registry.app import create_app_from
from registry.db.fleet_models import ReceiptRow
from tests.builders import a_device, a_gpu_profile, a_profile, a_spec, a_toolchain, an_environment
from tests.service import Service, a_service

V2 = a_profile("cpu-v2", capability="cpu:x86-64-v2")


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        yield service


def test_a_worker_learns_its_queues_best_first(service: Service) -> None:
    reply = service.register(a_profile(), V2)
    assert reply.queues == (queue_for(a_profile()), queue_for(V2))
    assert reply.seen_every_seconds == service.deps.settings.seen_every.total_seconds()


def test_workers_and_profiles_are_listed_with_what_they_do(service: Service) -> None:
    service.register(a_profile(), V2)
    service.register(a_profile(), worker="worker-2")
    service.submit(a_spec("one"))
    service.submit(a_spec("two"))
    claim = service.claim("cpu-v3", worker="worker-2")
    first, second = service.call("list_workers").workers
    assert (first.name, first.profiles, first.live, first.build) == (
        "worker-1",
        ("cpu-v3", "cpu-v2"),
        True,
        None,
    )
    assert (second.name, second.profiles, second.build) == ("worker-2", ("cpu-v3",), claim.build)
    assert service.call("list_profiles").profiles == (
        ProfileView(profile=V2, live_workers=1, queued=0, running=0, live_builds=0),
        ProfileView(profile=a_profile(), live_workers=2, queued=1, running=1, live_builds=2),
    )
    stranger = service.token(Scope.READ, namespaces=("ours",))
    assert service.call("list_workers", token=stranger).workers[1].build is None


def test_a_worker_lives_while_it_is_heard(service: Service) -> None:
    service.register(a_profile())
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    half = service.deps.settings.worker_lives.total_seconds() / 2
    for _ in range(3):
        service.clock.advance(half)
        service.call("renew", token=claim.token, build=claim.build)
    assert service.call("list_workers").workers[0].live
    service.clock.advance(2 * half + 1)
    assert not service.call("list_workers").workers[0].live
    service.register(a_profile())
    assert service.call("list_workers").workers[0].live


def test_what_one_of_two_workers_lacks_is_told_so_and_when_an_ended_one_is_forgotten(service: Service) -> None:
    service.register(a_profile(packages={"numpy": "2.1.0"}))
    said = "no package scipy, which this worker has as 1.9; package numpy 2.1.0, which this worker does not have"
    with pytest.raises(Conflict) as refusal:
        service.register(a_profile(packages={"scipy": "1.9"}), worker="worker-2")
    assert all(part in refusal.value.message for part in said.split("; ")) and "None" not in refusal.value.message
    assert "90 seconds" in (refusal.value.hint or "")


def test_a_profile_that_another_live_worker_holds_is_not_replaced(service: Service) -> None:
    service.register(a_gpu_profile())
    other = a_gpu_profile(
        toolchain=a_toolchain(torch="2.14.0+cu130", cuda="13.0", triton="3.7.0"),
        device=a_device(sm_count=114),
    )
    said = r"held by worker-1 with device.sm_count 132, not 114; torch 2.13.0\+cu130, not 2.14.0\+cu130"
    with pytest.raises(Conflict, match=said) as refusal:
        service.register(other, worker="worker-2")
    (known,) = service.call("list_workers").workers
    assert refusal.value.details == {"workers": ["worker-1"], "seen_at": {"worker-1": known.seen_at.isoformat()}}
    assert service.call("list_profiles").profiles[0].profile == a_gpu_profile()
    assert known.name == "worker-1"


def test_a_profile_is_replaced_by_its_own_worker_or_once_its_holder_is_gone(service: Service) -> None:
    service.register(a_profile())
    newer = a_profile(packages={"transformers": "5.24.0"})
    service.register(newer)
    assert service.call("list_profiles").profiles[0].profile == newer
    service.clock.advance(service.deps.settings.worker_lives.total_seconds() + 1)
    service.register(a_profile(), worker="worker-2")
    assert service.call("list_profiles").profiles[0].profile == a_profile()


@pytest.mark.parametrize("profiles", [(), (a_profile(), a_profile()), tuple(a_profile(f"p{n}") for n in range(17))])
def test_profiles_that_make_no_sense_are_refused(service: Service, profiles) -> None:
    with pytest.raises(InvalidProfile):
        service.register(*profiles)


def receipt(**fields) -> Receipt:
    defaults = {
        "reference": Reference("default/mini:v1"),
        "bundle": Digest.of(b"bundle"),
        "environment": an_environment(),
        "outcome": Outcome.PARTLY,
        "reasons": ("input args[0]: size 3 is not 4",),
        "counters": {"calls": 10, "eager": 2},
        "load_seconds": 0.25,
    }
    return Receipt(**(defaults | fields))


def test_receipts_are_kept_as_they_were_told(service: Service) -> None:
    assert service.call("send_receipt", receipt()) is None
    service.call("send_receipt", receipt(bundle=None, outcome=Outcome.EAGER, reasons=("x" * 5000,) * 500))
    with service.deps.sessions.reading() as session:
        first, second = session.scalars(select(ReceiptRow).order_by(ReceiptRow.outcome.desc())).all()
    assert (first.namespace, first.name, first.reference) == ("default", "mini", "default/mini:v1")
    assert (first.bundle, first.outcome, first.environment) == (
        Digest.of(b"bundle"),
        Outcome.PARTLY,
        an_environment(),
    )
    assert (first.reasons, first.counters) == (receipt().reasons, receipt().counters)
    assert len(second.reasons) == 100 and len(second.reasons[0]) == 1000


def test_receipts_belong_to_namespaces_that_the_sender_reads(service: Service) -> None:
    limited = service.token(Scope.READ, namespaces=("ours",))
    with pytest.raises(Forbidden):
        service.call("send_receipt", receipt(), token=limited)
    service.call("send_receipt", receipt(reference=Reference("ours/mini:v1")), token=limited)


def test_health_needs_no_scope(service: Service) -> None:
    reply = service.call("get_health", token=service.token())
    assert (reply.status, reply.version) == ("ok", "0.1.0")


def test_ready_says_what_it_checked(service: Service) -> None:
    assert service.call("get_ready") == ReadyReply(ready=True, checks={"database": "ok", "blobs": "ok"})


def test_not_ready_says_what_is_wrong(service: Service) -> None:
    class Away:
        enforces_checksum = True

        def stat(self, digest):
            raise StorageUnavailable("the blob store is away")

    object.__setattr__(service.deps, "store", Away())
    with pytest.raises(StorageUnavailable) as refusal:
        service.call("get_ready")
    assert refusal.value.details == {"checks": {"database": "ok", "blobs": "the blob store is away"}}


def test_two_keys_sign_while_one_replaces_the_other_and_a_retired_one_is_not_listed(service: Service) -> None:
    old, new = service.deps.signing_keys[0], SigningKey.generate()
    service.clock.advance(5)
    create_app_from(replace(service.deps, signing_keys=(new,)))
    object.__setattr__(service.deps, "signing_keys", (new,))
    assert service.call("get_keys").keys == (str(new.public),), "whoever trusts what is listed must not trust the old"
    object.__setattr__(service.deps, "signing_keys", (old, new))
    assert service.call("get_keys").keys == (str(old.public), str(new.public))
    service.register(a_profile())
    digest = service.published(a_spec()).bundle
    [bundle] = service.call("resolve", namespace="default", name="mini", target=digest).bundles
    assert [signature.keyid for signature in bundle.envelope.signatures] == [
        old.public.keyid,
        new.public.keyid,
    ]


def test_unknown_fields_in_requests_are_refused_with_their_place(service: Service) -> None:
    headers = {"authorization": f"Bearer {service.admin}"}
    body = b'{"worker":"w","profiles":[{"name":"BAD NAME","capability":"cpu:x86-64-v3"}]}'
    answer = service.http.post("/v1/workers", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed-document")
    assert answer.json()["details"] == {"path": "$.profiles[0].name"}
    answer = service.http.post("/v1/workers", content=b'{"worker":"w","profiles":[],"colour":1}', headers=headers)
    assert "colour" in answer.json()["message"]
    assert MalformedDocument.code == answer.json()["code"]
