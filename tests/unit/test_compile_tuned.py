"""Measurements of tuning: joined, kept by profile, and what a child left malformed is not believed."""

from pathlib import Path

import pytest

from aot.compile.tuned import Measured, TuningStore, read_measured
from aot.errors import MalformedDocument
from aot.locks import try_lock
from aot.schema.codec import encode
from tests.builders import a_device, a_profile

GPU = a_profile(capability="cuda:sm_90", device=a_device())


def measured(*, inputs: str = "64x64", ms: float | None = 0.5, place: str = "ab/cd.best_config") -> Measured:
    return Measured(timings={"mm": {inputs: {"highest": {"aten": ms}}}}, configurations={place: '{"XBLOCK": 8}'})


def left(tmp_path: Path, found: Measured, name: str = "left.json") -> Path:
    path = tmp_path / name
    path.write_bytes(encode(found))
    return path


def test_what_was_left_is_found_by_the_next_build_of_the_profile(tmp_path: Path) -> None:
    store = TuningStore(tmp_path / "caches", GPU)
    assert len(store.read()) == 0
    store.add(left(tmp_path, measured()))
    store.add(left(tmp_path, measured(inputs="8x8", place="ef/gh.best_config")))
    assert set(store.read().timings["mm"]) == {"64x64", "8x8"}
    assert len(store.read()) == 4


def test_a_later_measurement_replaces_an_earlier_one(tmp_path: Path) -> None:
    store = TuningStore(tmp_path, GPU)
    for ms in (0.5, None):
        store.add(left(tmp_path, measured(ms=ms)))
    assert store.read().timings["mm"]["64x64"]["highest"] == {"aten": None}


@pytest.mark.parametrize(
    "other",
    [
        a_profile(capability="cuda:sm_90", device=a_device(sku="NVIDIA H200")),
        a_profile(capability="cuda:sm_80", device=a_device()),
    ],
)
def test_another_device_has_measurements_of_its_own(tmp_path: Path, other: object) -> None:
    TuningStore(tmp_path, GPU).add(left(tmp_path, measured()))
    assert len(TuningStore(tmp_path, other).read()) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["../ab/cd.best_config", "/etc/passwd", "ab/cd.py", "ab/../../x.best_config", "a/b"])
def test_a_configuration_outside_of_the_cache_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(MalformedDocument, match="outside of a cache"):
        read_measured(left(tmp_path, measured(place=place)))


@pytest.mark.parametrize("text", ["[]", "{", '{"a": {"b": 1}}', '{"a": "%s"}' % ("x" * 5000)])
def test_a_configuration_that_is_no_plain_object_is_refused(tmp_path: Path, text: str) -> None:
    found = Measured(configurations={"ab/cd.best_config": text})
    with pytest.raises(MalformedDocument, match="plain values"):
        read_measured(left(tmp_path, found))


@pytest.mark.parametrize("content", [b"", b"{", b'{"timings": {"mm": 3}}', b'{"unknown": 1}'])
def test_what_a_child_left_malformed_changes_nothing(tmp_path: Path, content: bytes) -> None:
    store = TuningStore(tmp_path, GPU)
    store.add(left(tmp_path, measured()))
    (tmp_path / "bad.json").write_bytes(content)
    store.add(tmp_path / "bad.json")
    store.add(tmp_path / "missing.json")
    assert store.read() == measured()


def test_a_store_that_cannot_be_read_is_an_empty_one(tmp_path: Path) -> None:
    store = TuningStore(tmp_path, GPU)
    store.path.write_bytes(b"{ torn")
    assert len(store.read()) == 0
    store.add(left(tmp_path, measured()))
    assert store.read() == measured()


def test_a_build_does_not_wait_for_another_one_to_keep_its_own(tmp_path: Path) -> None:
    store = TuningStore(tmp_path, GPU)
    with store.path.with_suffix(".lock").open("w") as lock:
        assert try_lock(lock)
        store.add(left(tmp_path, measured()))
    assert len(store.read()) == 0


def test_a_directory_that_cannot_be_made_costs_no_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    TuningStore(tmp_path / "file" / "caches", GPU).add(left(tmp_path, measured()))
