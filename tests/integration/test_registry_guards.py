"""Guards are first-class: bundles are found by what they ask of the host, and by what of the inputs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, select

from aot.errors import InvalidInput
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard, InputGuard
from aot.schema.manifest import decode_manifest
from aot.trust import TrustedKeys
from registry.db import guards as guard_rows
from registry.db.models import BundleRow, GuardRow
from registry.services import guards
from registry.services.fsck import fsck
from registry.services.retention import retain
from tests.builders import a_manifest, a_profile, a_source, a_spec, an_artifact, host_guards
from tests.commands import a_shell
from tests.service import Service, a_service
from tests.transport import client_of


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def publish(service: Service, name: str, **deviations: object) -> Digest:
    spec = a_spec(name, source=a_source(name.encode()))
    build = service.submit(spec).build
    claim = service.claim(spec.profile, build=build.id)
    artifact = an_artifact(**deviations)
    return service.publish(claim, a_manifest(spec, profile=claim.profile, artifacts=(artifact,))).bundle


def with_libc(floor: str, *more: HostGuard) -> tuple[HostGuard, ...]:
    kept = [guard for guard in host_guards() if guard.kind != "libc"]
    return (*kept, HostGuard(kind="libc", value=floor), *more)


def found(service: Service, *asked: str, **query: str) -> set[Digest]:
    listing = service.call("search", query={"guard": list(asked), **query})
    return {bundle.digest for bundle in listing.bundles}


def test_bundles_are_found_by_kind_and_value_of_their_guards(service: Service) -> None:
    old = publish(service, "old", host_guards=with_libc("2.28"))
    new = publish(service, "new", host_guards=with_libc("2.38", HostGuard(kind="threads", value="8")))
    assert found(service, "libc=2.28") == {old}
    assert found(service, "libc=2.38") == {new}
    assert found(service, "libc") == found(service, "torch=2.13.0+cpu") == {old, new}
    assert found(service, "capability=cpu:x86-64-v3", "threads=8") == {new}
    assert found(service, "libc=2.28", "threads") == found(service, "libc=2.3") == found(service, "no-such") == set()
    assert found(service, "libc", name="old") == {old}


@pytest.mark.parametrize("few", [0, 1, 1000])
def test_what_few_and_what_many_put_is_found_alike(service: Service, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(guard_rows, "FEW", few)
    bundles = {floor: publish(service, f"m{floor[-2:]}", host_guards=with_libc(floor)) for floor in ("2.28", "2.31")}
    both = set(bundles.values())
    assert found(service, "libc") == found(service, "torch=2.13.0+cpu", "machine=x86_64") == both
    assert found(service, "torch", "libc=2.31") == {bundles["2.31"]}
    assert found(service, "libc=2.28", "libc=2.31") == found(service, "libc=9", "torch") == set()


def test_guards_on_the_inputs_are_found_by_kind_dtype_and_device(service: Service) -> None:
    half = (
        InputGuard(kind="dtype", input=0, value="float16"),
        InputGuard(kind="rank", input=0, low=2),
        InputGuard(kind="range", input=0, dim=0, low=1, high=32),
    )
    bundle = publish(service, "half", input_guards=half)
    other = publish(service, "other")
    assert found(service, "input.dtype=float16", "input.range") == {bundle}
    assert found(service, "input.rank=2") == set()  # coverage is not looked up here
    assert other not in found(service, "input.dtype=float16")


def test_an_equals_sign_in_a_value_belongs_to_it(service: Service) -> None:
    bundle = publish(service, "odd", host_guards=with_libc("2.34", HostGuard(kind="option", value="a=b")))
    assert found(service, "option=a=b") == {bundle}


def test_a_very_long_value_is_found_by_the_whole_of_it(service: Service) -> None:
    value = "v" * 5000
    bundle = publish(service, "long", host_guards=with_libc("2.34", HostGuard(kind="option", value=value)))
    assert found(service, f"option={value}") == {bundle}


@pytest.mark.parametrize("text", ["", "=2.28", "libc="])
def test_half_a_guard_is_refused(service: Service, text: str) -> None:
    with pytest.raises(InvalidInput, match="KIND or KIND=VALUE"):
        found(service, text)


def test_more_guards_than_anybody_means_are_refused(service: Service) -> None:
    with pytest.raises(InvalidInput, match="at most 16"):
        found(service, *["libc"] * 17)


def test_the_client_and_the_command_ask_the_same(tmp_path: Path) -> None:
    with a_shell(tmp_path) as shell:
        shell.service.register(a_profile())
        old = publish(shell.service, "old", host_guards=with_libc("2.28"))
        publish(shell.service, "new", host_guards=with_libc("2.38"))
        client = client_of(shell.service)
        asked = ("libc=2.28", "torch=2.13.0+cpu")
        assert [bundle.digest for bundle in client.search(guards=asked).bundles] == [old]
        ran = shell.aot("ls", "--guard", asked[0], "--guard", asked[1], "--json")
        assert [bundle["digest"] for bundle in ran.json["bundles"]] == [old]
        refused = shell.aot("ls", "--builds", "--guard", "libc")
        assert (refused.code, "--guard narrows bundles" in refused.err) == (2, True)


def indexed(service: Service, bundle: Digest) -> set[tuple[str, str]]:
    with service.deps.sessions.reading() as session:
        rows = session.scalars(select(GuardRow).where(GuardRow.bundle == bundle))
        return {(row.kind, row.value) for row in rows}


def test_the_migration_indexes_what_was_published_before(service: Service) -> None:
    from alembic import command

    from registry.db.migrate import configuration, migrate

    bundle = publish(service, "old")
    before = indexed(service, bundle)
    assert ("libc", "2.34") in before and any(kind.startswith("input.") for kind, _ in before)
    for revision in ("0004", "head"):
        with service.deps.sessions.writing_engine.begin() as connection:
            config = configuration()
            config.attributes["connection"] = connection
            (command.downgrade if revision == "0004" else command.upgrade)(config, revision)
    migrate(service.deps.sessions)
    assert indexed(service, bundle) == before
    assert service.sweep().recorded == 1  # its record is due again, signed


def test_fsck_makes_the_index_whole(service: Service) -> None:
    bundle = publish(service, "old")
    before = indexed(service, bundle)
    with service.deps.sessions.transaction() as session:
        session.execute(delete(GuardRow).where(GuardRow.kind == "libc"))
    nobody = TrustedKeys.of(())
    assert fsck(service.deps, trusted=nobody).indexed_bundles == 1
    assert indexed(service, bundle) == before
    assert fsck(service.deps, trusted=nobody).indexed_bundles == 0


def test_the_index_goes_with_its_bundle(service: Service) -> None:
    bundle = publish(service, "old")
    service.clock.advance(91 * 86400)
    assert retain(service.deps).bundles == (bundle,)
    assert indexed(service, bundle) == set()


def test_a_bundle_of_many_artifacts_is_indexed_once(service: Service) -> None:
    bundle = publish(service, "old")
    with service.deps.sessions.reading() as session:
        manifest = decode_manifest(session.get(BundleRow, bundle).manifest)
    twice = a_manifest(manifest.spec, profile=manifest.profile, artifacts=manifest.artifacts * 2)
    assert len(guards.rows_of(bundle, twice)) == len(guards.rows_of(bundle, manifest)) == len(indexed(service, bundle))
