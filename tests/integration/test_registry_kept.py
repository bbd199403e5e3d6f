"""What a package keeps for other cards, in the registry: a blob of its bundle; and whom an untuned bundle answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.errors import Conflict, InvalidProfile, ProfileNotFound
from aot.pipeline.other_card import nothing_run
from aot.schema.devices import card_profile
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe
from aot.schema.state import BlobState, BundleState
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.schema.wire.bundles import FindRequest, TagRequest, WithdrawRequest
from aot.trust import TrustedKeys
from registry.services.fsck import fsck
from registry.services.reindex import reindex
from tests.builders import a_file, a_gpu_profile, a_manifest, a_qualification, a_spec, altered, an_artifact
from tests.integration.test_registry_fsck import overwrite
from tests.integration.test_registry_reindex import lose_the_database
from tests.integration.test_registry_retention import later, state_of
from tests.service import Service, a_service

H100 = a_gpu_profile()
FILES = (a_file("lib/model.so", b"wrapper"), a_file("cubin/c1.cubin", b"machine code"))
KEPT = a_file("kept/kernels.json.xz", b"before any card")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(H100)
        yield service


def for_card(profile: Profile = H100, *, mode: Mode = Mode.MAX_AUTOTUNE, **deviations: object) -> Manifest:
    """A proven bundle that keeps its kernels."""
    torch = profile.toolchain.torch
    fields = {"capability": profile.capability, "torch": torch, "files": FILES, "kept": KEPT}
    artifact = an_artifact(**(fields | deviations))
    spec = a_spec(profile=profile.name, recipe=Recipe(mode=mode))
    proof = a_qualification(profile=profile.name, torch=torch)
    return a_manifest(spec, profile=profile, artifacts=(artifact,), qualification=proof)


def published(service: Service, manifest: Manifest, *tags: str) -> Digest:
    build = service.submit(manifest.spec, tags=tags).build
    return service.publish(service.claim(manifest.profile.name, build=build.id), manifest).bundle


def a_card(name: str = "a100-sxm4-80gb", **toolchain: str) -> Profile:
    profile = card_profile(name, altered(H100.toolchain, **toolchain))
    assert profile is not None
    return profile


def untuned(profile: Profile, **deviations: object) -> Manifest:
    """What is pushed for a card that was not there: its artifact untuned, and nothing proven."""
    manifest = for_card(profile, tuned=False, speeds=(), **deviations)
    return altered(manifest, qualification=nothing_run(profile), canaries=())


def links_of(service: Service, bundle: Digest) -> set[Digest]:
    links = service.call("get_download_links", DownloadLinksRequest(), digest=bundle).links
    return {link.digest for link in links}


# The blob


def test_what_is_kept_is_linked_to_and_goes_with_its_bundle(service: Service) -> None:
    bundle = published(service, for_card())
    assert KEPT.digest in links_of(service, bundle)
    wanted = DownloadLinksRequest(digests=(KEPT.digest,))
    assert [link.digest for link in service.call("get_download_links", wanted, digest=bundle).links] == [KEPT.digest]
    later(service, days=30)
    assert state_of(service, KEPT.digest) is BlobState.STORED
    for _ in range(2):  # condemned, then deleted
        later(service, days=100)
    assert state_of(service, KEPT.digest) is None


def test_it_is_looked_at_like_every_blob(service: Service) -> None:
    published(service, for_card())
    assert fsck(service.deps, trusted=TrustedKeys.of(())).sound
    overwrite(service, KEPT.digest, b"after all cards")
    assert fsck(service.deps, trusted=TrustedKeys.of(())).damaged_blobs.keys() == {KEPT.digest}


def test_it_comes_back_with_a_lost_database(service: Service, tmp_path: Path) -> None:
    bundle = published(service, for_card())
    with lose_the_database(service, tmp_path) as again:
        reindex(again.deps, trusted=TrustedKeys.of(()))
        assert KEPT.digest in links_of(again, bundle)
        later(again, days=1)
        assert state_of(again, KEPT.digest) is BlobState.STORED


# Untuned bundles


def test_who_asks_for_tuning_is_not_answered_by_what_was_made_without_the_card(service: Service) -> None:
    card = a_card()
    pushed = service.push(untuned(card), tags=("prod",))
    assert pushed.state is BundleState.PENDING
    service.register(card, worker="worker-2")
    live = service.publish(service.claim(card.name, worker="worker-2"), for_card(card, tuned=False)).bundle
    assert service.call("resolve", namespace="default", name="mini", target="prod").bundles[0].digest == live
    asked = service.submit(for_card(card).spec)
    assert asked.created
    better = for_card(card, files=(a_file("lib/model.so", b"a tuned wrapper"),), kept=None)
    tuned = service.publish(service.claim(card.name, worker="worker-2", build=asked.build.id), better).bundle
    assert tuned != live
    again = service.submit(for_card(card).spec)
    assert (again.created, again.build.bundle) == (False, tuned)


def stands_for(service: Service, tag: str) -> Digest:
    return service.call("resolve", namespace="default", name="mini", target=tag).bundles[0].digest


def found(service: Service, manifest: Manifest) -> Digest | None:
    [target] = service.call("find", FindRequest(specs=(manifest.spec,))).targets
    return target.bundle.digest if target.bundle else None


def proven_without_the_card(service: Service, card: Profile, *tags: str) -> Digest:
    reply = service.push(untuned(card), tags=tags)
    claim = service.claim(card.name, worker="worker-2", build=reply.build)
    return service.publish(claim, for_card(card, tuned=False)).bundle


def test_what_was_made_without_the_card_takes_nothing_from_what_was_tuned_on_it(service: Service) -> None:
    card = a_card()
    service.register(card, worker="worker-2")
    build = service.submit(for_card(card).spec, tags=("prod",)).build
    better = for_card(card, files=(a_file("lib/model.so", b"a tuned wrapper"),), kept=None)
    tuned = service.publish(service.claim(card.name, worker="worker-2", build=build.id), better).bundle
    service.clock.advance(60)
    other = proven_without_the_card(service, card, "prod", "canary")
    assert (stands_for(service, "prod"), stands_for(service, "canary")) == (tuned, other)
    assert found(service, better) == tuned
    assert service.push(untuned(card), tags=("prod",)).bundle == other
    for expected in (None, tuned):
        with pytest.raises(Conflict, match="prod stands for what was tuned on a100-sxm4-80gb") as caught:
            request = TagRequest(bundle=other, expected=expected)
            service.call("tag", request, namespace="default", name="mini", tag="prod")
        assert "withdraw the tuned bundle" in caught.value.hint
    assert stands_for(service, "prod") == tuned
    # And not for longer than that is live.
    service.call("withdraw", WithdrawRequest(reason="wrong"), digest=tuned)
    assert found(service, better) is None
    service.call("tag", TagRequest(bundle=other), namespace="default", name="mini", tag="prod")
    assert stands_for(service, "prod") == other


def test_what_was_tuned_on_the_card_takes_the_tag_of_what_was_not(service: Service) -> None:
    card = a_card()
    service.register(card, worker="worker-2")
    other = proven_without_the_card(service, card, "prod")
    assert stands_for(service, "prod") == other and found(service, for_card(card)) is None
    build = service.submit(for_card(card).spec, tags=("prod",)).build
    better = for_card(card, files=(a_file("lib/model.so", b"a tuned wrapper"),), kept=None)
    tuned = service.publish(service.claim(card.name, worker="worker-2", build=build.id), better).bundle
    assert stands_for(service, "prod") == tuned == found(service, better)


def test_where_nothing_is_tuned_anyway_it_answers_like_every_bundle(service: Service) -> None:
    card = a_card()
    service.push(untuned(card, mode=Mode.DEFAULT))
    service.register(card, worker="worker-2")
    manifest = for_card(card, tuned=False, mode=Mode.DEFAULT)
    live = service.publish(service.claim(card.name, worker="worker-2"), manifest).bundle
    answer = service.submit(manifest.spec)
    assert (answer.created, answer.build.bundle) == (False, live) and found(service, manifest) == live


# Cards that no worker is


def test_a_card_of_the_catalogue_is_made_known_by_a_push_alone(service: Service) -> None:
    card = a_card()
    with pytest.raises(ProfileNotFound):
        service.submit(for_card(card).spec)
    reply = service.push(untuned(card))
    assert service.call("get_build", build=reply.build).waiting == "not run: needs a cuda:sm_80 device"
    service.sweep()
    assert service.call("get_build", build=reply.build).waiting == "not run: needs a cuda:sm_80 device"
    listed = {view.profile.name: view for view in service.call("list_profiles").profiles}
    assert (listed[card.name].profile, listed[card.name].held) == (card, False)
    # Another toolchain takes its place, until a worker is that card: then it is what the worker says.
    newer = a_card(triton="3.9.0")
    service.push(untuned(newer))
    service.register(card, worker="worker-2")
    with pytest.raises(Conflict, match=r"another a100-sxm4-80gb: triton is \"3\.9\.0\", the workers have \"3\.7"):
        service.push(untuned(newer, files=FILES[:1]))


def test_what_no_catalogue_has_is_made_known_by_nobody(service: Service) -> None:
    card = a_card()
    larger = altered(card, device=altered(card.device, memory_bytes=1 << 40))
    for profile in (larger, altered(card, packages={"numpy": "2"})):
        with pytest.raises(ProfileNotFound):
            service.push(untuned(profile))
    with pytest.raises((ProfileNotFound, InvalidProfile)):
        service.push(altered(untuned(card), qualification=a_qualification(profile=card.name)))
