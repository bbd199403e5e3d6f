"""The CI step against the real registry in this process, with a build that needs no compiler."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aot.client import RegistryClient
from aot.errors import (
    AotError,
    BuildFailed,
    InvalidInput,
    InvalidSource,
    InvalidSpec,
    LocalStorageFull,
    MalformedDocument,
    ProfileNotFound,
    RegistryUnreachable,
    SignatureRejected,
)
from aot.pipeline import Target, ensure_project, submit_spec
from aot.pipeline.ensure import Missed
from aot.pipeline.lockfile import read_lock, write_lock
from aot.pipeline.source import PackedSource
from aot.schema.lock import Lock
from aot.schema.names import Reference
from aot.schema.project import ModelEntry, decode_project
from aot.schema.recipe import command_recipe
from aot.schema.spec import Commit, CommitTeller, Spec
from aot.schema.wire.builds import BuildView
from aot.trust import SigningKey, TrustedKeys
from tests.builders import a_profile
from tests.service import Service, a_service
from tests.transport import AppTransport, client_of

LOW, HIGH = a_profile("cpu-v2", capability="cpu:x86-64-v2"), a_profile("cpu-v3")

ONE_MODEL = """
[[models]]
name = "mini"
entry = "model:make"
profiles = ["cpu-v3"]
"""

COMMAND = """
[[models]]
name = "trainer"
command = ["python", "train.py"]
profiles = ["cpu-v3"]
"""

TWO_MODELS = """
namespace = "team"

[[models]]
name = "mini"
source = "src"
entry = "model:make"
profiles = ["cpu-v2", "cpu-v3"]
tags = ["latest", "v1"]

[[models]]
name = "maxi"
source = "src"
entry = "model:make_large"
profiles = ["cpu-v2", "cpu-v3"]
recipe = { mode = "default" }
"""


@dataclass
class Project:
    """A project's directory and the registry that its CI job talks to."""

    root: Path
    service: Service
    client: RegistryClient
    started: list[Spec] = field(default_factory=list)
    waited: list[str] = field(default_factory=list)
    fails: AotError | None = None
    fails_for: dict[tuple[str, str], AotError] = field(default_factory=dict)
    refuses: dict[tuple[str, str], AotError] = field(default_factory=dict)

    @property
    def transport(self) -> AppTransport:
        transport = self.client.transport
        assert isinstance(transport, AppTransport)
        return transport

    @property
    def lock_path(self) -> Path:
        return self.root / "aot.lock"

    @property
    def trusted(self) -> TrustedKeys:
        return TrustedKeys.of(self.service.call("get_keys").keys)

    def ensure(
        self,
        toml: str = ONE_MODEL,
        *,
        trusted: TrustedKeys | None = None,
        ci_commit: str | None = None,
        on_target: Callable[[Target], None] = lambda target: None,
        on_missed: Callable[[Missed], None] = lambda missed: None,
    ) -> list[tuple[str, str, str]]:
        targets = ensure_project(
            self.client,
            decode_project(toml),
            root=self.root,
            lock_path=self.lock_path,
            trusted=trusted or self.trusted,
            start=self.start,
            ci_commit=ci_commit,
            on_target=on_target,
            on_missed=on_missed,
        )
        return [(target.outcome, target.reference, target.profile) for target in targets]

    def start(self, model: ModelEntry, spec: Spec, source: PackedSource) -> Callable[[], BuildView]:
        """Submit, and let a worker that compiles nothing publish when it is waited for."""
        place = (str(spec.name), str(spec.profile))
        if (refusal := self.refuses.get(place)) is not None:
            raise refusal
        self.started.append(spec)
        build = submit_spec(self.client, spec, source, tags=model.tags).build

        def wait() -> BuildView:
            self.waited.append(f"{spec.name} {spec.profile}")
            if (failure := self.fails or self.fails_for.get(place)) is not None:
                raise failure
            self.service.publish(self.service.claim(spec.profile, build=build.id))
            return self.client.get_build(build.id)

        return wait

    def requests(self) -> list[str]:
        """The requests since the last time."""
        sent, self.transport.sent = self.transport.sent, []
        return [f"{method} {path}" for method, path in sent]

    def files(self) -> set[str]:
        return {path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "model.py").write_text("def make(): ...\n")
    with a_service(tmp_path / "registry") as service:
        service.register(LOW, HIGH)
        yield Project(root, service, client_of(service))


def identity(path: Path) -> tuple[int, int, bytes]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, path.read_bytes()


def test_the_first_run_builds_and_writes_a_lock(project: Project) -> None:
    assert project.ensure() == [("built", "default/mini:latest", "cpu-v3")]
    lock = read_lock(project.lock_path)
    assert lock is not None
    [entry] = lock.entries
    [live] = project.client.resolve(Reference("default/mini:latest"))
    assert (entry.bundle, entry.reference, entry.profile) == (live.digest, "default/mini:latest", "cpu-v3")
    assert entry.build_key and entry.factors and not entry.frozen
    assert lock.trusted_keys == tuple(str(key) for key in project.trusted)


def test_the_second_run_makes_one_request_and_writes_nothing(project: Project) -> None:
    project.ensure()
    before, trusted = identity(project.lock_path), project.trusted
    project.requests()
    assert project.ensure(trusted=trusted) == [("present", "default/mini:latest", "cpu-v3")]
    assert project.requests() == ["POST /v1/find"]
    assert identity(project.lock_path) == before
    assert len(project.started) == 1


def test_the_project_file_and_the_lock_are_no_part_of_a_source_beside_them(project: Project) -> None:
    # `source` is "." by default, where both lie.
    (project.root / "aot.toml").write_text(ONE_MODEL)
    project.ensure()
    (project.root / "aot.toml").write_text("# a comment\n" + ONE_MODEL)
    assert project.ensure() == [("present", "default/mini:latest", "cpu-v3")]


def test_two_models_on_two_profiles_are_asked_for_in_one_request(project: Project) -> None:
    built = project.ensure(TWO_MODELS)
    assert built == [
        ("built", f"team/{name}:{tag}", profile)
        for name, tags in (("mini", ("latest", "v1")), ("maxi", ("latest",)))
        for profile in ("cpu-v2", "cpu-v3")
        for tag in tags
    ]
    lock = read_lock(project.lock_path)
    assert lock is not None and len(lock.entries) == 6
    trusted = project.trusted
    project.requests()
    assert {outcome for outcome, _, _ in project.ensure(TWO_MODELS, trusted=trusted)} == {"present"}
    assert project.requests() == ["POST /v1/find"]


def test_every_missing_build_is_begun_before_the_first_is_waited_for(project: Project) -> None:
    project.fails = BuildFailed("no")
    with pytest.raises(BuildFailed):
        project.ensure(TWO_MODELS)
    assert len(project.started) == 4
    assert project.waited == ["mini cpu-v2", "mini cpu-v3", "maxi cpu-v2", "maxi cpu-v3"]
    assert not project.lock_path.exists()


def test_one_that_fails_costs_the_others_neither_their_end_nor_their_line(project: Project) -> None:
    project.fails_for = {("mini", "cpu-v3"): BuildFailed("g++ said no"), ("maxi", "cpu-v2"): BuildFailed("nor here")}
    found: list[Target] = []
    missed: list[Missed] = []
    with pytest.raises(BuildFailed, match=r"g\+\+ said no"):
        project.ensure(TWO_MODELS, on_target=found.append, on_missed=missed.append)
    assert {(target.entry.reference, target.profile) for target in found} == {
        ("team/mini:latest", "cpu-v2"),
        ("team/mini:v1", "cpu-v2"),
        ("team/maxi:latest", "cpu-v3"),
    }
    assert [(miss.model.name, miss.spec.profile, str(miss.error)) for miss in missed] == [
        ("mini", "cpu-v3", "g++ said no"),
        ("maxi", "cpu-v2", "nor here"),
    ]
    assert not project.lock_path.exists()
    project.fails_for = {}
    assert {outcome for outcome, _, _ in project.ensure(TWO_MODELS)} == {"present", "built"}


def test_one_that_cannot_be_begun_ends_none_of_those_that_were(project: Project) -> None:
    project.refuses = {("mini", "cpu-v3"): RegistryUnreachable("the line was cut")}
    missed: list[Missed] = []
    with pytest.raises(RegistryUnreachable, match="the line was cut"):
        project.ensure(TWO_MODELS, on_missed=missed.append)
    assert [(miss.model.name, miss.spec.profile) for miss in missed] == [("mini", "cpu-v3")]
    assert project.waited == ["mini cpu-v2", "maxi cpu-v2", "maxi cpu-v3"]


def test_a_changed_recipe_rebuilds_that_model_alone(project: Project) -> None:
    project.ensure(TWO_MODELS)
    project.started.clear()
    changed = TWO_MODELS.replace('mode = "default"', 'mode = "max-autotune-no-cudagraphs"')
    outcomes = project.ensure(changed)
    assert [reference for outcome, reference, _ in outcomes if outcome == "built"] == ["team/maxi:latest"] * 2
    assert {spec.name for spec in project.started} == {"maxi"}


def test_a_changed_source_rebuilds(project: Project) -> None:
    project.ensure()
    first = project.lock_path.read_bytes()
    (project.root / "src" / "model.py").write_text("def make(): return 1\n")
    assert project.ensure()[0][0] == "built"
    assert project.lock_path.read_bytes() != first


def test_a_tag_that_was_moved_elsewhere_is_put_back(project: Project) -> None:
    project.ensure()
    ours = project.client.resolve(Reference("default/mini:latest"))[0].digest
    (project.root / "src" / "model.py").write_text("def make(): return 1\n")
    project.ensure()
    theirs = project.client.resolve(Reference("default/mini:latest"))[0].digest
    assert theirs != ours
    (project.root / "src" / "model.py").write_text("def make(): ...\n")
    project.requests()
    assert project.ensure()[0][0] == "present"
    assert [one.digest for one in project.client.resolve(Reference("default/mini:latest"))] == [ours]


def test_a_new_tag_is_moved_without_a_build(project: Project) -> None:
    project.ensure()
    tagged = ONE_MODEL + 'tags = ["latest", "v2"]\n'
    assert [outcome for outcome, _, _ in project.ensure(tagged)] == ["present", "present"]
    assert len(project.client.resolve(Reference("default/mini:v2"))) == 1


def test_what_another_job_builds_is_joined(project: Project, tmp_path: Path) -> None:
    def start_twice(model: ModelEntry, spec: Spec, source: PackedSource) -> Callable[[], BuildView]:
        first = submit_spec(project.client, spec, source, tags=model.tags)
        second = submit_spec(project.client, spec, source, tags=model.tags)
        assert (first.build.id, second.created) == (second.build.id, False)
        return project.start(model, spec, source)

    ensure_project(
        project.client,
        decode_project(ONE_MODEL),
        root=project.root,
        lock_path=project.lock_path,
        trusted=project.trusted,
        start=start_twice,
    )
    assert len(project.client.list_builds().builds) == 1


def test_targets_are_told_as_they_are_done(project: Project) -> None:
    told: list[str] = []
    project.ensure(TWO_MODELS, on_target=lambda target: told.append(f"{target.reference} {target.profile}"))
    assert told[0] == "team/mini:latest cpu-v2" and len(told) == 6


# What is refused


def test_a_bundle_that_no_trusted_key_signed_is_refused_and_not_locked(project: Project) -> None:
    stranger = TrustedKeys.of([str(SigningKey.generate().public)])
    with pytest.raises(SignatureRejected):
        project.ensure(trusted=stranger)
    assert not project.lock_path.exists()


@pytest.mark.parametrize(
    "entry",
    [
        'source = "nowhere"\nentry = "model:make"',
        'program = "nowhere.pt2"',
        'entry = "model:make"\nweights = ["w.safetensors"]',
    ],
    ids=["source", "program", "weights"],
)
def test_a_path_that_is_not_there_is_named_before_anything_is_asked(project: Project, entry: str) -> None:
    toml = f'[[models]]\nname = "mini"\nprofiles = ["cpu-v3"]\n{entry}\n'
    project.requests()
    with pytest.raises(InvalidSource, match=r"model mini: .* does not exist"):
        project.ensure(toml)
    assert project.requests() == []


def test_a_recipe_that_no_worker_can_follow_is_told_before_anything_is_packed_or_asked(project: Project) -> None:
    toml = ONE_MODEL + '[models.recipe]\npurpose = "training"\n'
    project.requests()
    with pytest.raises(InvalidSpec, match="model mini: route package compiles for inference only") as refusal:
        project.ensure(toml)
    assert 'purpose = "inference"' in refusal.value.hint
    assert project.requests() == []
    assert project.started == []


def test_a_command_is_asked_for_with_its_tree_and_found_again(project: Project) -> None:
    toml = COMMAND + 'source = "src"\nrecipe = { environment = { OMP_NUM_THREADS = "2" } }\n'
    project.fails = BuildFailed("no worker today")
    with pytest.raises(BuildFailed):
        project.ensure(toml)
    [spec] = project.started
    assert spec.source.command == ("python", "train.py") and spec.source.entries is None
    assert spec.source.tree is not None and spec.recipe == command_recipe({"OMP_NUM_THREADS": "2"})
    with pytest.raises(BuildFailed):
        project.ensure(toml)
    assert project.started[1] == spec and len(set(project.waited)) == 1


def test_what_is_built_says_which_commit_it_comes_from(project: Project) -> None:
    project.ensure(ci_commit="0123456789abcdef0123456789abcdef01234567")
    [spec] = project.started
    assert spec.commit == Commit(revision="0123456789abcdef0123456789abcdef01234567", told_by=CommitTeller.CI)


def test_an_unknown_profile_is_named(project: Project) -> None:
    with pytest.raises(ProfileNotFound, match="h100"):
        project.ensure(ONE_MODEL.replace("cpu-v3", "h100"))


@pytest.mark.parametrize(
    ("toml", "message", "path"),
    [
        ("models = 3 =", "is not TOML", "$"),
        ("", "missing required field", "$"),
        ("models = []", "names no model", "$.models"),
        ('[[models]]\nname = "mini"\nprofiles = ["cpu-v3"]', "one of `entry`, `program` and `command`", "$.models[0]"),
        (ONE_MODEL + 'command = ["make"]', "one of `entry`, `program` and `command`", "$.models[0]"),
        (COMMAND + 'recipe = { mode = "default" }', "its recipe has an `environment` and nothing else", "$.models[0]"),
        (COMMAND + 'weights = ["w.safetensors"]', "and no weights", "$.models[0]"),
        (ONE_MODEL + "colour = 3", "unknown field `colour`", "$.models[0]"),
        (ONE_MODEL.replace('"mini"', '"Mini!"'), "wanted a name", "$.models[0].name"),
        (ONE_MODEL.replace('["cpu-v3"]', "[]"), "has no profiles", "$.models[0].profiles"),
        (ONE_MODEL + "tags = []", "has no tags", "$.models[0].tags"),
        (ONE_MODEL + ONE_MODEL, "listed twice for profile cpu-v3 under tag latest", "$.models[1]"),
        (ONE_MODEL.replace('["cpu-v3"]', '["cpu-v3", "cpu-v3"]'), "listed twice", "$.models[0]"),
        (ONE_MODEL + 'recipe = { mode = "fastest" }', "fastest", "$.models[0].recipe.mode"),
    ],
)
def test_a_project_file_that_is_wrong_says_where(toml: str, message: str, path: str) -> None:
    with pytest.raises(MalformedDocument, match=message.replace("[", r"\[")) as caught:
        decode_project(toml)
    assert caught.value.details["path"] == path
    assert "both sides" not in caught.value.hint  # nothing was sent: a person wrote this


def test_a_project_file_is_called_by_its_name_and_the_keys_are_told() -> None:
    with pytest.raises(MalformedDocument, match=r"^ci.toml does not decode at \$.models\[0\]: .*`colour`") as caught:
        decode_project(ONE_MODEL + "colour = 3", file="ci.toml")
    assert "name, source, entry, program, command" in caught.value.hint and "needs `name`" in caught.value.hint
    assert caught.value.hint


def test_a_lock_that_cannot_be_written_is_told_before_anything_is_built(project: Project, tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere" / "aot.lock", tmp_path):
        with pytest.raises(InvalidInput, match="the lock file"):
            ensure_project(
                project.client,
                decode_project(ONE_MODEL),
                root=project.root,
                lock_path=place,
                trusted=project.trusted,
                start=project.start,
            )
    assert project.started == []


# The lock file


def test_a_failing_run_leaves_the_lock_as_it_was(project: Project) -> None:
    project.ensure()
    before = identity(project.lock_path)
    files = project.files()
    project.fails = BuildFailed("no")
    (project.root / "src" / "model.py").write_text("def make(): return 1\n")
    with pytest.raises(BuildFailed):
        project.ensure()
    assert identity(project.lock_path) == before
    assert project.files() == files


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_leaves_the_lock_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "aot.lock"
    write_lock(path, Lock(entries=()))
    before = identity(path)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched, pytest.raises(AotError, match=os.strerror(number)) as caught:
        patched.setattr(os, "fsync", fail)
        write_lock(path, Lock(entries=(), trusted_keys=("ed25519:other",)))
    assert isinstance(caught.value, LocalStorageFull if number == errno.ENOSPC else InvalidInput)
    assert identity(path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["aot.lock"]


def test_an_interrupt_while_writing_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "fsync", interrupt)
        write_lock(tmp_path / "aot.lock", Lock(entries=()))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_lock_is_written_anew(project: Project) -> None:
    project.lock_path.write_bytes(b"<<<<<<< merge conflict")
    project.ensure()
    assert read_lock(project.lock_path) is not None


def test_the_lock_is_written_only_where_it_says_something_else(tmp_path: Path) -> None:
    path = tmp_path / "aot.lock"
    assert write_lock(path, Lock(entries=())) is True
    assert write_lock(path, Lock(entries=())) is False
    assert read_lock(tmp_path / "other.lock") is None
