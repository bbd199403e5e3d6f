"""fsck: damage is found, taken out with its reason, and comes back with the right bytes."""

from datetime import timedelta
from pathlib import Path

import pytest

from aot.errors import BlobPending, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Tag
from aot.schema.spec import Blob
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.schema.wire.bundles import FindRequest, PublishRequest
from aot.trust import TrustedKeys
from registry.db import damage as damage_rows
from registry.db.models import BlobRow, BundleRow
from registry.services import damage, records
from registry.services.fsck import Checked, fsck
from registry.services.hashing import Hashing
from tests.builders import BYTES, a_profile, a_source, a_spec, manifest_text
from tests.integration.test_registry_process import run
from tests.integration.test_registry_retention import a_built, a_bundle, a_claim, file_of
from tests.service import Service, a_service


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def checked(service: Service) -> Checked:
    return fsck(service.deps, trusted=TrustedKeys.of(()))


def overwrite(service: Service, digest: Digest, content: bytes) -> None:
    service.overwrite(digest, content)


def resolve(service: Service, name: str = "mini", target: str = "prod") -> list[Digest]:
    return [bundle.digest for bundle in service.call("resolve", namespace="default", name=name, target=target).bundles]


def blob_of(digest: Digest) -> Blob:
    return Blob(digest=digest, size_bytes=len(BYTES[digest]))


def test_what_is_sound_is_counted_and_left_alone(service: Service) -> None:
    bundle = a_bundle(service, tags=("prod",))
    found = checked(service)
    assert found.sound and (found.blobs, found.bundles, found.rewritten_records) == (2, 1, 0)
    assert found.read_bytes == sum(len(BYTES[digest]) for digest in (file_of(service, bundle), source_of(service)))
    assert resolve(service) == [bundle]


def source_of(service: Service) -> Digest:
    return a_source(b"source of mini").tree.digest


@pytest.mark.parametrize("kind", ["other bytes", "cut", "longer", "missing"])
def test_damage_takes_the_bundle_out_and_the_right_bytes_bring_it_back(service: Service, kind: str) -> None:
    bundle = a_bundle(service, tags=("prod",))
    other = a_bundle(service, "other", tags=("prod",))
    file = file_of(service, bundle)
    right = BYTES[file]
    match kind:
        case "other bytes":
            overwrite(service, file, right[::-1])
        case "cut":
            overwrite(service, file, right[:-1])
        case "longer":
            overwrite(service, file, right + b"!")
        case "missing":
            service.deps.store.delete(file)
    found = checked(service)
    assert set(found.damaged_blobs) == {file} and set(found.damaged_bundles) == {bundle}
    assert service.deps.store.stat(file) is None
    with pytest.raises(StorageUnavailable, match=str(file)):
        resolve(service)
    with pytest.raises(StorageUnavailable, match=str(file)):
        service.call("get_download_links", DownloadLinksRequest(digests=()), digest=bundle)
    assert str(file) in service.call("get_bundle", digest=bundle).withdrawn_reason
    assert resolve(service, "other") == [other]

    assert service.upload([blob_of(file)]) == [file]
    assert service.sweep().healed == (bundle,)
    assert resolve(service) == [bundle]
    assert checked(service).sound
    assert service.call("get_bundle", digest=bundle).withdrawn_reason == ""


def test_a_damaged_bundle_is_built_again_when_it_is_asked_for(service: Service) -> None:
    bundle = a_bundle(service)
    service.deps.store.delete(file_of(service, bundle))
    spec = a_spec(source=a_source(b"source of mini"))
    assert service.call("find", FindRequest(specs=(spec,))).targets[0].bundle is not None
    checked(service)
    assert service.call("find", FindRequest(specs=(spec,))).targets[0].bundle is None
    assert service.submit(spec, tags=(Tag("prod"),)).created


def test_wrong_bytes_uploaded_again_do_not_heal(service: Service) -> None:
    bundle = a_bundle(service, tags=("prod",))
    file = file_of(service, bundle)
    service.deps.store.delete(file)
    checked(service)
    overwrite(service, file, BYTES[file][::-1])  # as a store that compares nothing would keep them
    assert service.sweep().healed == ()
    assert service.deps.store.stat(file) is None
    with pytest.raises(StorageUnavailable):
        resolve(service)


def test_a_bundle_that_lacks_two_blobs_waits_for_both(service: Service) -> None:
    bundle = a_bundle(service, "mini", tags=("prod",), content=b"first file")
    twin = a_bundle(service, "twin", tags=("prod",), content=b"first file")
    file = file_of(service, bundle)
    service.deps.store.delete(file)
    service.deps.store.delete(source_of(service))
    found = checked(service)
    # Sources are no part of a bundle: theirs is reported and puts nothing out.
    assert set(found.damaged_blobs) == {file, source_of(service)}
    assert set(found.damaged_bundles) == {bundle, twin}
    service.upload([blob_of(file)])
    assert set(service.sweep().healed) == {bundle, twin}


def test_an_upload_by_another_namespace_heals_too(service: Service) -> None:
    bundle = a_bundle(service, tags=("prod",))
    file = file_of(service, bundle)
    service.deps.store.delete(file)
    checked(service)
    service.upload([blob_of(file)], namespace="elsewhere")
    assert service.sweep().healed == (bundle,)


@pytest.mark.parametrize("moment", ["before the bytes are gone", "after"])
def test_a_crash_between_rows_and_bytes_lets_nobody_count_on_the_wrong_ones(
    service: Service, monkeypatch, moment: str
) -> None:
    """The store compares what it is sent, and is believed: wrong bytes that lie there would pass for the right ones."""
    assert service.deps.store.enforces_checksum
    bundle = a_bundle(service, tags=("prod",))
    file = file_of(service, bundle)
    overwrite(service, file, BYTES[file][::-1])

    def crash(*given: object, **named: object) -> None:
        raise StorageUnavailable("the power is out", hint="wait")

    if moment == "after":
        monkeypatch.setattr(damage_rows, "end_removal", crash)
    else:
        monkeypatch.setattr(type(service.deps.store), "delete", crash)
    with pytest.raises(StorageUnavailable, match="the power is out"):
        checked(service)
    monkeypatch.undo()
    with pytest.raises(StorageUnavailable, match=str(file)):
        resolve(service)
    for _ in range(2):
        with pytest.raises(BlobPending):  # never "there already"
            service.upload([blob_of(file)])
        assert service.sweep().healed == ()  # whoever removes may still be at it
    claim = a_claim(service, "twin")
    text, _ = manifest_text(a_built(claim, BYTES[file]))
    with pytest.raises(BlobPending):
        service.call("publish", PublishRequest(manifest=text), token=claim.token, build=claim.build)
    service.clock.advance(601)
    service.register(a_profile())
    assert service.sweep().healed == ()
    assert service.deps.store.stat(file) is None
    assert service.upload([blob_of(file)]) == [file]
    assert service.sweep().healed == (bundle,)
    assert resolve(service) == [bundle] and checked(service).sound


def test_of_two_that_end_a_removal_the_second_changes_nothing(service: Service) -> None:
    file = file_of(service, a_bundle(service))
    first, second = service.clock(), service.clock() + timedelta(seconds=1)
    with service.deps.sessions.transaction() as session:
        [blob] = [one for one in damage_rows.stored_blobs(session, after=None, limit=9) if one.digest == file]
        again = blob._replace(stored_at=blob.stored_at - timedelta(seconds=1))
        assert not damage_rows.begin_removal(again, now=first, session=session), "it was stored since"
        assert damage_rows.begin_removal(blob, now=first, session=session)
        assert not damage_rows.begin_removal(blob, now=second, session=session)
        assert damage_rows.take_over_removal(file, since=first, now=second, session=session)
        assert not damage_rows.take_over_removal(file, since=first, now=second, session=session)
        assert not damage_rows.end_removal(file, session, since=first)
        assert damage_rows.end_removal(file, session, since=second)
        assert not damage_rows.end_removal(file, session, since=second)


def damaged(service: Service, count: int) -> list[Digest]:
    """That many bundles whose one file is missing; the files, by digest."""
    files = sorted(file_of(service, a_bundle(service, f"m{number}")) for number in range(count))
    for file in files:
        service.deps.store.delete(file)
    checked(service)
    return files


def test_a_pass_heals_a_bounded_number_and_the_next_one_goes_on(service: Service, monkeypatch) -> None:
    monkeypatch.setattr(damage, "MOST_A_PASS", 2)
    files = damaged(service, 5)
    service.upload([blob_of(file) for file in files])
    hashed: list[Digest] = []
    right = Hashing.hash

    def noted(self, key, wanted, *rest, **named):
        hashed.append(wanted)
        return right(self, key, wanted, *rest, **named)

    monkeypatch.setattr(Hashing, "hash", noted)
    sizes = []
    while healed := damage.heal(service.deps):
        sizes.append((len(healed), len(hashed)))
        hashed.clear()
    assert sizes == [(2, 2), (2, 2), (1, 1)]


def test_blobs_that_never_come_back_keep_nobody_from_his_turn(service: Service, monkeypatch) -> None:
    monkeypatch.setattr(damage, "MOST_A_PASS", 2)
    files = damaged(service, 5)
    service.upload([blob_of(files[4])])
    assert damage.heal(service.deps, start=files[0]) == ()
    assert damage.heal(service.deps, start=files[2]) == ()
    assert len(damage.heal(service.deps, start=files[4])) == 1
    service.upload([blob_of(files[0])])
    assert len(damage.heal(service.deps, start=files[3])) == 1  # the order goes round: 3, then 0
    starts = {damage.anywhere() for _ in range(20)}
    assert len(starts) == 20


def test_a_pass_stops_hashing_after_its_time(service: Service, monkeypatch) -> None:
    files = damaged(service, 3)
    service.upload([blob_of(file) for file in files])
    monkeypatch.setattr(damage, "HEAL_SECONDS", -1.0)
    assert [len(damage.heal(service.deps)) for _ in range(4)] == [1, 1, 1, 0]


def test_a_read_that_fails_once_condemns_nothing(service: Service, monkeypatch) -> None:
    bundle = a_bundle(service, tags=("prod",))
    right, reads = type(service.deps.store).open, []

    def flaky(store, digest):
        import io

        reads.append(digest)
        return io.BytesIO(b"noise") if reads.count(digest) == 1 else right(store, digest)

    monkeypatch.setattr(type(service.deps.store), "open", flaky)
    assert checked(service).sound
    assert resolve(service) == [bundle]


def test_a_store_that_is_away_condemns_nothing(service: Service, monkeypatch) -> None:
    bundle = a_bundle(service, tags=("prod",))

    def away(store, digest):
        raise StorageUnavailable("the store is away", hint="wait")

    monkeypatch.setattr(type(service.deps.store), "open", away)
    with pytest.raises(StorageUnavailable):
        checked(service)
    monkeypatch.undo()
    assert resolve(service) == [bundle]
    with service.deps.sessions.reading() as session:
        assert session.get(BlobRow, file_of(service, bundle)).stored_at is not None


def test_manifests_and_signatures_that_do_not_fit_are_reported(service: Service) -> None:
    first, second = a_bundle(service, "one"), a_bundle(service, "two")
    with service.deps.sessions.transaction() as session:
        row = session.get(BundleRow, first)
        row.manifest = row.manifest.replace(b"one", b"0ne")
        session.get(BundleRow, second).envelope = Envelope(payload="", signatures=())
    found = checked(service)
    assert set(found.suspect_bundles) == {first, second} and not found.sound


def test_a_record_that_is_missing_is_written_again(service: Service) -> None:
    bundle = a_bundle(service)
    service.deps.records.delete(records.bundle_name(bundle))
    assert checked(service).rewritten_records == 1
    assert service.deps.records.find(records.bundle_name(bundle)) is not None


def test_records_that_are_not_ours_are_written_again(service: Service) -> None:
    bundle = a_bundle(service, tags=("prod",))
    name, tag = records.bundle_name(bundle), "tags/default/mini/prod/cpu-v3.json"
    right = {one: service.deps.records.find(one) for one in (name, tag)}
    for one in right:
        service.deps.records.put(one, b"{}")
    assert checked(service).rewritten_records == 2
    assert {one: service.deps.records.find(one) for one in right} == right
    service.deps.records.delete(tag)
    assert checked(service).rewritten_records == 1
    assert checked(service).rewritten_records == 0


def test_the_record_of_a_suspect_bundle_is_left_as_it_is(service: Service) -> None:
    bundle = a_bundle(service)
    service.deps.records.put(records.bundle_name(bundle), b"the only right account, perhaps")
    with service.deps.sessions.transaction() as session:
        session.get(BundleRow, bundle).envelope = None
    found = checked(service)
    assert set(found.suspect_bundles) == {bundle} and found.rewritten_records == 0


def test_tags_and_bundles_are_read_page_by_page(service: Service, monkeypatch) -> None:
    monkeypatch.setattr("registry.services.fsck.AT_ONCE", 2)
    for number in range(5):
        a_bundle(service, f"m{number}", tags=("prod", "v1"))
    found = checked(service)
    assert (found.bundles, found.blobs, found.rewritten_records) == (5, 10, 0)
    for name in list(service.deps.records.list("tags/")):
        service.deps.records.delete(name)
    assert checked(service).rewritten_records == 10


def test_the_command_ends_with_6_on_damage(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, tags=("prod",))
    assert run(tmp_path, "fsck").returncode == 0
    file = file_of(service, bundle)
    service.deps.store.delete(file)
    answer = run(tmp_path, "fsck")
    assert answer.returncode == 6 and str(file) in answer.stdout
