"""Lifted constants: tensors of the exported program that no module holds, stored as safetensors beside the code.

Read here without the safetensors package, which a pod need not have. Format: eight bytes little-endian header length,
a JSON header, then the bytes (huggingface/safetensors, "Format").
"""

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import MalformedDocument

if TYPE_CHECKING:
    from torch import Tensor

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """Return the tensors of a safetensors file, on the CPU. Raises MalformedDocument."""
    content = path.read_bytes()
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        payload = bytearray(content[8 + length :])
        return {name: _read_one(entry, payload) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError, RecursionError) as error:
        raise MalformedDocument(
            f"{path.name} is not a safetensors file: {error}",
            hint="fetch the bundle again",
            details={"path": path.name},
        ) from error


def _read_one(entry: dict[str, Any], payload: bytearray) -> "Tensor":
    import torch

    start, end = entry["data_offsets"]
    if not 0 <= start <= end <= len(payload):
        raise ValueError(f"offsets {start}..{end} lie outside the file")
    dtype = getattr(torch, _DTYPES[entry["dtype"]])
    shape = entry["shape"]
    if any(type(size) is not int or size < 0 for size in shape) or prod(shape) * dtype.itemsize != end - start:
        raise ValueError(f"{end - start} bytes are no {entry['dtype']} tensor of shape {shape}")
    if start == end:
        return torch.empty(shape, dtype=dtype)
    # A copy of its own, so that no tensor keeps the whole file alive and each is aligned.
    return torch.frombuffer(payload[start:end], dtype=torch.uint8).clone().view(dtype).reshape(shape)
