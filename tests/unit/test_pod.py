"""The pod's door: whatever goes wrong on the way, the model runs, and says why it does not run compiled."""

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from aot.cache import LocalCache
from aot.config import Config
from aot.errors import (
    AotError,
    BlobNotFound,
    BundleNotFound,
    BundleWithdrawn,
    InvalidInput,
    LoadFailed,
    LocalStorageFull,
    MalformedDocument,
    NoCompatibleArtifact,
    RegistryUnreachable,
    SignatureRejected,
    TagNotFound,
    Unauthenticated,
)
from aot.pause import NEVER
from aot.runtime import pod
from aot.runtime.compiled import CompiledModel, Fallback
from aot.runtime.later import Task
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.lock import Lock, LockEntry, encode_lock
from aot.schema.manifest import Canary, Manifest
from aot.schema.spec import Blob, File
from aot.schema.wire.workers import Outcome
from aot.trust import SigningKey
from tests.builders import (
    a_file,
    a_gpu_profile,
    a_manifest,
    a_node,
    a_profile,
    a_spec,
    a_toolchain,
    an_artifact,
    an_environment,
    manifest_text,
)
from tests.simulator import RegistrySimulator, a_reference


def module(value: int) -> str:
    """Stands for the live module: what is called when nothing compiled is."""
    return f"eager {value}"


@dataclass
class Loads:
    """What reached `load_artifacts`, which would open the files; `fails` with this error instead."""

    fails: BaseException | None = None
    bundles: list[Digest] = field(default_factory=list)
    content: list[bytes] = field(default_factory=list)
    views: list[Path] = field(default_factory=list)

    def __call__(
        self, manifest, digest, live, *, selection, locate: Callable[[File], Path], view, fallback, reference, canary
    ) -> CompiledModel:
        if self.fails is not None:
            raise self.fails
        self.bundles.append(digest)
        files = [file for index in selection.artifacts for file in manifest.artifacts[index].files]
        if canary:
            files += [file for one in manifest.canaries for file in one.expected]
        self.content += [locate(file).read_bytes() for file in files]
        self.views += [view(manifest.artifacts[index]) for index in selection.artifacts]
        return CompiledModel(
            live, (), fallback=fallback, reference=reference, bundle=digest, selection=selection, reasons=("stub",)
        )


@pytest.fixture
def simulator() -> RegistrySimulator:
    return RegistrySimulator()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    loads = Loads()
    monkeypatch.setattr(pod, "load_artifacts", loads)
    return loads


@pytest.fixture
def config(simulator: RegistrySimulator, loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr("aot.client.connect.open_client", lambda *_, **__: simulator.client())
    monkeypatch.setattr(pod, "observe_environment", an_environment)
    return Config(
        cache_dir=tmp_path / "cache",
        data_dir=tmp_path / "data",
        url="http://registry.test",
        token="a-token",
        trusted_keys=(str(simulator.key.public),),
        receipts=False,
    )


def load(config: Config, reference: str = "mini", **options: Any) -> CompiledModel:
    return pod.load(reference, module, config=config, **options)  # type: ignore[arg-type]


def a_lock_file(tmp_path: Path, *manifests, keys: tuple[str, ...] = ()) -> Path:
    entries = tuple(
        LockEntry(
            reference=a_reference(name=manifest.name),
            profile=manifest.profile.name,
            bundle=manifest_text(manifest)[1],
            build_key=manifest.build_key,
        )
        for manifest in manifests
    )
    path = tmp_path / "aot.lock"
    path.write_bytes(encode_lock(Lock(entries=entries, trusted_keys=keys)))
    return path


# load


def test_what_fits_is_fetched_verified_and_loaded(simulator: RegistrySimulator, config: Config, loads: Loads) -> None:
    digest = simulator.add(a_manifest())
    model = load(config)
    assert (model.bundle, loads.bundles, loads.content) == (digest, [digest], [b"\x7fELF library"])


def test_full_collections_wait_while_it_loads_and_not_while_it_fetches(
    simulator: RegistrySimulator, config: Config, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, int] = {}

    def noting(name: str) -> None:
        original = getattr(pod, name)

        def noted(*args: Any, **options: Any) -> Any:
            found[name] = gc.get_threshold()[2]
            return original(*args, **options)

        monkeypatch.setattr(pod, name, noted)

    for name in ("resolve", "ensure_blobs", "load_artifacts"):
        noting(name)
    simulator.add(a_manifest())
    before = gc.get_threshold()
    load(config)
    assert found == {"resolve": NEVER, "ensure_blobs": before[2], "load_artifacts": NEVER}
    assert gc.get_threshold() == before


def test_a_node_that_holds_what_is_pinned_opens_no_client(
    simulator: RegistrySimulator, config: Config, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = simulator.add(a_manifest())
    load(config)

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("a client was opened")

    monkeypatch.setattr("aot.client.connect.open_client", opened)
    assert load(config, f"mini@{digest}").bundle == digest


def test_the_view_shows_the_verified_bytes_after_a_blob_was_damaged_in_place(
    simulator: RegistrySimulator, config: Config, loads: Loads
) -> None:
    simulator.add(a_manifest())
    load(config)
    [before] = loads.views
    library = before / "lib/model.so"
    library.chmod(0o644)
    library.write_bytes(b"\x7fELF librarx")  # the blob as well: it is the same file
    load(config)
    assert library.read_bytes() == b"\x7fELF library"


def test_the_files_of_a_canary_are_fetched_where_one_is_asked_for(
    simulator: RegistrySimulator, config: Config, loads: Loads
) -> None:
    expected = (a_file("canary/0/inputs.safetensors", b"inputs"), a_file("canary/0/outputs.safetensors", b"outputs"))
    simulator.add(a_manifest(canaries=(Canary(artifact=0, seed=1, point={}, expected=expected),)))
    assert load(replace(config, canary=True)).bundle is not None
    assert loads.content == [b"\x7fELF library", b"inputs", b"outputs"]


def nothing(simulator: RegistrySimulator) -> None:
    """No such model."""


def away(simulator: RegistrySimulator) -> None:
    simulator.unreachable = True


def signed_by_another(simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest(), key=SigningKey.generate())


def withdrawn(simulator: RegistrySimulator) -> None:
    simulator.withdraw(simulator.add(a_manifest()))


def unfit(simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest(artifacts=(an_artifact(capability="cuda:sm_90"),)))


def blob_gone(simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest())
    simulator.contents.clear()


def token_expired(simulator: RegistrySimulator) -> None:
    simulator.refuse(Unauthenticated("the token has expired"), times=2)


@pytest.mark.parametrize(
    ("story", "reason", "error"),
    [
        (nothing, "there is no default/mini:latest", TagNotFound),
        (away, "could not reach", RegistryUnreachable),
        (signed_by_another, "signed by", SignatureRejected),
        (withdrawn, "wrong results", BundleWithdrawn),
        (unfit, "cuda:sm_90", NoCompatibleArtifact),
        (blob_gone, "there is no blob", BlobNotFound),
        (token_expired, "has expired", Unauthenticated),
    ],
)
def test_whatever_goes_wrong_is_a_reason_to_run_eagerly_or_an_error(
    simulator: RegistrySimulator,
    config: Config,
    loads: Loads,
    caplog: pytest.LogCaptureFixture,
    story: Callable[[RegistrySimulator], None],
    reason: str,
    error: type[AotError],
) -> None:
    story(simulator)
    with caplog.at_level(logging.WARNING, "aot"):
        model = load(config)
    assert model(3) == "eager 3"
    assert model.outcome is Outcome.EAGER
    assert any(reason in one for one in model.reasons), model.reasons
    assert "aot runs default/mini:latest eagerly" in caplog.text
    assert loads.bundles == []
    with pytest.raises(error):
        load(config, fallback="raise")


def test_the_reason_is_the_failure_and_not_what_else_was_rejected(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest(artifacts=(an_artifact(), an_artifact(capability="cuda:sm_90"))))
    simulator.contents.clear()
    assert load(config).reasons == (f"there is no blob {a_file().digest}",)


def test_an_error_of_the_loader_runs_eagerly_with_its_traceback_in_the_log(
    simulator: RegistrySimulator, config: Config, loads: Loads, caplog: pytest.LogCaptureFixture
) -> None:
    simulator.add(a_manifest())
    loads.fails = KeyError("a fault of ours")
    model = load(config)
    assert model(1) == "eager 1"
    assert "failed unexpectedly: KeyError" in model.reasons[0]
    assert "Traceback" in caplog.text
    with pytest.raises(LoadFailed, match="KeyError"):
        load(config, fallback="raise")


def test_an_interrupt_is_not_swallowed(simulator: RegistrySimulator, config: Config, loads: Loads) -> None:
    simulator.add(a_manifest())
    loads.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        load(config)


@pytest.mark.parametrize(
    ("reference", "options"),
    [
        ("Not A Name", {}),
        ("mini", {"fallback": "sometimes"}),
        ("mini", {"lock": "/nowhere/aot.lock"}),
    ],
    ids=["reference", "fallback", "lock"],
)
def test_what_the_caller_wrote_wrong_is_raised_whatever_the_fallback(
    config: Config, reference: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        load(config, reference, **options)


def test_a_damaged_lock_file_is_raised(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "aot.lock"
    path.write_bytes(b'{"format": 1, "entries": [')
    with pytest.raises(MalformedDocument, match="lock file"):
        load(config, lock=path)


def test_a_model_that_the_lock_does_not_pin_runs_eagerly_and_says_so(
    simulator: RegistrySimulator, config: Config, tmp_path: Path
) -> None:
    simulator.add(a_manifest(a_spec(name="other")))
    simulator.add(a_manifest())
    lock = a_lock_file(tmp_path, a_manifest(a_spec(name="other")))
    assert "the lock does not pin default/mini:latest" in load(config, lock=lock).reasons[0]


def test_a_lock_brings_its_trusted_keys(simulator: RegistrySimulator, config: Config, tmp_path: Path) -> None:
    digest = simulator.add(a_manifest())
    without = replace(config, trusted_keys=())
    assert "no key is trusted" in load(without).reasons[0]
    lock = a_lock_file(tmp_path, a_manifest(), keys=config.trusted_keys)
    assert load(without, lock=lock).bundle == digest


def test_a_warm_node_with_a_lock_loads_without_one_request(
    simulator: RegistrySimulator, config: Config, tmp_path: Path
) -> None:
    digest = simulator.add(a_manifest())
    lock = a_lock_file(tmp_path, a_manifest())
    pod.pull(lock=lock, config=config, environment=an_environment())
    simulator.sent.clear()
    simulator.unreachable = True
    assert load(config, lock=lock).bundle == digest
    assert simulator.sent == []


def test_a_cache_that_cannot_be_written_does_not_keep_a_warm_node_from_loading(
    simulator: RegistrySimulator, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = simulator.add(a_manifest())
    load(config)

    def full(*_: object) -> None:
        raise LocalStorageFull("the disk is full")

    monkeypatch.setattr(LocalCache, "put_manifest", full)
    monkeypatch.setattr(LocalCache, "remember_tag", full)
    assert load(config).bundle == digest


def test_offline_means_that_nothing_is_asked(simulator: RegistrySimulator, config: Config) -> None:
    digest = simulator.add(a_manifest())
    load(config)
    simulator.sent.clear()
    offline = Config(
        cache_dir=config.cache_dir,
        data_dir=config.data_dir,
        url=config.url,
        trusted_keys=config.trusted_keys,
        offline=True,
    )
    assert load(offline).bundle == digest
    assert simulator.sent == []


def test_a_bundle_that_cannot_be_used_does_not_take_the_others_along(
    simulator: RegistrySimulator, config: Config, loads: Loads
) -> None:
    other = a_manifest(a_spec(profile="h100"), profile=a_gpu_profile())
    refused = simulator.add(other, key=SigningKey.generate())
    digest = simulator.add(a_manifest())
    model = load(config)
    assert (model.bundle, loads.bundles, model.reasons) == (digest, [digest], ("stub",))
    for selection in (model.selection, pod.explain("mini", config=config, environment=an_environment())):
        assert selection is not None
        assert [one.bundle for one in selection.refusals] == [refused]
        assert any("signed by" in reason for reason in selection.reasons)


def test_where_nothing_fits_what_was_refused_is_among_the_reasons(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest(), key=SigningKey.generate())
    simulator.add(a_manifest(a_spec(profile="h100"), profile=a_gpu_profile()))
    reasons = load(config).reasons
    assert any("cuda:sm_90" in one for one in reasons) and any("signed by" in one for one in reasons)


# Afterwards


@dataclass
class AtOnce:
    """Runs what is left for later at once; `held`: when it is told to."""

    held: bool = False
    waiting: list[Task] = field(default_factory=list)

    def __call__(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if self.held:
                self.waiting.append(task)
            else:
                task.run()


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> AtOnce:
    timer = AtOnce()
    monkeypatch.setattr(pod, "run_later", timer)
    return timer


@pytest.fixture
def receipts(config: Config, timer: AtOnce) -> Config:
    """The same configuration, with receipts that are sent at once."""
    return replace(config, receipts=True)


def test_a_load_that_fetched_makes_room_again_after_it_and_keeps_what_it_loaded(
    simulator: RegistrySimulator, config: Config, timer: AtOnce
) -> None:
    cache = LocalCache(config.cache_dir)
    older = Blob(digest=Digest.of(b"another model"), size_bytes=13)
    cache.ensure(older, lambda writer: writer.write(b"another model"))
    simulator.add(a_manifest())
    timer.held = True
    assert load(replace(config, cache_bytes=1)).bundle is not None
    assert cache.path_of(older.digest) is not None, "nothing is removed in the way of the first output"
    [task] = timer.waiting
    assert not task.at_exit, "a process that ends leaves it to the next one"
    task.run()
    assert cache.path_of(older.digest) is None
    assert cache.path_of(a_file().digest) is not None


def test_a_load_that_fetched_nothing_does_not_look_for_what_to_remove(
    simulator: RegistrySimulator, config: Config, timer: AtOnce
) -> None:
    simulator.add(a_manifest())
    load(config)
    timer.held = True
    load(config)
    assert timer.waiting == []


# Receipts


def test_a_receipt_tells_of_the_load(simulator: RegistrySimulator, receipts: Config) -> None:
    digest = simulator.add(a_manifest())
    load(receipts)
    [receipt] = simulator.receipts
    assert (receipt.reference, receipt.bundle, receipt.stale_tag) == (a_reference(), digest, False)
    assert receipt.environment == an_environment()
    assert receipt.load_seconds > 0


def test_a_receipt_is_not_lost_where_the_process_ends_first(
    simulator: RegistrySimulator, receipts: Config, timer: AtOnce
) -> None:
    simulator.add(a_manifest())
    timer.held = True
    load(receipts)
    assert [task.at_exit for task in timer.waiting] == [False, True]
    timer.waiting[1].run()
    assert len(simulator.receipts) == 1


def test_a_load_that_ends_eagerly_is_told_as_well(simulator: RegistrySimulator, receipts: Config) -> None:
    simulator.add(a_manifest(artifacts=(an_artifact(capability="cuda:sm_90"),)))
    load(receipts)
    [receipt] = simulator.receipts
    assert (receipt.bundle, receipt.outcome) == (None, Outcome.EAGER)
    assert "cuda:sm_90" in receipt.reasons[0]


def test_a_tag_resolved_without_the_registry_is_marked_stale(simulator: RegistrySimulator, receipts: Config) -> None:
    simulator.add(a_manifest())
    load(receipts)
    simulator.refuse(RegistryUnreachable("gone for a moment"), times=4)
    load(receipts)
    assert [receipt.stale_tag for receipt in simulator.receipts] == [False, True]


def test_a_receipt_that_cannot_be_sent_is_lost_quietly(simulator: RegistrySimulator, receipts: Config) -> None:
    simulator.add(a_manifest())
    load(receipts)
    simulator.unreachable = True
    assert load(receipts).bundle is not None


def test_no_receipt_is_sent_where_they_are_turned_off(simulator: RegistrySimulator, receipts: Config) -> None:
    simulator.add(a_manifest())
    load(replace(receipts, receipts=False))
    assert simulator.receipts == []


# pull and explain


def test_pull_makes_the_node_ready_and_a_second_one_fetches_nothing(
    simulator: RegistrySimulator, config: Config
) -> None:
    digest = simulator.add(a_manifest())
    [pulled] = pod.pull("mini", config=config, environment=an_environment())
    assert (pulled.reference, pulled.bundle, pulled.stale) == (a_reference(), digest, False)
    simulator.sent.clear()
    pod.pull("mini", config=config, environment=an_environment())
    assert [one.path for one in simulator.sent] == ["/v1/models/default/mini/latest"]


def test_pull_by_a_lock_takes_every_model_once(simulator: RegistrySimulator, config: Config, tmp_path: Path) -> None:
    low = a_profile("cpu-v2", capability="cpu:x86-64-v2")
    manifests = [
        a_manifest(),
        a_manifest(a_spec(profile=low.name), profile=low),
        a_manifest(a_spec(name="other")),
    ]
    digests = [simulator.add(manifest) for manifest in manifests]
    pulled = pod.pull(lock=a_lock_file(tmp_path, *manifests), config=config, environment=an_environment())
    assert [(one.reference.name, one.bundle) for one in pulled] == [("mini", digests[0]), ("other", digests[2])]


def test_pull_fills_the_directory_that_is_named(simulator: RegistrySimulator, config: Config, tmp_path: Path) -> None:
    simulator.add(a_manifest())
    pod.pull("mini", into=tmp_path / "volume", config=config, environment=an_environment())
    assert LocalCache(tmp_path / "volume").path_of(a_file().digest) is not None
    assert not config.cache_dir.exists()


def test_pull_in_an_init_container_leaves_the_decision_to_load(simulator: RegistrySimulator, config: Config) -> None:
    digest = simulator.add(a_manifest())
    [pulled] = pod.pull("mini", config=config)
    assert (pulled.bundle, pulled.selection.undecided) == (digest, True)
    [pulled] = pod.pull("mini", config=config, same_container=True)
    assert (pulled.bundle, pulled.selection.undecided) == (digest, False)


def a_release(release: str, content: bytes) -> Manifest:
    """The bundle of model mini for one release of torch."""
    toolchain = a_toolchain(torch=release)
    profile = a_profile(f"cpu-{release.replace('.', '-').replace('+', '-')}", toolchain=toolchain)
    artifact = an_artifact(torch=release, files=(a_file(content=content),))
    return a_manifest(a_spec(profile=profile.name), profile=profile, artifacts=(artifact,))


def test_pull_in_an_init_container_fetches_every_bundle_that_may_be_the_best(
    simulator: RegistrySimulator, config: Config
) -> None:
    manifests = [a_release("2.11.0+cpu", b"\x7fELF 2.11"), a_release("2.13.0+cpu", b"\x7fELF 2.13")]
    digests = [simulator.add(manifest) for manifest in manifests]
    [pulled] = pod.pull("mini", config=replace(config, cache_bytes=1))
    assert sorted((pulled.bundle, *pulled.selection.alternatives)) == sorted(digests)
    simulator.unreachable = True
    assert load(config).bundle == digests[1], "an_environment has torch 2.13"


def test_pull_for_another_host_takes_what_fits_there(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest())
    old = an_environment(node=a_node(cpu=Capability("cpu:x86-64-v2")))
    [pulled] = pod.pull("mini", config=config, environment=old)
    assert pulled.bundle is None
    assert any("x86-64-v3" in reason for reason in pulled.selection.reasons)
    assert LocalCache(config.cache_dir).path_of(a_file().digest) is None


def test_pull_raises_what_load_would_only_report(simulator: RegistrySimulator, config: Config) -> None:
    with pytest.raises(AotError):
        pod.pull("mini", config=config)
    with pytest.raises(BundleNotFound):
        pod.pull(f"mini@{Digest.of(b'nothing')}", config=config)
    with pytest.raises(InvalidInput, match="nothing to pull"):
        pod.pull(config=config)


def test_explain_names_every_artifact_and_fetches_no_bytes(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest(artifacts=(an_artifact(), an_artifact(capability="cuda:sm_90"))))
    selection = pod.explain("mini", config=config)
    assert [type(decision.verdict).__name__ for decision in selection.decisions] == ["Accepted", "Rejected"]
    assert [one.path for one in simulator.sent] == ["/v1/models/default/mini/latest"]
    assert not config.cache_dir.exists()


def test_the_fallback_may_come_from_the_configuration(config: Config) -> None:
    with pytest.raises(AotError):
        load(replace(config, fallback=Fallback.RAISE))
    assert load(replace(config, fallback=Fallback.RAISE), fallback="eager")(1) == "eager 1"
