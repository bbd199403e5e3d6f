"""Outlines: a program is stripped without a look at its weights, to the very bytes that reading all of them gives."""

import errno
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aot.compile.outline import CONSTANTS, GRAPH, WEIGHTS, WEIGHTS_CONFIG, write_outline
from aot.compile.strip import open_program, strip_program
from aot.compile.weights import load_weights
from aot.errors import InvalidSource
from benchmarks.large_program import write_program, write_weights

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


class Shared(nn.Module):
    """Weights that share memory in every way, of several types and forms; a large buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        fused = torch.arange(48.0).reshape(12, 4)
        for index, name in enumerate(("query", "key", "value")):
            self.register_buffer(name, fused[4 * index : 4 * index + 4])
        self.turned = nn.Parameter(torch.arange(32.0).reshape(4, 8).t())
        self.first = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.second = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
        self.second.weight = self.first.weight
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("void", torch.empty(2, 0))
        self.register_buffer("scalar", torch.tensor(1.5, dtype=torch.float64))
        self.register_buffer("count", torch.tensor([1, 2, 3]))
        self.register_buffer("table", torch.ones(MIB // 2), persistent=False)
        self.register_buffer("small", torch.ones(4), persistent=False)
        self.large = torch.full((MIB // 4 + 1,), 0.5)
        self.gain = torch.tensor([2.0, 3.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.query + x @ self.key + x @ self.value + (x @ self.turned.t()).sum() * self.scalar
        x = (
            self.second(self.first(x.bfloat16())).float()
            + self.count.sum()
            + self.empty.sum()
            + self.void.sum()
            + self.small
        )
        return x + self.table[:4] + self.large[:4] * self.gain.sum()


def save(module: nn.Module, path: Path, **options: Any) -> Path:
    torch.export.save(torch.export.export(module.eval(), (torch.ones(2, 4),)), path, **options)
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(Shared(), tmp_path_factory.mktemp("saved") / "shared.pt2")


def changed(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The archive with other members, by their names below the one folder."""
    with zipfile.ZipFile(source) as archive:
        root = archive.namelist()[0].partition("/")[0]
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{root}/{name}", content)
    return target


def stripped(source: Path, target: Path) -> bytes:
    strip_program(source, target)
    return target.read_bytes()


def strip_whole(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """As without outlines."""
    with monkeypatch.context() as patched:
        patched.setattr("aot.compile.strip.write_outline", lambda *_: False)
        return stripped(source, target)


def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    small, large = tmp_path / "small.pt2", tmp_path / "large.pt2"
    write_program(small, 64 * MIB)
    write_program(large, 1024 * MIB)
    assert large.stat().st_size > 1024 * MIB > 100 * large.stat().st_blocks * 512, "its weights are holes"
    command = [sys.executable, "-m", "benchmarks.large_program", "strip", str(small), str(large)]
    before, after = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    assert (before["weight_bytes"], after["weight_bytes"]) == (64 * MIB, 1024 * MIB)
    assert after["peak_bytes"] - before["peak_bytes"] < 24 * MIB
    assert after["stripped_bytes"] < MIB


def test_the_weights_that_the_benchmark_writes_are_those_of_its_program(tmp_path: Path) -> None:
    program, weights, size = tmp_path / "program.pt2", tmp_path / "weights.safetensors", 3 * 2 * 64 * 64
    write_program(program, size, width=64)
    write_weights(weights, size, width=64)
    assert strip_program(program, tmp_path / "stripped.pt2") == size
    module = open_program(tmp_path / "stripped.pt2", seed=1).module
    assert all(weight.any() for weight in module.parameters())
    load_weights(module, [weights])
    assert len(list(module.parameters())) == 3 and not any(weight.any() for weight in module.parameters())


def test_the_bytes_are_those_of_a_program_that_was_read_whole(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = strip_whole(saved, tmp_path / "whole.pt2", monkeypatch)
    monkeypatch.setattr("aot.compile.outline._LARGE_BYTES", 2 * MIB)
    assert stripped(saved, tmp_path / "weights.pt2") == whole
    monkeypatch.setattr("aot.compile.outline._LARGE_BYTES", 1)
    assert stripped(saved, tmp_path / "constants.pt2") == whole
    program = open_program(tmp_path / "weights.pt2", seed=0)
    assert torch.equal(program.module.large, Shared().large), "a lifted constant keeps its values"
    assert program.module.second.weight.data_ptr() == program.module.first.weight.data_ptr()
    assert (program.module.empty.shape, program.module.void.shape) == ((0, 3), (2, 0))


def test_an_outline_has_nothing_of_a_weight_and_all_else(saved: Path) -> None:
    outline = io.BytesIO()
    assert write_outline(saved, outline)
    with zipfile.ZipFile(outline) as found, zipfile.ZipFile(saved) as archive:
        root = archive.namelist()[0].partition("/")[0]
        assert found.namelist() == archive.namelist()
        sizes = {info.filename.removeprefix(f"{root}/"): info.file_size for info in found.infolist()}
        weights = {name: size for name, size in sizes.items() if name.startswith(f"{WEIGHTS}weight_")}
        assert sorted(weights.values()) == [0, 16, 16, 16, 16, 16, 48], "one element for each place in a memory"
        assert found.read(f"{root}/{GRAPH}") == archive.read(f"{root}/{GRAPH}")
        constants = [size for name, size in sizes.items() if name.startswith(f"{CONSTANTS}tensor_")]
        assert sorted(constants) == [8, 16, 16, 4 * (MIB // 4 + 1)], "the large buffer, and no constant"


def test_the_bytes_of_the_weights_are_told_and_tied_ones_count_once(saved: Path, tmp_path: Path) -> None:
    state = {name: value for name, value in Shared().state_dict().items() if name != "second.weight"}
    kept = 4 * (MIB // 2 + 4)
    weights = sum(value.numel() * value.element_size() for value in state.values())
    assert strip_program(saved, tmp_path / "stripped.pt2") == weights + kept


def test_a_program_that_was_stripped_is_stripped_to_itself(saved: Path, tmp_path: Path) -> None:
    once = stripped(saved, tmp_path / "once.pt2")
    assert stripped(tmp_path / "once.pt2", tmp_path / "twice.pt2") == once


def test_files_beside_the_program_are_left_out(saved: Path, tmp_path: Path) -> None:
    other = save(Shared(), tmp_path / "other name.pt2", extra_files={"notes.txt": "of its author"})
    assert stripped(other, tmp_path / "a.pt2") == stripped(saved, tmp_path / "b.pt2")


def add_a_second_program(members: dict[str, bytes]) -> None:
    members["models/other.json"] = members[GRAPH]


def add_compiled_code(members: dict[str, bytes]) -> None:
    members["data/aotinductor/model/model.so"] = b"code"


def lose_the_configuration(members: dict[str, bytes]) -> None:
    del members[WEIGHTS + WEIGHTS_CONFIG]


def of_another_form(members: dict[str, bytes]) -> None:
    members[WEIGHTS + WEIGHTS_CONFIG] = b'{"weights": []}'


def cut_a_weight(members: dict[str, bytes]) -> None:
    members[f"{WEIGHTS}weight_0"] = members[f"{WEIGHTS}weight_0"][:-4]


def reach_beyond_a_weight(members: dict[str, bytes]) -> None:
    told = json.loads(members[WEIGHTS + WEIGHTS_CONFIG])
    told["config"]["turned"]["tensor_meta"]["storage_offset"] = {"as_int": 1}
    members[WEIGHTS + WEIGHTS_CONFIG] = json.dumps(told).encode()


@pytest.mark.parametrize(
    "change",
    [
        add_a_second_program,
        add_compiled_code,
        lose_the_configuration,
        of_another_form,
        cut_a_weight,
        reach_beyond_a_weight,
    ],
)
def test_an_archive_of_another_layout_has_no_outline(
    change: Callable[[dict[str, bytes]], None], saved: Path, tmp_path: Path
) -> None:
    assert write_outline(changed(saved, tmp_path / "same.pt2", lambda members: None), io.BytesIO())
    assert not write_outline(changed(saved, tmp_path / "changed.pt2", change), io.BytesIO())


@pytest.mark.parametrize("change", [lose_the_configuration, cut_a_weight, reach_beyond_a_weight])
def test_what_torch_cannot_read_is_refused_in_its_words(
    change: Callable[[dict[str, bytes]], None], saved: Path, tmp_path: Path
) -> None:
    source = changed(saved, tmp_path / "changed.pt2", change)
    with pytest.raises(InvalidSource, match=r"changed\.pt2 is no exported program: "):
        strip_program(source, tmp_path / "stripped.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["changed.pt2"]


def test_a_full_disk_is_not_the_programs_fault(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("aot.compile.outline.copy_member", full)
    with pytest.raises(OSError, match="No space left"):
        strip_program(saved, tmp_path / "stripped.pt2")
    assert list(tmp_path.iterdir()) == []


def test_the_layout_of_before_is_read_whole(saved: Path, tmp_path: Path) -> None:
    """Weights as one pickled state dict, as torch 2.8 and earlier had them."""
    content = io.BytesIO()
    torch.save(torch.export.load(saved).state_dict, content)

    def as_one_file(members: dict[str, bytes]) -> None:
        for name in [name for name in members if name.startswith(WEIGHTS)]:
            del members[name]
        members[f"{WEIGHTS}model.pt"] = content.getvalue()

    source = changed(saved, tmp_path / "before.pt2", as_one_file)
    assert not write_outline(source, io.BytesIO())
    assert stripped(source, tmp_path / "a.pt2") == stripped(saved, tmp_path / "b.pt2")
