"""Non-tensor state of a module as plain values: what `forward` may read, without what differs between two places.

Part of a fingerprint. The rule: numbers, texts, containers, enums, dtypes, functions and classes by what they are;
objects with attributes by class and attributes; anything else by its class alone, never by `repr`, which may hold an
address. Left out or made neutral: paths, device indices, names of checkpoints, library versions, lazily kept state.
"""

import functools
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from aot.runtime.code import describe_function, full_name, functions_of, is_named_only, name_of

if TYPE_CHECKING:
    from torch import Tensor

# Attributes that say where a model came from, or that a library sets while it runs; forward computes nothing by them.
NEUTRAL_ATTRIBUTES = frozenset(
    [
        *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "generation_config"),
        *("_is_hf_initialized", "_hf_peft_config_loaded", "hf_device_map", "warnings_issued"),
        *("_output_capturing_hooks_installed", "_use_kernels", "_weight_conversions"),
    ]
)
_PLACE = re.compile(r"(?:/|~/|[A-Za-z]:[\\/]|\\\\|file:)\S*")
_DEVICE = re.compile(r"(cuda|xpu|hip|cpu|mps):\d+")
_MOST_DEEP = 10
_MOST_VALUES = 50_000


class ValueReader:
    """Reads values of one program. `names` are its modules' and tensors' dotted names by identity.

    Objects are read once each: a value refers to them by label, and `objects` holds what is in them by label.
    `classes` and `functions` collect what code the program may run because a value holds it.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._labels: dict[int, str] = {}
        self._kept: list[Any] = []  # an identity is only one while its object lives
        self._count = 0
        self.objects: dict[str, Any] = {}
        self.classes: dict[str, type] = {}
        self.functions: list[FunctionType] = []

    def read(self, value: Any, depth: int = 0) -> Any:
        """Return `value` as numbers, texts, lists and dicts with text keys."""
        if (label := self._labels.get(id(value))) is not None:
            return {"object": label}
        self._count += 1
        if depth > _MOST_DEEP or self._count > _MOST_VALUES:
            return {"object": name_of(type(value))}
        if isinstance(value, Enum):
            return {"enum": f"{name_of(type(value))}.{value.name}"}
        if value is None or isinstance(value, bool | int):
            return value if value is None or -(2**63) <= value < 2**64 else str(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, str):
            return neutral(value)
        if isinstance(value, list | tuple):
            return [self.read(one, depth + 1) for one in value]
        if isinstance(value, Mapping):
            return self._read_mapping(value, depth)
        if isinstance(value, Set):
            return {"set": sorted((self.read(one, depth + 1) for one in value), key=repr)}
        return self._read_other(value, depth)

    def _read_mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        try:
            items = list(value.items())
        except (RuntimeError, TypeError, AttributeError):
            return {"object": name_of(type(value))}
        if all(isinstance(key, str) for key, _ in items):
            return {neutral(key): self.read(one, depth + 1) for key, one in items if key not in NEUTRAL_ATTRIBUTES}
        pairs = [[self.read(key, depth + 1), self.read(one, depth + 1)] for key, one in items]
        return {"pairs": sorted(pairs, key=repr)}

    def _read_other(self, value: Any, depth: int) -> Any:
        match value:
            case type():
                return {"class": name_of(value)}
            case functools.partial():
                parts = [self.read(one, depth + 1) for one in (value.func, value.args, value.keywords)]
                return {"partial": parts}
            case MethodType():
                return {"code": self._describe_all(value, depth), "of": self._owner(value.__self__)}
            case _ if functions_of(value):
                return {"code": self._describe_all(value, depth)}
            case BuiltinFunctionType():
                return {"code": name_of(value)}
            case ModuleType():
                return {"python": value.__name__}
            case bytes() | bytearray():
                return {"bytes": hashlib.sha256(value).hexdigest()[:16]}
            case complex() | range() | slice():
                return {type(value).__name__: repr(value)}
            case re.Pattern():
                return {"pattern": [str(value.pattern), value.flags]}
            case PurePath():
                return {"path": ""}
        return self._read_torch(value, depth)

    def _read_torch(self, value: Any, depth: int) -> Any:
        import torch

        if (name := self._names.get(id(value))) is not None:
            return {"is": name}
        match value:
            case torch.Tensor():
                return {"tensor": digest_tensor(value)}
            case torch.dtype() | torch.layout() | torch.memory_format():
                return str(value)
            case torch.device():
                return {"device": value.type}
            case torch.nn.Module():
                from aot.runtime.fingerprint import fingerprint

                return {"module": [name_of(type(value)), str(fingerprint(value).digest)]}
        kind = type(value)
        if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "dtype"):
            content = hashlib.sha256(value.tobytes()).hexdigest()[:16]
            return {"array": [str(value.dtype), list(value.shape), content]}
        if kind.__module__.startswith("torch._ops"):
            return {"operation": str(value)}
        return self._read_object(value, depth)

    def _read_object(self, value: Any, depth: int) -> Any:
        """Objects of the program's own classes: by label, their attributes under it."""
        kind = type(value)
        if is_named_only(kind.__module__):
            return {"object": name_of(kind)}
        short = kind.__qualname__
        label = f"{short}#{sum(one.partition('#')[0] == short for one in self._labels.values())}"
        self._labels[id(value)] = label
        self._kept.append(value)
        self.classes.setdefault(full_name(kind), kind)
        attributes = {name: one for name, one in attributes_of(value) if name not in NEUTRAL_ATTRIBUTES}
        inside = {name: self.read(one, depth + 1) for name, one in sorted(attributes.items())}
        self.objects[label] = {"class": name_of(kind), **inside}
        return {"object": label}

    def _describe_all(self, value: Any, depth: int) -> list[Any]:
        functions = functions_of(value)
        self.functions += functions
        return [describe_function(one, functools.partial(self.read, depth=depth + 1)) for one in functions]

    def _owner(self, value: Any) -> str:
        return self._names.get(id(value)) or name_of(value if isinstance(value, type) else type(value))


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object by name, from its dict and its slots."""
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def neutral(text: str) -> str:
    """Return `text` without what names a place: a path is any path, a card any card of its kind."""
    if _PLACE.fullmatch(text):
        return "<path>"
    return _DEVICE.sub(r"\1", text) if _DEVICE.fullmatch(text) else text


def digest_tensor(tensor: "Tensor") -> list[Any]:
    """Return dtype, shape and a digest of the values of a tensor that is part of the program."""
    import torch

    form = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), name_of(type(tensor))]
    if tensor.is_meta or tensor.is_sparse or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return form
    values = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    content = memoryview(values.reshape(-1).view(torch.uint8).numpy()) if values.numel() else b""
    return [*form, hashlib.sha256(content).hexdigest()]
