"""Bundles as clients look for them: resolve, links, find, search, tag, withdraw."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from aot.errors import (
    BlobNotFound,
    BundleNotFound,
    BundleWithdrawn,
    Forbidden,
    InvalidInput,
    NotFound,
    ProfileNotFound,
    TagMoved,
    TagNotFound,
)
from aot.keys import factors_of, key_of
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.recipe import Recipe
from aot.schema.state import BundleState
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.schema.wire.bundles import FindRequest, TagRequest, WithdrawRequest
from aot.schema.wire.workers import Scope
from tests.builders import (
    a_file,
    a_frozen_spec,
    a_manifest,
    a_profile,
    a_source,
    a_spec,
    an_artifact,
)
from tests.service import Service, a_service

V2 = a_profile("cpu-v2", capability="cpu:x86-64-v2")
NOWHERE = Digest("sha256:" + "0" * 64)
MODEL = {"namespace": "default", "name": "mini"}


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile(), V2)
        yield service


def resolve(service: Service, target: str, **fields) -> list[Digest]:
    return [bundle.digest for bundle in service.call("resolve", target=target, **MODEL, **fields).bundles]


def tag(service: Service, name: str, bundle: Digest, expected: Digest | None = None, **fields):
    return service.call("tag", TagRequest(bundle=bundle, expected=expected), tag=name, **MODEL, **fields)


def another(service: Service, content: bytes) -> Digest:
    return service.published(a_spec(source=a_source(content))).bundle


def test_one_tag_serves_a_fleet_with_one_bundle_a_profile(service: Service) -> None:
    high = service.published(a_spec(), tags=("v1",)).bundle
    low = service.published(a_spec(profile="cpu-v2"), tags=("v1",)).bundle
    assert resolve(service, "v1") == [low, high]
    newer = service.published(a_spec(source=a_source(b"newer")), tags=("v1",)).bundle
    assert resolve(service, "v1") == [low, newer]
    assert resolve(service, high) == [high]


@pytest.mark.parametrize("target", ["v9", Digest.of(b"x")])
def test_what_does_not_exist_is_not_found(service: Service, target: str) -> None:
    with pytest.raises(BundleNotFound if target.startswith("sha256:") else TagNotFound):
        resolve(service, target)


@pytest.mark.parametrize("target", ["sha256:abc", "a b", "*"])
def test_targets_that_are_neither_tag_nor_digest_are_refused(service: Service, target: str) -> None:
    with pytest.raises(InvalidInput):
        resolve(service, target)


def test_a_bundle_is_resolved_under_its_own_name_only(service: Service) -> None:
    digest = service.published(a_spec()).bundle
    with pytest.raises(BundleNotFound):
        service.call("resolve", namespace="default", name="maxi", target=digest)


def test_links_lead_to_the_blobs_asked_for(service: Service) -> None:
    service.submit(a_spec())
    kernel = a_file("cubin/k.cubin", b"kernel")
    manifest = a_manifest(artifacts=(an_artifact(files=(a_file(), kernel)),))
    digest = service.publish(service.claim("cpu-v3"), manifest).bundle

    def ask(*digests: Digest):
        return service.call("get_download_links", DownloadLinksRequest(digests=digests), digest=digest).links

    assert {link.digest for link in ask()} == {blob.digest for blob in manifest.blobs}
    assert [(link.digest, link.size_bytes) for link in ask(kernel.digest)] == [(kernel.digest, kernel.size_bytes)]
    with pytest.raises(BlobNotFound):
        ask(kernel.digest, Digest.of(b"stranger"))
    # The source is the submitter's: it is no blob of the bundle.
    with pytest.raises(BlobNotFound):
        ask(a_spec().blobs[0].digest)


def test_a_tag_is_moved_and_moved_back(service: Service) -> None:
    first, second = another(service, b"1"), another(service, b"2")
    service.clock.advance(5)
    view = tag(service, "prod", first)
    assert (view.reference, view.bundle, view.profile) == (Reference("default/mini:prod"), first, "cpu-v3")
    assert view.moved_at == service.clock()
    tag(service, "prod", second)
    assert resolve(service, "prod") == [second]
    tag(service, "prod", first, expected=second)
    assert resolve(service, "prod") == [first]


def test_a_tag_moves_only_from_where_it_is_expected(service: Service) -> None:
    first, second = another(service, b"1"), another(service, b"2")
    with pytest.raises(TagMoved) as refusal:
        tag(service, "prod", first, expected=second)
    assert refusal.value.details == {"found": None}
    tag(service, "prod", first, expected=NOWHERE)
    for expected in (NOWHERE, second):
        with pytest.raises(TagMoved) as refusal:
            tag(service, "prod", second, expected=expected)
        assert refusal.value.details == {"found": first}
    assert resolve(service, "prod") == [first]


def test_of_eight_that_move_a_tag_from_one_place_one_does(service: Service) -> None:
    first, second = another(service, b"1"), another(service, b"2")
    tag(service, "prod", first)

    def attempt(_) -> bool:
        try:
            tag(service, "prod", second, expected=first)
        except TagMoved:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


def test_a_tag_stands_for_live_bundles_of_its_own_model(service: Service) -> None:
    other = service.published(a_spec("maxi")).bundle
    with pytest.raises(BundleNotFound):
        tag(service, "prod", other)
    gone = another(service, b"1")
    service.call("withdraw", WithdrawRequest(reason="wrong"), digest=gone)
    with pytest.raises(BundleWithdrawn):
        tag(service, "prod", gone)
    with pytest.raises(Forbidden):
        tag(service, "prod", gone, token=service.token(Scope.TAG, namespaces=("ours",)))


def test_a_withdrawn_bundle_says_why_and_what_to_use_instead(service: Service) -> None:
    service.published(a_spec(), tags=("v1",))
    good = another(service, b"2")
    [bad] = resolve(service, "v1")
    service.clock.advance(5)
    view = service.call("withdraw", WithdrawRequest(reason="wrong by 41", replacement=good), digest=bad)
    assert (view.state, view.withdrawn_reason, view.replacement) == (
        BundleState.WITHDRAWN,
        "wrong by 41",
        good,
    )
    links = DownloadLinksRequest()
    for call in (
        lambda: resolve(service, "v1"),
        lambda: resolve(service, bad),
        lambda: service.call("get_download_links", links, digest=bad),
    ):
        with pytest.raises(BundleWithdrawn, match="wrong by 41") as refusal:
            call()
        assert refusal.value.details == {"reason": "wrong by 41", "replacement": good}
    again = service.call("withdraw", WithdrawRequest(reason="other"), digest=bad)
    assert again == view


def test_a_tag_of_several_profiles_goes_on_without_the_withdrawn_one(service: Service) -> None:
    high = service.published(a_spec(), tags=("v1",)).bundle
    low = service.published(a_spec(profile="cpu-v2"), tags=("v1",)).bundle
    service.call("withdraw", WithdrawRequest(reason="wrong"), digest=high)
    assert resolve(service, "v1") == [low]


def test_a_replacement_is_another_live_bundle_of_the_same_model(service: Service) -> None:
    bad, other = another(service, b"1"), service.published(a_spec("maxi")).bundle
    for replacement in (bad, other, Digest.of(b"unknown")):
        with pytest.raises(BundleNotFound):
            service.call("withdraw", WithdrawRequest(reason="x", replacement=replacement), digest=bad)
    assert service.call("get_bundle", digest=bad).state is BundleState.LIVE


def test_find_answers_many_specs_at_once(service: Service) -> None:
    live = service.published(a_spec(), tags=("v1",))
    building = service.submit(a_spec("second")).build
    specs = (a_spec(), a_spec("second"), a_spec("third"), a_spec(recipe=Recipe(fullgraph=False)))
    targets = service.call("find", FindRequest(specs=specs)).targets
    assert [target.build_key for target in targets] == [key_of(factors_of(spec, a_profile())) for spec in specs]
    assert targets[0].factors == factors_of(a_spec(), a_profile())
    assert [target.bundle.digest if target.bundle else None for target in targets] == [
        live.bundle,
        None,
        None,
        None,
    ]
    assert [target.build.id if target.build else None for target in targets] == [
        None,
        building.id,
        None,
        None,
    ]
    assert targets[0].bundle.tags == ("v1",) and targets[0].bundle.envelope.signatures


def test_find_names_the_profiles_there_are(service: Service) -> None:
    with pytest.raises(ProfileNotFound, match="cpu-v2, cpu-v3"):
        service.call("find", FindRequest(specs=(a_spec(), a_spec(profile="h100"))))


def test_find_has_a_bound(service: Service) -> None:
    with pytest.raises(InvalidInput):
        service.call("find", FindRequest(specs=(a_spec(),) * 501))


def test_search_finds_by_what_is_asked(service: Service) -> None:
    mini = service.published(a_spec(), tags=("v1",)).bundle
    low = service.published(a_spec(profile="cpu-v2")).bundle
    theirs = service.published(a_spec("big_model", namespace="theirs")).bundle
    frozen = service.published(a_frozen_spec("frozen")).bundle
    service.call("withdraw", WithdrawRequest(reason="x"), digest=low)
    key = service.call("get_bundle", digest=mini).build_key

    def found(**query) -> set[Digest]:
        return {bundle.digest for bundle in service.call("search", query=query).bundles}

    assert found() == {mini, low, theirs, frozen}
    assert found(namespace="theirs") == {theirs}
    assert found(name="mini") == {mini, low}
    assert found(text="ini") == {mini, low}
    assert found(text="_") == {theirs}
    assert found(text="%") == set()
    assert found(profile="cpu-v2") == found(capability="cpu:x86-64-v2") == found(state="withdrawn") == {low}
    assert found(torch="2.13.0+cpu") == {mini, low, theirs, frozen}
    assert found(torch="\0") == found(route="cache") == set()
    assert found(tag="v1") == {mini}
    assert found(build_key=key) == {mini, theirs}  # equal questions under two names
    assert found(route="package", state="live") == {mini, theirs, frozen}
    [view] = service.call("search", query={"name": "frozen"}).bundles
    assert view.frozen
    limited = service.token(Scope.READ, namespaces=("theirs",))
    assert [bundle.digest for bundle in service.call("search", token=limited).bundles] == [theirs]


def test_search_goes_page_by_page_newest_first(service: Service) -> None:
    published = []
    for step in range(5):
        service.clock.advance(step % 2)  # some at the same moment
        published.append(another(service, b"%d" % step))
    seen, after = [], None
    while True:
        query = {"limit": 2} | ({"after": after} if after else {})
        page = service.call("search", query=query)
        seen += page.bundles
        after = page.next
        if after is None:
            break
    assert sorted(bundle.digest for bundle in seen) == sorted(published)
    assert [bundle.created_at for bundle in seen] == sorted((bundle.created_at for bundle in seen), reverse=True)


@pytest.mark.parametrize("after", ["x", "2026-01-01T00:00:00~sha256:0", "2026-01-01T00:00:00+00:00~x"])
def test_a_position_that_no_listing_gave_is_refused(service: Service, after: str) -> None:
    with pytest.raises(InvalidInput):
        service.call("search", query={"after": after})


@pytest.mark.parametrize("digest", ["sha256:ABC", "x", "\0"])
def test_a_digest_that_is_none_is_refused(service: Service, digest: str) -> None:
    with pytest.raises((InvalidInput, NotFound)):
        service.call("get_bundle", digest=digest)
