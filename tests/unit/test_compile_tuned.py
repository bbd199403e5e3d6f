"""Measurements of tuning: joined, kept by profile, and what a child left malformed is not believed."""

import json
from pathlib import Path

import pytest

from aot.compile.tuned import Measured, TuningStore, parse_measured
from aot.errors import MalformedDocument
from aot.locks import try_lock
from aot.schema.codec import encode
from aot.schema.names import Namespace
from aot.schema.profile import Profile
from tests.builders import a_device, a_profile

GPU = a_profile(capability="cuda:sm_90", device=a_device())


def measured(*, inputs: str = "64x64", ms: float | None = 0.5, place: str = "ab/cd.best_config") -> Measured:
    choice = '{"XBLOCK": 8, "num_warps": 4, "num_stages": 1}'
    return Measured(timings={"mm": {inputs: {"highest": {"aten": ms}}}}, configurations={place: choice})


def a_store(directory: Path, profile: Profile = GPU, namespace: str = "default") -> TuningStore:
    return TuningStore(directory, profile, Namespace(namespace))


def test_what_was_left_is_found_by_the_next_build_of_the_profile(tmp_path: Path) -> None:
    store = a_store(tmp_path / "caches")
    assert len(store.read()) == 0
    store.add(encode(measured()))
    store.add(encode(measured(inputs="8x8", place="ef/gh.best_config")))
    assert set(store.read().timings["mm"]) == {"64x64", "8x8"}
    assert len(store.read()) == 4


def test_a_later_measurement_replaces_an_earlier_one(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    for ms in (0.5, None):
        store.add(encode(measured(ms=ms)))
    assert store.read().timings["mm"]["64x64"]["highest"] == {"aten": None}


def test_what_comes_from_elsewhere_fills_gaps_and_replaces_nothing(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.add(encode(measured(ms=0.5)))
    elsewhere = measured(ms=0.9).joined(measured(inputs="8x8", place="ef/gh.best_config"))
    assert store.seed(encode(elsewhere)) == elsewhere
    found = store.read().timings["mm"]
    assert (found["64x64"]["highest"]["aten"], found["8x8"]["highest"]["aten"]) == (0.5, 0.5)
    assert len(store.read()) == 4


def test_a_namespace_sees_no_measurement_of_another(tmp_path: Path) -> None:
    a_store(tmp_path).add(encode(measured()))
    assert len(a_store(tmp_path, namespace="others").read()) == 0


@pytest.mark.parametrize(
    "other",
    [
        a_profile(capability="cuda:sm_90", device=a_device(sku="NVIDIA H200")),
        a_profile(capability="cuda:sm_80", device=a_device()),
    ],
)
def test_another_device_has_measurements_of_its_own(tmp_path: Path, other: Profile) -> None:
    a_store(tmp_path).add(encode(measured()))
    assert len(a_store(tmp_path, other).read()) == 0


@pytest.mark.parametrize("place", ["../ab/cd.best_config", "/etc/passwd", "ab/cd.py", "ab/../../x.best_config", "a/b"])
def test_a_configuration_outside_of_the_cache_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(MalformedDocument, match="outside of a cache"):
        parse_measured(encode(measured(place=place)))


@pytest.mark.parametrize("text", ["[]", "{", '{"a": {"b": 1}}', '{"a": "%s"}' % ("x" * 5000), "[" * 4096])
def test_a_configuration_that_is_no_plain_object_is_refused(tmp_path: Path, text: str) -> None:
    found = Measured(configurations={"ab/cd.best_config": text})
    with pytest.raises(MalformedDocument, match="plain values"):
        parse_measured(encode(found))


@pytest.mark.parametrize("lacking", ["num_warps", "num_stages"])
@pytest.mark.parametrize("found", [None, "4", True])
def test_a_configuration_that_torch_would_stumble_over_is_refused(lacking: str, found: object) -> None:
    text = json.dumps({"XBLOCK": 8, "num_warps": 4, "num_stages": 1, lacking: found})
    with pytest.raises(MalformedDocument, match=f"has no {lacking}"):
        parse_measured(encode(Measured(configurations={"ab/cd.best_config": text})))


@pytest.mark.parametrize("content", [b"", b"{", b'{"timings": {"mm": 3}}', b'{"unknown": 1}'])
def test_what_a_child_left_malformed_changes_nothing(tmp_path: Path, content: bytes) -> None:
    store = a_store(tmp_path)
    store.add(encode(measured()))
    for take in (store.add, store.seed):
        with pytest.raises(MalformedDocument):
            take(content)
    assert store.read() == measured()


def test_a_store_that_cannot_be_read_is_an_empty_one(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.path.write_bytes(b"{ torn")
    assert len(store.read()) == 0
    store.add(encode(measured()))
    assert store.read() == measured()


def test_a_build_does_not_wait_for_another_one_to_keep_its_own(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    with store.path.with_suffix(".lock").open("w") as lock:
        assert try_lock(lock)
        store.add(encode(measured()))
    assert len(store.read()) == 0


def test_a_directory_that_cannot_be_made_costs_no_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    a_store(tmp_path / "file" / "caches").add(encode(measured()))
