"""The auditor sees what must not be: every promise is broken once, in a registry where all were kept."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, text

from aot.schema.names import Reference, Tag
from aot.schema.wire.builds import FailRequest
from aot.schema.wire.errors import ErrorBody
from aot.trust import SigningKey, TrustedKeys
from registry.db.models import ArtifactBlobRow
from tests.builders import a_file, a_manifest, a_profile, a_source, a_spec, an_artifact
from tests.faults.auditor import Auditor
from tests.faults.clients import Accepted
from tests.faults.ledger import Ledger
from tests.service import URL, Service, a_service
from worker.run import HOST_FAILED, MOST_HOST_FAULTS

pytestmark = pytest.mark.embedded("breaks promises in directories, and reads SQLite as the campaign's embedded stack")

ORPHAN = "ab" + "cd" * 31


class Folder:
    """The store's bytes, as a stack gives them to the auditor."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        return self.root / digest[:2] / digest[2:]

    def read(self, digest: str) -> bytes | None:
        path = self.path(digest)
        return path.read_bytes() if path.exists() else None

    def digests(self) -> set[str]:
        found = {path.parent.name + path.name for path in self.root.glob("??/*")}
        return {digest for digest in found if len(digest) == 64}


class Audited:
    """A registry that published two builds, and whoever looks at it."""

    def __init__(self, service: Service, place: Path) -> None:
        self.service = service
        self.place = place
        self.store = Folder(place / "data" / "blobs")
        self.accepted = Accepted()
        self.builds = [self._published("one"), self._published("two")]
        service.sweep()
        self.told = place / "replica-0.log"
        self.tell(*({"event": "bundle-published", "build": build, "bundle": "x"} for build in self.builds))
        self.trusted = TrustedKeys.of([str(key.public) for key in service.deps.signing_keys])

    def _published(self, name: str) -> str:
        spec = a_spec(name, source=a_source(name.encode()))
        build = self.service.submit(spec, tags=(Tag("latest"),)).build.id
        claim = self.service.claim("cpu-v3", build=build)
        files = (a_file("lib/model.so", name.encode() * 30),)
        self.service.publish(claim, a_manifest(spec, profile=claim.profile, artifacts=(an_artifact(files=files),)))
        self.accepted.note(build, Reference.parse(f"default/{name}:latest"))
        return build

    def tell(self, *events: dict[str, str]) -> None:
        with self.told.open("a") as log:
            log.writelines(json.dumps(event) + "\n" for event in events)

    def sql(self, statement: str, **values: Any) -> None:
        with self.service.deps.sessions.transaction() as session:
            session.execute(text(statement), values)

    def blob(self) -> Path:
        """A file of a bundle."""
        with self.service.deps.sessions.reading() as session:
            digest = session.scalars(select(ArtifactBlobRow.digest)).first()
        assert digest is not None
        return self.store.path(digest.hex)

    def violations(self) -> list[str]:
        ledger = Ledger()
        environ = {"AOT_DATA_DIR": str(self.place / "data"), "AOT_PUBLIC_URL": URL}
        fleet: Any = SimpleNamespace(
            ledger=ledger,
            environ=lambda member, direct=False: environ,
            members={"replica-0": SimpleNamespace(log=self.told)},
        )
        Auditor(fleet, self.store, self.accepted, self.trusted).audit()  # type: ignore[arg-type]
        return ledger.violations


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Audited]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "")  # the auditor sets them, and this puts them back
    with a_service(tmp_path / "data") as service:
        service.register(a_profile())
        yield Audited(service, tmp_path)


def damage(at: Audited) -> None:
    path = at.blob()
    path.chmod(0o644)
    path.write_bytes(b"z" * path.stat().st_size)


def leave_orphan(at: Audited) -> None:
    path = at.store.path(ORPHAN)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"orphan")


def submit_and_forget(at: Audited) -> None:
    build = at.service.submit(a_spec("three", source=a_source(b"three"))).build.id
    at.accepted.note(build, Reference.parse("default/three:latest"))


OTHER_BYTES = ErrorBody(code="digest-mismatch", message="other bytes")
NO_DISK = ErrorBody(code="aot-error", message=f"{HOST_FAILED}: No space left on device")


def lose(at: Audited, *, error: ErrorBody = OTHER_BYTES, host_faults: int = 0) -> None:
    """A build that failed with `error`, after so many attempts that a host ended."""
    build = at.service.submit(a_spec("three", source=a_source(b"three"))).build.id
    claim = at.service.claim("cpu-v3", build=build)
    at.service.call("fail", FailRequest(error=error), token=claim.token, build=build)
    at.sql("UPDATE builds SET host_faults = :faults WHERE id = :build", faults=host_faults, build=build)
    at.tell({"event": "build-failed", "build": build})


def move_tag(at: Audited) -> None:
    at.sql(
        "UPDATE tags SET bundle = (SELECT digest FROM bundles b WHERE b.digest <> tags.bundle LIMIT 1), "
        "recorded_at = '2030-01-01 00:00:00.000000', sealed_at = '2030-01-01 00:00:00.000000'"
    )


PLANTS: dict[str, tuple[Callable[[Audited], object], str]] = {
    "accepted and gone": (
        lambda at: at.accepted.note("no-such", Reference.parse("default/x:latest")),
        "no-such was accepted and is gone",
    ),
    "not ended": (submit_and_forget, "has not ended: queued"),
    "two bundles": (lambda at: at.sql("UPDATE bundles SET build = :build", build=at.builds[0]), "and has 2 bundles"),
    "lost": (lose, "was lost: other bytes"),
    "lost by itself, after hosts had failed": (
        lambda at: lose(at, host_faults=MOST_HOST_FAULTS - 1),
        "was lost: other bytes",
    ),
    "lost by a fault of the worker, after hosts had failed": (
        lambda at: lose(
            at, error=ErrorBody(code="aot-error", message="a fault in the worker: KeyError"), host_faults=4
        ),
        "was lost: a fault in the worker",
    ),
    "lost by too few hosts": (
        lambda at: lose(at, error=NO_DISK, host_faults=MOST_HOST_FAULTS - 2),
        "was lost: the worker's disk",
    ),
    "failed with a bundle": (
        lambda at: at.sql("UPDATE builds SET state = 'failed' WHERE id = :build", build=at.builds[0]),
        "is failed and has 1 bundles",
    ),
    "cancelled and published": (lambda at: at.accepted.note_cancelled(at.builds[0]), "was cancelled, and is published"),
    "ended twice": (lambda at: at.tell({"event": "build-failed", "build": at.builds[0]}), "ended twice"),
    "no end told": (lambda at: at.told.write_text(""), "no replica told of any end"),
    "damage noted": (lambda at: at.sql("UPDATE bundles SET damage = '[\"x\"]'"), "is damaged: "),
    "another manifest": (
        lambda at: at.sql(
            "UPDATE bundles SET manifest = CAST(replace(CAST(manifest AS TEXT), '\"one\"', '\"onx\"') AS BLOB)"
        ),
        "has a manifest of another digest",
    ),
    "another key": (
        lambda at: setattr(at, "trusted", TrustedKeys.of([str(SigningKey.generate().public)])),
        "is not signed: ",
    ),
    "a blob damaged": (damage, "is visible without the bytes of"),
    "a blob gone": (lambda at: at.blob().unlink(), "is visible without the bytes of"),
    "an orphan": (leave_orphan, f"1 orphans after the grace period, the first {ORPHAN}"),
    "a record gone": (lambda at: next((at.place / "data").rglob("records/**/*.json")).unlink(), "does not verify"),
    "a tag moved past its record": (move_tag, "the record "),
}


def test_where_all_was_kept_nothing_is_found(audited: Audited) -> None:
    assert audited.violations() == []


def test_a_build_that_hosts_ended_is_not_lost(audited: Audited) -> None:
    lose(audited, error=NO_DISK, host_faults=MOST_HOST_FAULTS - 1)
    assert audited.violations() == []


@pytest.mark.parametrize("plant", PLANTS)
def test_what_must_not_be_is_found(audited: Audited, plant: str) -> None:
    act, said = PLANTS[plant]
    act(audited)
    assert [one for one in audited.violations() if said in one]
