"""Reindex: what the object store holds is enough to make the rows again."""

import base64
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from aot.errors import BundleNotFound, BundleWithdrawn, StorageUnavailable, TagNotFound
from aot.schema.codec import decode, encode
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope, Statement, decode_manifest
from aot.schema.names import Namespace
from aot.schema.state import BundleState
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.schema.wire.bundles import TagRequest, WithdrawRequest
from aot.trust import SigningKey, TrustedKeys, seal, sign, verify
from registry.db import records as record_rows
from registry.db.blobs import views_of
from registry.db.models import BundleRow
from registry.services import records
from registry.services.records import BundleRecord
from registry.services.reindex import Reindexed, reindex
from registry.services.retention import retain
from tests.builders import BYTES, a_profile
from tests.integration.test_registry_process import run
from tests.integration.test_registry_retention import DAY, a_bundle, file_of
from tests.service import Service, a_service

NOBODY = TrustedKeys.of(())


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def lose_the_database(service: Service, tmp_path: Path):
    """Another service on an empty database over the same blobs and keys."""
    service.deps.sessions.close()
    for path in tmp_path.glob("registry.sqlite3*"):
        path.unlink()
    return a_service(tmp_path)


def reindexed(service: Service, *, trusted: TrustedKeys = NOBODY) -> Reindexed:
    return reindex(service.deps, trusted=trusted)


def resolve(service: Service, name: str, target: str):
    return service.call("resolve", namespace="default", name=name, target=target).bundles


def test_everything_published_resolves_again_with_its_signature(service: Service, tmp_path: Path) -> None:
    first = a_bundle(service, "one", tags=("prod", "v1"))
    second = a_bundle(service, "two")
    before = [resolve(service, "one", "prod"), resolve(service, "two", second)]
    views = [service.call("get_bundle", digest=digest) for digest in (first, second)]
    with lose_the_database(service, tmp_path) as again:
        with pytest.raises(TagNotFound):
            resolve(again, "one", "prod")
        done = reindexed(again)
        assert set(done.bundles) == {first, second} and done.damaged == () and done.refused == {}
        assert set(done.tags) == {"default/one:prod", "default/one:v1"}
        assert [resolve(again, "one", "prod"), resolve(again, "two", second)] == before
        found = [again.call("get_bundle", digest=digest) for digest in (first, second)]
        # When it was used last is not known: the one without a tag has its time from now on.
        assert found == [views[0], replaced(views[1], expires_at=again.clock() + again.deps.settings.keep)]
        trusted = TrustedKeys.of(str(key.public) for key in again.deps.signing_keys)
        for one in before:
            verify(one[0].envelope, trusted, manifest=one[0].digest, namespace="default", name=found_name(one))
        links = again.call("get_download_links", DownloadLinksRequest(digests=()), digest=first).links
        assert [again.http.get(link.url).content for link in links] == [BYTES[link.digest] for link in links]


def found_name(found) -> str:
    return decode(found[0].manifest.encode(), dict)["name"]


def test_a_second_pass_adds_nothing(service: Service, tmp_path: Path) -> None:
    a_bundle(service, "one", tags=("prod",))
    assert reindexed(service) == Reindexed((), (), (), {})
    with lose_the_database(service, tmp_path) as again:
        assert len(reindexed(again).bundles) == 1
        assert reindexed(again) == Reindexed((), (), (), {})
        assert again.sweep().recorded == 0


def test_a_tag_comes_back_where_it_stood_last(service: Service, tmp_path: Path) -> None:
    first = a_bundle(service, "one", tags=("prod",))
    second = another_of(service, "one")
    service.call("tag", TagRequest(bundle=second), namespace="default", name="one", tag="prod")
    with lose_the_database(service, tmp_path) as again:
        reindexed(again)
        assert [bundle.digest for bundle in resolve(again, "one", "prod")] == [second] != [first]


def another_of(service: Service, name: str) -> Digest:
    from tests.builders import a_manifest, a_source, a_spec

    claim = service.claim("cpu-v3", build=service.submit(a_spec(name, source=a_source(b"newer"))).build.id)
    return service.publish(claim, a_manifest(claim.spec, profile=claim.profile)).bundle


def test_what_was_withdrawn_stays_withdrawn(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    service.call("withdraw", WithdrawRequest(reason="wrong numbers"), digest=bundle)
    with lose_the_database(service, tmp_path) as again:
        reindexed(again)
        with pytest.raises(BundleWithdrawn, match="wrong numbers"):
            resolve(again, "one", "prod")


def test_what_expired_does_not_come_back(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one")
    service.clock.advance(91 * DAY)
    assert retain(service.deps).bundles == (bundle,)
    with lose_the_database(service, tmp_path) as again:
        assert reindexed(again).bundles == ()
        with pytest.raises(BundleNotFound):
            again.call("get_bundle", digest=bundle)


def test_a_bundle_whose_bytes_are_gone_is_known_and_out_of_selection(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    file = file_of(service, bundle)
    service.deps.store.delete(file)
    with lose_the_database(service, tmp_path) as again:
        assert reindexed(again).damaged == (bundle,)
        with pytest.raises(StorageUnavailable, match=str(file)):
            resolve(again, "one", "prod")


def test_records_that_no_trusted_key_signed_are_refused(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    stranger = SigningKey.generate()
    record = bundle_record(service, bundle)
    manifest = decode_manifest(record.manifest.encode())
    statement = Statement(
        manifest=bundle, namespace=manifest.namespace, name=manifest.name, build_key=manifest.build_key
    )
    forged = replaced(record, envelope=sign(statement, stranger))
    put_bundle(service, bundle, forged, stranger)
    with lose_the_database(service, tmp_path) as again:
        done = reindexed(again)
        assert done.bundles == () and done.tags == ()
        assert set(done.refused) == {records.bundle_name(bundle), TAG_OF_ONE}
        # A key that was retired is named by the operator.
        assert reindexed(again, trusted=TrustedKeys.of((str(stranger.public),))).bundles == (bundle,)


TAG_OF_ONE = "tags/default/one/prod/cpu-v3.json"


def own_keys(service: Service) -> TrustedKeys:
    return TrustedKeys.of(str(key.public) for key in service.deps.signing_keys)


def bundle_record(service: Service, bundle: Digest) -> BundleRecord:
    content = service.deps.records.find(records.bundle_name(bundle))
    return records.read_bundle(content, keys=own_keys(service))


def put_bundle(service: Service, bundle: Digest, record: BundleRecord, *keys: SigningKey) -> None:
    sealed = seal(encode(record), records.BUNDLE_KIND, *keys)
    service.deps.records.put(records.bundle_name(bundle), encode(sealed))


def replaced(record, **changes):
    return msgspec.structs.replace(record, **changes)


def altered(sealed: bytes, **changes) -> bytes:
    """What somebody who can write to the bucket makes of a signed record: other words, the old signature."""
    envelope = decode(sealed, Envelope)
    payload = msgspec.json.decode(base64.b64decode(envelope.payload)) | changes
    return encode(replaced(envelope, payload=base64.b64encode(msgspec.json.encode(payload)).decode()))


def test_nobody_but_the_registry_brings_back_what_was_withdrawn(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    service.call("withdraw", WithdrawRequest(reason="wrong numbers"), digest=bundle)
    name = records.bundle_name(bundle)
    live = altered(service.deps.records.find(name), state="live", withdrawn_at=None, withdrawn_reason="")
    service.deps.records.put(name, live)
    with lose_the_database(service, tmp_path) as again:
        done = reindexed(again)
        assert done.bundles == () and "altered" in done.refused[name]
        with pytest.raises(TagNotFound):
            resolve(again, "one", "prod")


def test_nobody_but_the_registry_moves_a_tag(service: Service, tmp_path: Path) -> None:
    first = a_bundle(service, "one", tags=("prod",))
    second = another_of(service, "one")
    service.call("tag", TagRequest(bundle=second), namespace="default", name="one", tag="prod")
    moved = altered(service.deps.records.find(TAG_OF_ONE), bundle=str(first))
    service.deps.records.put(TAG_OF_ONE, moved)
    with lose_the_database(service, tmp_path) as again:
        done = reindexed(again)
        assert set(done.bundles) == {first, second} and done.tags == ()
        assert "altered" in done.refused[TAG_OF_ONE]
        with pytest.raises(TagNotFound):
            resolve(again, "one", "prod")


def test_a_record_counts_only_as_what_it_was_signed_as(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    bundles, tags = records.bundle_name(bundle), TAG_OF_ONE
    service.deps.records.put(tags, service.deps.records.find(bundles))
    with lose_the_database(service, tmp_path) as again:
        done = reindexed(again)
        assert done.bundles == (bundle,) and set(done.refused) == {tags} and records.TAG_KIND in done.refused[tags]


def test_a_state_that_no_record_has_is_refused(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one")
    pending = replaced(bundle_record(service, bundle), state=BundleState.PENDING)
    put_bundle(service, bundle, pending, *service.deps.signing_keys)
    with lose_the_database(service, tmp_path) as again:
        done = reindexed(again)
        assert done.bundles == () and "is pending" in done.refused[records.bundle_name(bundle)]


def test_records_of_before_they_were_signed_count_where_the_operator_says_so(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    name = records.bundle_name(bundle)
    bare = encode(bundle_record(service, bundle))
    tag = encode(records.read_tag(service.deps.records.find(TAG_OF_ONE), keys=own_keys(service)))
    service.deps.records.put(name, bare)
    service.deps.records.put(TAG_OF_ONE, tag)
    with lose_the_database(service, tmp_path) as again:
        done = reindexed(again)
        assert (done.bundles, done.tags) == ((), ())
        for one in (name, TAG_OF_ONE):
            assert "not signed" in done.refused[one] and "--unsigned" in done.refused[one]
        answer = run(tmp_path, "reindex", "--unsigned")
        assert answer.returncode == 0 and str(bundle) in answer.stdout, answer.stderr
        assert [one.digest for one in resolve(again, "one", "prod")] == [bundle]
        assert again.sweep().recorded == 2  # signed from now on
        assert bundle_record(again, bundle).state is BundleState.LIVE
    with lose_the_database(service, tmp_path) as once_more:
        assert reindexed(once_more).refused == {}


def test_even_then_the_manifest_must_be_signed(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one")
    stranger = sign(
        Statement(manifest=bundle, namespace="default", name="one", build_key=bundle), SigningKey.generate()
    )
    bare = encode(replaced(bundle_record(service, bundle), envelope=stranger))
    service.deps.records.put(records.bundle_name(bundle), bare)
    with lose_the_database(service, tmp_path) as again:
        done = reindex(again.deps, trusted=NOBODY, unsigned=True)
        assert done.bundles == () and "signed by" in done.refused[records.bundle_name(bundle)]


def test_a_record_that_outlived_its_bundle_in_a_crash_is_removed_later(
    service: Service, tmp_path: Path, monkeypatch
) -> None:
    bundle = a_bundle(service, "one")
    name = records.bundle_name(bundle)

    def away(self, name: str) -> None:
        raise StorageUnavailable("the store is away", hint="wait")

    service.clock.advance(91 * DAY)
    monkeypatch.setattr(type(service.deps.records), "delete", away)
    with pytest.raises(StorageUnavailable):
        retain(service.deps)
    monkeypatch.undo()
    assert service.deps.records.find(name) is not None  # its rows are gone
    retain(service.deps)
    assert service.deps.records.find(name) is None
    with lose_the_database(service, tmp_path) as again:
        assert reindexed(again).bundles == ()


def test_a_bundle_published_again_keeps_its_new_record(service: Service, monkeypatch) -> None:
    bundle = a_bundle(service, "one")
    row = bundle_record(service, bundle)
    with service.deps.sessions.transaction() as session:
        record_rows.begin_forgetting([bundle, bundle], now=service.clock(), session=session)
    assert records.forget_due(service.deps) == 1 and records.forget_due(service.deps) == 0
    assert service.deps.records.find(records.bundle_name(bundle)) is None
    assert service.sweep().recorded == 1
    assert bundle_record(service, bundle) == row


def test_condemned_bytes_live_again_with_a_bundle_that_comes_back(service: Service) -> None:
    bundle = a_bundle(service, "one")
    file, name = file_of(service, bundle), records.bundle_name(bundle)
    kept = service.deps.records.find(name)
    service.clock.advance(91 * DAY)
    assert file in retain(service.deps).condemned
    service.deps.records.put(name, kept)
    assert reindexed(service).bundles == (bundle,)
    with service.deps.sessions.reading() as session:
        view, _ = views_of((file,), namespace=Namespace("default"), session=session)[file]
    assert view.opened_at == service.clock(), "as one that was asked for now"
    service.clock.advance(2 * DAY)
    retain(service.deps)
    assert service.deps.store.stat(file) is not None
    links = service.call("get_download_links", DownloadLinksRequest(digests=()), digest=bundle).links
    assert [service.http.get(link.url).content for link in links] == [BYTES[file]]


def test_changed_and_cut_records_are_refused(service: Service, tmp_path: Path) -> None:
    first, second = a_bundle(service, "one"), a_bundle(service, "two")
    for bundle, change in ((first, lambda text: text.replace(b"eyJ", b"eyK", 1)), (second, lambda text: text[:-40])):
        name = records.bundle_name(bundle)
        service.deps.records.put(name, change(service.deps.records.find(name)))
    with lose_the_database(service, tmp_path) as again:
        done = reindexed(again)
        assert done.bundles == () and len(done.refused) == 2


def test_a_store_that_was_away_at_publish_gets_its_record_later(service: Service, monkeypatch) -> None:
    def away(name: str, content: bytes) -> None:
        raise StorageUnavailable("the store is away", hint="wait")

    monkeypatch.setattr(type(service.deps.records), "put", lambda self, name, content: away(name, content))
    bundle = a_bundle(service, "one", tags=("prod",))
    monkeypatch.undo()
    assert service.deps.records.find(records.bundle_name(bundle)) is None
    assert service.sweep().recorded == 2
    assert service.deps.records.find(records.bundle_name(bundle)) is not None
    assert service.sweep().recorded == 0


def test_a_record_written_over_a_newer_one_is_due_again(service: Service) -> None:
    """One process reads the live row, another withdraws and records that, then the first one's write arrives."""
    bundle = a_bundle(service, "one")
    with service.deps.sessions.transaction() as session:
        session.get(BundleRow, bundle).recorded_at = None
    kept = service.deps.records

    class Slow:
        def put(self, name: str, content: bytes) -> None:
            service.call("withdraw", WithdrawRequest(reason="bad"), digest=bundle)
            kept.put(name, content)

    records.write_due(replace(service.deps, records=Slow()), bundle=bundle)
    service.sweep()
    assert bundle_record(service, bundle).withdrawn_reason == "bad"


def test_the_command_reindexes(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    with lose_the_database(service, tmp_path):
        answer = run(tmp_path, "reindex")
        assert answer.returncode == 0, answer.stderr
        assert str(bundle) in answer.stdout
