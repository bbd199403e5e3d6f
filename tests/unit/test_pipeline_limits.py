"""Room for weights of many gigabytes: the limits that nobody has set, and the disk before a download."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.cli.builds import Submission, _limits_of
from aot.errors import LocalStorageFull
from aot.pipeline.limits import DEFAULT, fitting
from aot.pipeline.source import PackedSource, fetch_source, pack_factory
from aot.schema.recipe import Recipe
from aot.schema.spec import Limits
from tests.builders import a_source, a_spec
from tests.simulator import RegistrySimulator

GIB = 1 << 30


def packed(weight_bytes: int) -> PackedSource:
    return PackedSource(a_source(), (), {}, weight_bytes=weight_bytes)


@pytest.mark.parametrize("freeze", [False, True])
def test_usual_weights_leave_the_defaults_alone(freeze: bool) -> None:
    assert fitting(DEFAULT, packed(2 * GIB), freeze=freeze) == Limits()


def test_a_program_of_20_gib_gets_memory_and_a_frozen_one_disk_too() -> None:
    usual, frozen = (fitting(DEFAULT, packed(20 * GIB), freeze=freeze) for freeze in (False, True))
    assert usual.memory_bytes == frozen.memory_bytes > 2 * 20 * GIB
    assert usual.disk_bytes == DEFAULT.disk_bytes and frozen.disk_bytes > 3 * 20 * GIB


def test_what_somebody_has_set_stays() -> None:
    limits = Limits(memory_bytes=4 * GIB, disk_bytes=5 * GIB, wall_seconds=60.0)
    assert fitting(limits, packed(20 * GIB), freeze=True) == limits
    assert fitting(Limits(wall_seconds=60.0), packed(20 * GIB), freeze=False).wall_seconds == 60.0


def test_whoever_submits_is_told_of_limits_that_nobody_has_set(capsys: pytest.CaptureFixture[str]) -> None:
    def told(limits: Limits, weight_bytes: int) -> str:
        submission = Submission.parse(
            "large:1",
            source=Path("a.pt2"),
            entry=None,
            requirements=(),
            weights=(),
            profile=None,
            tags=(),
            recipe=Recipe(),
            limits=limits,
        )
        assert _limits_of(submission, packed(weight_bytes)) == fitting(limits, packed(weight_bytes), freeze=False)
        return capsys.readouterr().err

    assert told(Limits(), 20 * GIB) == (
        "for 21.5 GB of weights a child may use 62.3 GB of memory and 21.5 GB of disk; --limit sets others\n"
    )
    assert told(Limits(), 2 * GIB) == told(Limits(memory_bytes=4 * GIB), 20 * GIB) == ""


def test_given_weights_count(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "model.py").write_text("make = None\n")
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(bytes(1000))
    found = pack_factory(tmp_path / "tree", "model:make", into=tmp_path / "packed", weights=[weights])
    assert found.weight_bytes == 1000


def test_no_byte_is_fetched_where_the_disk_has_no_room_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator, spec = RegistrySimulator(), a_spec()
    wanted = sum(blob.size_bytes for blob in {*spec.blobs})
    full = SimpleNamespace(f_blocks=1000, f_bavail=wanted - 1, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda place: full)
    with pytest.raises(LocalStorageFull, match=f"{wanted} bytes are to be fetched to .*, where {wanted - 1} are free"):
        fetch_source(simulator.client(), spec, (), into=tmp_path / "source")
    assert simulator.sent == [] and list((tmp_path / "source").iterdir()) == []
