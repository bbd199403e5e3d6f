"""Room for weights of many gigabytes: the limits that nobody has set, and the disk before a download."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.cli.builds import Submission, _limits_of
from aot.cli.recipe import parse_limits
from aot.errors import LocalStorageFull
from aot.pipeline.limits import fitting
from aot.pipeline.source import PackedSource, fetch_source, pack_factory
from aot.schema.codec import decode, encode
from aot.schema.project import decode_project
from aot.schema.recipe import Recipe
from aot.schema.spec import DEFAULT_DISK_BYTES, DEFAULT_MEMORY_BYTES, Limits, Spec
from tests.builders import a_source, a_spec
from tests.simulator import RegistrySimulator

GIB = 1 << 30


def packed(weight_bytes: int) -> PackedSource:
    return PackedSource(a_source(), (), {}, weight_bytes=weight_bytes)


@pytest.mark.parametrize("freeze", [False, True])
def test_usual_weights_leave_the_defaults_alone(freeze: bool) -> None:
    assert fitting(Limits(), packed(2 * GIB), freeze=freeze) == Limits()


def test_a_program_of_20_gib_gets_memory_and_a_frozen_one_disk_too() -> None:
    usual, frozen = (fitting(Limits(), packed(20 * GIB), freeze=freeze) for freeze in (False, True))
    assert usual.most_memory_bytes == frozen.most_memory_bytes > 2 * 20 * GIB
    assert usual.most_disk_bytes == DEFAULT_DISK_BYTES and frozen.most_disk_bytes > 3 * 20 * GIB


def test_what_somebody_has_set_stays() -> None:
    limits = Limits(memory_bytes=4 * GIB, disk_bytes=5 * GIB, wall_seconds=60.0)
    assert fitting(limits, packed(20 * GIB), freeze=True) == limits
    assert fitting(Limits(wall_seconds=60.0), packed(20 * GIB), freeze=False).wall_seconds == 60.0


SET = Limits(memory_bytes=DEFAULT_MEMORY_BYTES, disk_bytes=DEFAULT_DISK_BYTES)
PROJECT = f"""
[[models]]
name = "large"
program = "a.pt2"
profiles = ["here"]
limits = {{memory_bytes = {DEFAULT_MEMORY_BYTES}, disk_bytes = {DEFAULT_DISK_BYTES}}}
"""


@pytest.mark.parametrize(
    "limits",
    [SET, parse_limits(["memory_bytes=16G", "disk_bytes=20G"]), decode_project(PROJECT).models[0].limits],
    ids=["given", "command line", "aot.toml"],
)
def test_somebody_may_set_what_the_default_is(limits: Limits) -> None:
    assert limits == SET
    assert fitting(limits, packed(20 * GIB), freeze=True) == SET
    # Through the registry and back, where it is as much somebody's.
    spec = decode(encode(a_spec(limits=limits)), Spec)
    assert fitting(spec.limits, packed(20 * GIB), freeze=True) == SET


def test_a_document_of_limits_that_nobody_has_set_says_nothing_as_before() -> None:
    assert encode(Limits()) == b"{}"
    assert decode(b"{}", Limits) == Limits(wall_seconds=3600.0, processes=256)
    assert (Limits().most_memory_bytes, Limits().most_disk_bytes) == (16 * GIB, 20 * GIB)
    assert decode(b'{"memory_bytes":17179869184}', Limits).memory_bytes == 16 * GIB
    assert b'"limits":{},' in encode(a_spec(limits=Limits()))


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
    assert told(Limits(), 2 * GIB) == told(Limits(memory_bytes=16 * GIB), 20 * GIB) == ""


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
