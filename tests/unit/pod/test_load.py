"""`load`: whatever goes wrong on the way, the model runs, and says why it does not run compiled."""

import errno
import gc
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.cache import Incoming, LocalCache
from aot.config import Config
from aot.errors import (
    AotError,
    BlobNotFound,
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
from aot.runtime.graphs import GraphOutputs
from aot.schema.manifest import Canary
from aot.schema.wire.workers import Outcome
from aot.trust import SigningKey
from tests.builders import a_file, a_gpu_profile, a_manifest, a_spec, an_artifact, an_environment
from tests.simulator import RegistrySimulator
from tests.unit.pod.pods import Loads, a_lock_file, load


def test_what_fits_is_fetched_verified_and_loaded(simulator: RegistrySimulator, config: Config, loads: Loads) -> None:
    digest = simulator.add(a_manifest())
    model = load(config)
    assert (model.bundle, loads.bundles, loads.content) == (digest, [digest], [b"\x7fELF library"])


def test_graphs_are_used_and_their_results_copied_unless_asked_otherwise(
    simulator: RegistrySimulator, config: Config, loads: Loads
) -> None:
    simulator.add(a_manifest())
    load(config)
    load(config, graph_outputs="static")
    load(config, graphs=False)
    assert loads.graphs == [GraphOutputs.COPIED, GraphOutputs.STATIC, None]


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


def test_the_log_says_why_it_runs_eagerly_and_what_to_do(
    simulator: RegistrySimulator, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    simulator.add(a_manifest())
    load(replace(config, trusted_keys=()))
    assert "no key is trusted" in caplog.text and "; try: set AOT_TRUSTED_KEYS" in caplog.text


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


def gone_in_the_middle(simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest(artifacts=(an_artifact(files=(a_file("lib/model.so", bytes(100_000)),)),)))
    simulator.cut_after(1_000, times=100)


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
        (gone_in_the_middle, "connection was cut", RegistryUnreachable),
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


def test_a_full_disk_is_a_reason_to_run_eagerly_until_there_is_room(
    simulator: RegistrySimulator, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.add(a_manifest())

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Incoming, "finish", fail)
        model = load(config)
        assert (model(3), model.outcome) == ("eager 3", Outcome.EAGER)
        assert "No space left" in model.reasons[0]
        with pytest.raises(LocalStorageFull):
            load(config, fallback="raise")
    assert load(config).reasons == ("stub",)


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
    with pytest.raises(InvalidInput) as caught:
        load(config, lock=lock, fallback="raise")
    assert (caught.value.hint or "").startswith("name what it pins")


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
