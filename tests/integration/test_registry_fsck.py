"""fsck: damage is found, taken out with its reason, and comes back with the right bytes."""

import os
from pathlib import Path

import pytest

from aot.errors import StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Tag
from aot.schema.spec import Blob
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.schema.wire.bundles import FindRequest
from aot.trust import TrustedKeys
from registry.db.models import BlobRow, BundleRow
from registry.services import records
from registry.services.fsck import Checked, fsck
from tests.builders import BYTES, a_profile, a_source, a_spec
from tests.integration.test_registry_process import run
from tests.integration.test_registry_retention import a_bundle, file_of
from tests.service import Service, a_service


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def checked(service: Service) -> Checked:
    return fsck(service.deps, trusted=TrustedKeys.of(()))


def path_of(service: Service, digest: Digest) -> Path:
    return service.deps.store.root / digest.hex[:2] / digest.hex[2:]


def overwrite(service: Service, digest: Digest, content: bytes) -> None:
    path = path_of(service, digest)
    os.chmod(path, 0o644)
    path.write_bytes(content)


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


@pytest.mark.parametrize("damage", ["other bytes", "cut", "longer", "missing"])
def test_damage_takes_the_bundle_out_and_the_right_bytes_bring_it_back(service: Service, damage: str) -> None:
    bundle = a_bundle(service, tags=("prod",))
    other = a_bundle(service, "other", tags=("prod",))
    file = file_of(service, bundle)
    right = BYTES[file]
    match damage:
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
    path_of(service, file).write_bytes(BYTES[file][::-1])  # as a store that compares nothing would keep them
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


def test_the_command_ends_with_6_on_damage(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, tags=("prod",))
    assert run(tmp_path, "fsck").returncode == 0
    file = file_of(service, bundle)
    service.deps.store.delete(file)
    answer = run(tmp_path, "fsck")
    assert answer.returncode == 6 and str(file) in answer.stdout
