"""Reading safetensors without its package: what it writes comes back, and nothing that is malformed is believed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from aot.errors import MalformedDocument
from aot.runtime.constants import read_tensors


def written(place: Path, header: object, payload: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = place / "constants.safetensors"
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + payload)
    return path


def entry(**changes: object) -> dict[str, object]:
    return {"one": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


def test_every_kind_of_tensor_comes_back(tmp_path: Path) -> None:
    tensors = {
        str(dtype): torch.tensor([[1, 0, 3]]).to(dtype)
        for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16)
    }
    tensors |= {
        "bfloat16": torch.tensor([1.5], dtype=torch.bfloat16),
        "float64": torch.tensor(1 / 3, dtype=torch.float64),
        "complex": torch.tensor([1 + 2j]),
        "eight bits": torch.tensor([1.5]).to(torch.float8_e4m3fn),
        "unsigned": torch.tensor([7], dtype=torch.uint16),
        "empty": torch.zeros(0, 3),
    }
    save_file(tensors, str(tmp_path / "all.safetensors"), metadata={"by": "test"})
    found = read_tensors(tmp_path / "all.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].float(), tensor.float()) or tensor.is_complex()
    assert torch.equal(found["complex"], tensors["complex"])


def test_tensors_do_not_share_memory_with_each_other(tmp_path: Path) -> None:
    found = read_tensors(written(tmp_path, entry() | {"two": entry()["one"]}, bytes(8)))
    found["one"].fill_(1.0)
    assert found["two"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        [],
        {"one": []},
        {"one": {}},
        entry(dtype="F31"),
        entry(dtype=["F32"]),
        entry(data_offsets=[0]),
        entry(data_offsets=[-8, 0]),
        entry(data_offsets=[0, 800]),
        entry(data_offsets=[8, 0]),
        entry(data_offsets=["0", "8"]),
        entry(shape=[3]),
        entry(shape=[-2]),
        entry(shape=[-1, -2]),
        entry(shape=[2.0]),
        entry(shape=[True, 2]),
        entry(shape="2"),
        entry(shape=[1 << 40], data_offsets=[0, 0]),
        entry(shape=[1 << 62, 1 << 62], data_offsets=[0, 0]),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, header: object) -> None:
    with pytest.raises(MalformedDocument, match=r"constants\.safetensors"):
        read_tensors(written(tmp_path, header, bytes(8)))


@pytest.mark.parametrize("length", [0, 5, 1 << 62])
def test_a_header_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(MalformedDocument):
        read_tensors(written(tmp_path, entry(), bytes(8), length=length))
