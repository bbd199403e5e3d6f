"""Builds on this machine: the registry in this process, the compiler a fake, everything between them real."""

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aot.bundle import read_bundle, verify_bundle
from aot.cli import builds, here
from aot.cli.builds import Submission
from aot.client import RegistryClient
from aot.config import Config
from aot.errors import BuildFailed, BuildUnfinished, Forbidden, InvalidInput, InvalidProfile
from aot.pipeline import Question, Staged, follow_build
from aot.pipeline import here as pipeline
from aot.pipeline.cross import nothing_proven
from aot.schema.environment import Environment
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe
from aot.schema.state import BundleState
from aot.schema.wire.bundles import PublishReply
from aot.schema.wire.workers import Scope
from tests.builders import a_manifest, a_node, a_profile, a_qualification, a_toolchain
from tests.fake_backend import FakeBackend, Work, stage
from tests.service import Service, a_service
from tests.transport import client_of
from tests.unit.test_pipeline_follow import every_second_upload_is_opened

PROFILE = a_profile()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path / "registry") as service:
        service.register(PROFILE)
        yield service


@pytest.fixture
def client(service: Service) -> RegistryClient:
    return client_of(service)


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """This machine is PROFILE, and its compiler takes no time."""
    backend = FakeBackend()
    monkeypatch.setattr(pipeline, "build_bundle", backend.build)
    this_machine_is(monkeypatch, PROFILE)
    config = Config(cache_dir=tmp_path / "cache", data_dir=tmp_path / "data")
    for module in (builds, here):
        monkeypatch.setattr(module, "read_config", lambda: config)
    return backend


def this_machine_is(monkeypatch: pytest.MonkeyPatch, *profiles: Profile) -> None:
    monkeypatch.setattr(pipeline, "observe_profiles", lambda environment: profiles)


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    tree = tmp_path / "src"
    tree.mkdir()
    (tree / "model.py").write_text("def make(): ...\n")
    return a_submission(tree)


def a_submission(tree: Path) -> Submission:
    return Submission.parse(
        "mini:v1",
        source=tree,
        entry="model:make",
        requirements=(),
        weights=(),
        profile=PROFILE.name,
        tags=(),
        recipe=Recipe(),
    )


def test_a_build_here_is_pushed_and_live_once_a_worker_has_proven_it(
    service: Service, client: RegistryClient, backend: FakeBackend, submission: Submission
) -> None:
    sources: list[str] = []

    def compile_source(work: Work) -> None:
        assert work.source.tree is not None
        sources.append((work.source.tree / "model.py").read_text())

    backend.act = compile_source
    build = here.build_to_push(client, submission)
    assert sources == ["def make(): ...\n"]
    claim = service.claim(PROFILE.name, build=build)
    assert claim.requalify is not None
    assert service.call("get_bundle", digest=claim.requalify).state is BundleState.PENDING
    assert {link.digest for link in claim.links} == {submitted.digest for submitted in claim.spec.blobs}
    proof = a_manifest(claim.spec, profile=claim.profile, qualification=a_qualification(seconds=9.0))
    reply = service.publish(claim, proof)
    [live] = service.call("resolve", namespace="default", name="mini", target="v1").bundles
    assert live.digest == reply.bundle


def test_a_blob_that_is_held_when_its_upload_is_opened_is_waited_for(
    client: RegistryClient, backend: FakeBackend, submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = every_second_upload_is_opened(client, monkeypatch)
    here.build_to_push(client, submission)
    assert len(backend.works) == 1
    assert asked == [False, True] * 2, "the source, and the bundle"


def test_its_key_is_that_of_a_build_on_a_worker(
    client: RegistryClient, backend: FakeBackend, submission: Submission
) -> None:
    with builds.packed_spec(client, submission) as (spec, _):
        [target] = client.find([spec])
    here.build_to_push(client, submission)
    assert backend.works[0].question.build_key == target.build_key


def test_a_build_here_may_be_kept_as_a_directory(
    client: RegistryClient, backend: FakeBackend, submission: Submission, tmp_path: Path
) -> None:
    stored = here.build_to_directory(client, submission, tmp_path / "bundle")
    assert verify_bundle(tmp_path / "bundle", None) == ()
    assert read_bundle(tmp_path / "bundle").digest == stored.digest
    assert client.list_builds().builds == ()
    with pytest.raises(InvalidInput, match="exists already"):
        here.build_to_directory(client, submission, tmp_path / "bundle")
    assert len(backend.works) == 1


def test_a_machine_that_is_not_the_profile_is_refused_before_it_compiles(
    client: RegistryClient, backend: FakeBackend, submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    this_machine_is(monkeypatch, a_profile(toolchain=a_toolchain(torch="2.11.0")))
    with pytest.raises(InvalidProfile, match="this machine is not the profile cpu-v3: it is cpu-v3") as caught:
        here.build_to_push(client, submission)
    assert "2.11.0" in caught.value.details["found"] and "2.13.0" in caught.value.details["wanted"]
    this_machine_is(monkeypatch, a_profile("cpu-v2"))
    with pytest.raises(InvalidProfile, match="it is cpu-v2"):
        here.build_to_push(client, submission)
    assert backend.works == []


def test_a_profile_that_no_worker_has_registered_is_named(
    client: RegistryClient, backend: FakeBackend, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "model.py").write_text("")
    unknown = replace(a_submission(tmp_path / "src"), profile="h100")
    with pytest.raises(InvalidProfile, match="no worker has registered the profile h100; registered: cpu-v3"):
        here.build_to_push(client, unknown)


def test_for_a_cpu_target_above_this_machine_it_is_compiled_and_nothing_is_proven(
    service: Service,
    client: RegistryClient,
    backend: FakeBackend,
    submission: Submission,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    v4 = a_profile("cpu-x86-64-v4", capability="cpu:x86-64-v4")
    node = a_node(cpu=v4.capability, cpu_features=())
    service.register(v4)
    this_machine_is(monkeypatch, v4)
    monkeypatch.setattr(pipeline, "observe_environment", lambda: Environment(node=node))
    name = "cpu-x86-64-v4-amx"

    def build(question: Question, source: object, *, scratch: Path, **options: object) -> Staged:
        return stage(question, scratch, qualification=nothing_proven(question.profile, node))

    monkeypatch.setattr(pipeline, "build_unproven", build)
    asked = replace(submission, profile=name)
    with builds.packed_spec(client, asked) as (spec, _):
        [target] = client.find([spec])
    view = client.get_build(here.build_to_push(client, asked))
    assert (view.build_key, view.profile, view.waiting) == (target.build_key, name, "not run: no host with AMX")
    assert backend.works == [], "nothing that ends in a proof was begun"
    with pytest.raises(BuildUnfinished, match="is pending, not run: no host with AMX"):
        follow_build(client, view.id)
    with pytest.raises(BuildUnfinished, match=r"is still queued after 0 s"):
        follow_build(client, view.id, timeout_seconds=0.01)
    other = a_profile("cpu-x86-64-v4", capability="cpu:x86-64-v4", toolchain=a_toolchain(torch="2.11.0"))
    this_machine_is(monkeypatch, other)
    with pytest.raises(InvalidProfile, match=f"this machine is not the profile {name}: it is cpu-x86-64-v4"):
        here.build_to_push(client, asked)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other machine is the one that this is not")
def test_aarch64_is_not_built_on_x86(client: RegistryClient, backend: FakeBackend, submission: Submission) -> None:
    with pytest.raises(InvalidProfile, match="is built on aarch64, this machine is x86_64"):
        here.build_to_push(client, replace(submission, profile="cpu-aarch64"))


def test_who_may_not_upload_is_told_before_he_compiles(
    service: Service, backend: FakeBackend, submission: Submission
) -> None:
    reader = client_of(service, token=service.token(Scope.READ))
    with pytest.raises(Forbidden):
        here.build_to_push(reader, submission)
    assert backend.works == []


def test_an_interrupt_leaves_nothing_behind(
    client: RegistryClient,
    backend: FakeBackend,
    submission: Submission,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    def interrupt(work: Work) -> None:
        assert work.scratch.is_relative_to(scratch)
        raise KeyboardInterrupt

    backend.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        here.build_to_directory(client, submission, tmp_path / "bundle")
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "bundle").exists()
    assert client.search().bundles == ()


def test_a_push_that_nobody_proves_is_an_error(
    client: RegistryClient, backend: FakeBackend, submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(client: RegistryClient, staged: object, **options: object) -> PublishReply:
        return PublishReply(bundle=a_manifest().spec.source.tree.digest, state=BundleState.PENDING)

    monkeypatch.setattr(here, "push_bundle", push)
    with pytest.raises(BuildFailed, match="no build proves it"):
        here.build_to_push(client, submission)


def test_progress_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    tell = here.teller("mini")
    for event in ({"phase": "compiling"}, {"phase": "compiling"}, {"step": "region 1 of 2"}, {"line": "log"}, {}):
        tell(event)
    assert capsys.readouterr().err.splitlines() == ["mini: compiling", "mini: region 1 of 2", "mini: log"]
