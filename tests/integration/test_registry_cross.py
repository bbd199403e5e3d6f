"""Code for a CPU that no worker has: pending with the reason, live by a proof on such a CPU alone."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from aot.errors import BundleNotFound, Conflict, ProfileNotFound, QualificationFailed
from aot.pipeline.cross import find_cross_profile, nothing_proven
from aot.schema.artifact import CodeFacts
from aot.schema.capability import Capability
from aot.schema.manifest import Manifest
from aot.schema.names import Name
from aot.schema.profile import AMX, CPU_TARGETS, Profile
from aot.schema.spec import Spec
from aot.schema.state import BuildState, BundleState
from aot.schema.wire.bundles import FindRequest
from registry.db import fleet as fleet_rows
from registry.db.fleet_models import ProfileRow
from registry.services.profiles import put_cpu_target
from tests.builders import a_manifest, a_node, a_profile, a_qualification, a_spec, a_toolchain, an_artifact
from tests.commands import a_shell
from tests.service import Service, a_service

NAME = "cpu-x86-64-v4-amx"
REASON = "not run: no host with AMX"
V4 = Capability("cpu:x86-64-v4")
SAPPHIRE_RAPIDS = Capability.parse(f"{AMX}+avx512_bf16+avx512_fp16")
# What a proof on a CPU with more than the target says of it: nothing emulates AMX.
ON_MORE = "no emulator has a CPU of exactly this; only the instructions of the code were read"


def a_target(name: str = NAME, **deviations: Any) -> Profile:
    return a_profile(name, capability=CPU_TARGETS[name], **deviations)


def unrun(profile: Profile | None = None, *, spec: Spec | None = None, **deviations: Any) -> Manifest:
    """A bundle as `aot build --here` makes it on a host of x86-64-v4."""
    profile = profile or a_target()
    proof = nothing_proven(profile, a_node(cpu=V4, cpu_features=()))
    return a_manifest(spec, profile=profile, qualification=proof, canaries=(), **deviations)


def proven_on(host: Capability, profile: Profile | None = None) -> Manifest:
    """The same with a proof that a worker on a CPU of `host` made, whose instructions were read."""
    profile = profile or a_target()
    code = CodeFacts(level=f"{AMX.target}", features=("amx_bf16", "amx_tile"), vector_bits=512, unread_bytes=0)
    artifact = an_artifact(capability=profile.capability, torch=profile.toolchain.torch, code=code)
    proof = a_qualification(profile=profile.name, torch=profile.toolchain.torch, host_cpu=host, not_run=ON_MORE)
    return a_manifest(profile=profile, artifacts=(artifact,), qualification=proof)


def pushed(service: Service, **fields: Any) -> Any:
    manifest = unrun(artifacts=proven_on(SAPPHIRE_RAPIDS).artifacts)
    return service.push(manifest, **fields)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(a_target("cpu-x86-64-v4"), a_target("cpu-x86-64-v3"))
        yield service


def test_it_is_pending_and_says_that_no_host_has_run_it(service: Service) -> None:
    reply = pushed(service, tags=("v1",))
    view = service.call("get_bundle", digest=reply.bundle)
    assert (reply.state, view.state, view.waiting) == (BundleState.PENDING, BundleState.PENDING, REASON)
    build = service.call("get_build", build=reply.build)
    assert (build.state, build.profile, build.waiting) == (BuildState.QUEUED, NAME, REASON)
    with pytest.raises(BundleNotFound):
        reader = service.token()
        service.call("resolve", namespace="default", name="mini", target=reply.bundle, token=reader)
    service.queue.take()
    service.clock.advance(3600)
    service.register(a_target("cpu-x86-64-v4"), a_target("cpu-x86-64-v3"))
    service.sweep()
    assert service.call("get_build", build=reply.build).waiting == REASON, "a sweep finds no other reason"
    assert service.ask("cpu-x86-64-v4", "cpu-x86-64-v3").claim is None, "no worker without AMX is given it"


def test_a_worker_on_such_a_cpu_proves_it_and_it_goes_live(service: Service) -> None:
    reply = pushed(service, tags=("v1",))
    service.register(a_target(), a_target("cpu-x86-64-v4"), worker="worker-2")
    assert service.call("get_build", build=reply.build).waiting == ""
    claim = service.claim(NAME, worker="worker-2")
    assert claim.requalify == reply.bundle
    live = service.publish(claim, proven_on(SAPPHIRE_RAPIDS))
    [found] = service.call("resolve", namespace="default", name="mini", target="v1").bundles
    assert found.digest == live.bundle
    assert service.call("get_bundle", digest=reply.bundle).replacement == live.bundle


@pytest.mark.parametrize("host", [V4, Capability("cpu:x86-64-v4+avx512_vnni"), None])
def test_a_proof_on_any_other_cpu_is_none(service: Service, host: Capability) -> None:
    """Not even from a worker that says it is of that profile: the proof says which CPU it ran on."""
    reply = pushed(service)
    service.register(a_target(), worker="worker-2")
    claim = service.claim(NAME, worker="worker-2")
    with pytest.raises(QualificationFailed, match="it was proven on a CPU"):
        service.publish(claim, proven_on(host))
    assert service.call("get_bundle", digest=reply.bundle).state is BundleState.PENDING


def test_its_key_is_asked_before_any_worker_is_it(service: Service) -> None:
    spec = a_spec(profile=NAME)
    [target] = service.call("find", FindRequest(specs=(spec,))).targets
    assert target.build_key == unrun().build_key
    with pytest.raises(ProfileNotFound, match="known are cpu-x86-64-v3, cpu-x86-64-v4"):
        service.submit(spec)


def test_the_registrys_workers_decide_the_toolchain(service: Service) -> None:
    newer = a_toolchain(torch="2.14.0+cpu")
    with pytest.raises(Conflict, match=r"torch is \"2\.14\.0"):
        service.push(unrun(a_target(toolchain=newer)))
    first = service.push(unrun())
    # The workers get another torch: what was pushed before waits for one that they no longer have.
    service.register(*(a_target(f"cpu-x86-64-{level}", toolchain=newer) for level in ("v4", "v3")))
    second = service.push(unrun(a_target(toolchain=newer)))
    assert first.state is second.state is BundleState.PENDING and first.bundle != second.bundle
    [profile] = [view.profile for view in service.call("list_profiles").profiles if view.profile.name == NAME]
    assert profile.toolchain == newer
    # Once a worker is it, that worker decides.
    theirs = a_toolchain(torch="2.14.0+cpu", compiler="g++ 14.2.0")
    service.register(a_target(toolchain=theirs), worker="worker-2")
    with pytest.raises(Conflict, match=r"compiler is .*, the workers have \"g\+\+ 14\.2\.0"):
        service.push(unrun(a_target(toolchain=newer)))


def test_client_and_registry_agree_on_a_target_that_only_a_push_made_known(service: Service) -> None:
    newer = a_toolchain(torch="2.14.0+cpu")
    service.push(unrun())
    service.register(*(a_target(f"cpu-x86-64-{level}", toolchain=newer) for level in ("v4", "v3")))
    views = service.call("list_profiles").profiles
    assert [(view.profile.name, view.held) for view in views if not view.held] == [(NAME, False)]
    node = a_node(cpu=V4, cpu_features=())
    assert find_cross_profile(NAME, views, node=node) == a_target(toolchain=newer)
    assert service.push(unrun(a_target(toolchain=newer))).state is BundleState.PENDING


def test_workers_that_were_not_seen_for_long_decide_no_toolchain(service: Service) -> None:
    service.register(a_target(toolchain=a_toolchain(torch="2.12.0+cpu")), worker="worker-2")

    def seen_again() -> tuple[str, bool]:
        service.register(a_target("cpu-x86-64-v4"))
        [view] = [view for view in service.call("list_profiles").profiles if view.profile.name == NAME]
        return view.profile.toolchain.torch, view.held

    service.clock.advance(timedelta(days=29).total_seconds())
    assert seen_again() == ("2.12.0+cpu", True)
    service.clock.advance(timedelta(days=2).total_seconds())
    assert seen_again() == ("2.13.0+cpu", False)
    reply = service.push(unrun())
    assert service.call("get_build", build=reply.build).waiting == REASON
    # Where nobody at all was seen for long, what was known stays.
    service.clock.advance(timedelta(days=31).total_seconds())
    assert service.call("find", FindRequest(specs=(a_spec(profile="cpu-x86-64-v4"),))).targets


@pytest.mark.parametrize("known_before", [False, True])
def test_a_worker_that_registers_while_its_target_is_pushed_says_what_it_is(
    service: Service, monkeypatch: pytest.MonkeyPatch, known_before: bool
) -> None:
    if known_before:
        service.push(unrun())
    theirs = a_target(toolchain=a_toolchain(compiler="g++ 14.2.0"))
    lock = fleet_rows.lock_profile
    others: list[Profile] = [theirs]

    def slow(name: Name, session: Session) -> ProfileRow | None:
        # The other transaction had the row, and has ended: now it is ours.
        now = service.clock()
        while others:
            offered = others.pop()
            if not fleet_rows.insert_profile(offered, now=now, session=session):
                session.get_one(ProfileRow, name).profile = offered
            fleet_rows.put_worker(Name("worker-2"), [name], now=now, session=session)
        return lock(name, session)

    monkeypatch.setattr(fleet_rows, "lock_profile", slow)
    with service.deps.sessions.transaction() as session:
        assert put_cpu_target(Name(NAME), now=service.clock(), session=session) == theirs
    [view] = [view for view in service.call("list_profiles").profiles if view.profile.name == NAME]
    assert view.profile == theirs and view.held


@pytest.mark.parametrize(
    "profile",
    [a_target(threads=4), a_profile("cpu-mine", capability=AMX), a_profile(NAME, capability="cpu:x86-64-v4+amx_tile")],
)
def test_only_a_cpu_target_by_its_own_name_needs_no_worker(service: Service, profile: Profile) -> None:
    with pytest.raises(ProfileNotFound):
        service.push(unrun(profile))


def test_a_registry_without_cpu_workers_knows_no_target(tmp_path: Path) -> None:
    with a_service(tmp_path) as service, pytest.raises(ProfileNotFound):
        service.push(unrun())


def test_the_commands_tell_of_it(tmp_path: Path) -> None:
    with a_shell(tmp_path) as shell:
        shell.service.register(a_target("cpu-x86-64-v4"))
        alone = unrun(spec=a_spec(name="alone", profile=NAME))
        nothing_live = f"pending: {shell.service.push(alone).bundle.short} for {NAME}: {REASON}"
        for command in (("explain", "alone"), ("matrix", "alone", "--hosts", "no-gpu")):
            ran = shell.aot(*command)
            assert ran.code == 7 and nothing_live in ran.err
            assert f"once a worker of {NAME} has proven it: start one" in ran.err
        shell.service.published(a_spec(profile="cpu-x86-64-v4"), tags=("latest",))
        reply = pushed(shell.service)
        [row] = [line for line in shell.aot("ls", "mini").lines if NAME in line]
        assert f"pending ({REASON})" in row
        assert f"state      pending: {REASON}" in shell.aot("show", reply.bundle).lines
        host = "xeon-sapphire-rapids,torch=2.13.0+cpu,libc=2.36,libstdcxx=3.4.30,kernel=6.1,machine=x86_64"
        line = f"pending: {reply.bundle.short} for {NAME}: {REASON}"
        explained = shell.aot("explain", "mini", "--host", host)
        assert line in explained.lines, explained
        told = shell.aot("explain", "mini", "--host", host, "--json").json
        assert told["pending"] == [{"bundle": reply.bundle, "profile": NAME, "waiting": REASON}]
        assert reply.bundle not in [decision["bundle"] for decision in told["decisions"]]
        crossed = shell.aot("matrix", "mini", "--hosts", host)
        assert line in crossed.lines, crossed
        waited = shell.aot("wait", str(reply.build))
        assert waited.code == 5 and f"is pending, {REASON}" in waited.err
