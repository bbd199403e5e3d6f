"""`pull` and `explain`: the same choice without a module."""

import errno
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec import structs

from aot.cache import LocalCache
from aot.config import Config
from aot.errors import AotError, BundleNotFound, DigestMismatch, InvalidConfig, InvalidInput
from aot.runtime import pod
from aot.runtime.compiled import Fallback
from aot.schema.capability import Capability
from aot.schema.codec import decode, encode
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard
from aot.schema.manifest import Manifest
from aot.schema.wire.signed import SignedManifest
from tests.builders import (
    a_file,
    a_manifest,
    a_node,
    a_profile,
    a_spec,
    a_toolchain,
    an_artifact,
    an_environment,
    host_guards,
)
from tests.simulator import RegistrySimulator, a_reference
from tests.unit.pod.pods import a_lock_file, load, unwritable


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


@pytest.mark.parametrize("pinned", [False, True], ids=["by its tag", "by its digest"])
def test_pull_into_a_warm_cache_that_cannot_be_written_finds_all_there(
    simulator: RegistrySimulator, config: Config, pinned: bool
) -> None:
    digest = simulator.add(a_manifest())
    reference = f"mini@{digest}" if pinned else "mini"
    pod.pull(reference, config=config, environment=an_environment())
    cache = unwritable(config)
    [pulled] = pod.pull(reference, config=config, environment=an_environment())
    assert (pulled.bundle, pulled.stale) == (digest, False)
    (cache.root / "incoming").unlink()
    assert load(config).bundle == digest


def test_pull_into_a_warm_cache_that_cannot_be_written_hashes_what_is_there(
    simulator: RegistrySimulator, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.add(a_manifest())
    pod.pull("mini", config=config, environment=an_environment())
    path = unwritable(config).path_of(a_file().digest)
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(b"X" * path.stat().st_size)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(DigestMismatch) as raised:
        pod.pull("mini", config=config, environment=an_environment())
    assert "cannot be removed" in raised.value.hint and "AOT_CACHE_DIR" in raised.value.hint


@pytest.mark.parametrize("change", ["a moved tag", "no manifest", "no blob", "an unsigned manifest"])
def test_pull_into_a_cache_that_cannot_be_written_fails_where_something_is_not_there(
    simulator: RegistrySimulator, config: Config, change: str
) -> None:
    manifests = [a_release("2.13.0+cpu", b"\x7fELF one"), a_release("2.13.0+cpu", b"\x7fELF two")]
    digests = [simulator.add(manifest) for manifest in manifests[: 1 if change == "a moved tag" else 2]]
    pod.pull("mini", config=config, environment=an_environment())
    cache = unwritable(config)
    match change:
        case "a moved tag":
            simulator.add(manifests[1])
        case "no manifest":
            (cache.root / "manifests" / f"{digests[-1].hex}.json").unlink()
        case "no blob":
            for path in (cache.root / "blobs").glob("*/*"):
                path.unlink()
        case "an unsigned manifest":
            for path in (cache.root / "manifests").iterdir():
                signed = decode(path.read_bytes(), SignedManifest, what="manifest")
                path.write_bytes(
                    encode(structs.replace(signed, envelope=structs.replace(signed.envelope, signatures=())))
                )
    wanted = "could not store sha256:" if change == "no blob" else r"could not store \w+\.json"
    with pytest.raises(InvalidConfig, match=wanted) as raised:
        pod.pull("mini", config=config, environment=an_environment())
    assert "AOT_CACHE_DIR" in raised.value.hint


def test_pull_raises_what_load_would_only_report(simulator: RegistrySimulator, config: Config) -> None:
    with pytest.raises(AotError):
        pod.pull("mini", config=config)
    with pytest.raises(BundleNotFound):
        pod.pull(f"mini@{Digest.of(b'nothing')}", config=config)
    with pytest.raises(InvalidInput, match="nothing to pull"):
        pod.pull(config=config)


def test_what_needs_a_newer_glibc_is_refused_before_a_byte_of_it_is_fetched(
    simulator: RegistrySimulator, config: Config
) -> None:
    newer = HostGuard(kind="libc", value="2.99")
    guards = tuple(newer if guard.kind == "libc" else guard for guard in host_guards())
    simulator.add(a_manifest(artifacts=(an_artifact(host_guards=guards),)))
    (reason,) = load(config).reasons
    assert "2.99" in reason and "libc" in reason
    assert [one.path for one in simulator.sent] == ["/v1/models/default/mini/latest"]
    assert LocalCache(config.cache_dir).path_of(a_file().digest) is None


def test_explain_names_every_artifact_and_fetches_no_bytes(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest(artifacts=(an_artifact(), an_artifact(capability="cuda:sm_90"))))
    selection = pod.explain("mini", config=config)
    assert [type(decision.verdict).__name__ for decision in selection.decisions] == ["Accepted", "Rejected"]
    assert [one.path for one in simulator.sent] == ["/v1/models/default/mini/latest"]
    assert not config.cache_dir.exists()


@pytest.mark.parametrize("pinned", ["by nothing", "by its digest", "by a lock"])
def test_who_fetches_nothing_asks_for_no_links(
    simulator: RegistrySimulator, config: Config, tmp_path: Path, pinned: str
) -> None:
    """On a cold node, where a pod's first request brings them along."""
    digest = simulator.add(a_manifest())
    reference = f"mini@{digest}" if pinned == "by its digest" else "mini"
    lock = a_lock_file(tmp_path, a_manifest()) if pinned == "by a lock" else None
    pod.explain(reference, config=config, lock=lock)
    assert pod.look_up(reference, config=config, lock=lock).candidates[0].links == ()
    assert [urlsplit(one.url).query for one in simulator.sent] == ["", ""]
    simulator.sent.clear()
    pod.pull(reference, config=config, lock=lock, environment=an_environment())
    assert urlsplit(simulator.sent[0].url).query == "links=true"


def test_the_fallback_may_come_from_the_configuration(config: Config) -> None:
    with pytest.raises(AotError):
        load(replace(config, fallback=Fallback.RAISE))
    assert load(replace(config, fallback=Fallback.RAISE), fallback="eager")(1) == "eager 1"
