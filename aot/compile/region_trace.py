"""What a block does on one call, as a sequence of operations: to tell whether two instances are one program.

Used by `aot.compile.regions`. Instances that share code may still differ by an attribute; if it matters, their
sequences differ. Weights count by name and inputs by position, so equal sequences are equal computations. This takes
milliseconds, an export some tenths of a second for each instance.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aot.compile.program import Example

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


def trace_operations(module: "Module", example: Example) -> str:
    """Return a digest of every operation that a call of `module` with `example` runs, with operands and constants.

    Taken as the module runs eagerly and as it runs while torch says that it is being exported, since code may ask.
    An error is part of it: its text stands for the rest. Buffers get their values back.
    """
    digests = [_trace(module, example), ""]
    with _exporting():
        digests[1] = _trace(module, example)
    return ":".join(digests)


def _trace(module: "Module", example: Example) -> str:
    import copy

    import torch
    from torch.utils._pytree import tree_leaves

    args, kwargs = copy.deepcopy((example.args, dict(example.kwargs)))
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    recorder = _Recorder(module, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)])
    try:
        with torch.no_grad(), recorder.mode():
            result = module(*args, **kwargs)
        recorder.note("result", [recorder.describe(leaf) for leaf in tree_leaves(result)])
    except Exception as error:
        recorder.note("error", [type(error).__name__, str(error)])
        torch._dynamo.reset()  # a call that compiles itself fails under a mode, and is remembered as failing
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(before[name])
    return recorder.digest()


class _Recorder:
    """Names tensors by where they come from: a weight, an input, the operation that made them, or their content."""

    def __init__(self, module: "Module", inputs: "list[Tensor]") -> None:
        self._running = hashlib.sha256()
        self._count = 0
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # an identity is only one while its tensor lives
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            self._name(tensor, f"weight {name}")
        for index, tensor in enumerate(inputs):
            self._name(tensor, f"input {index}")

    def mode(self) -> Any:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_map

        recorder = self

        class Recording(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                operands = tree_map(recorder.describe, (args, kwargs))
                result = func(*args, **kwargs)
                recorder.note(str(func), operands)
                recorder.name_results(result)
                return result

        return Recording()

    def describe(self, value: Any) -> Any:
        from torch import Tensor

        if not isinstance(value, Tensor):
            return (type(value).__name__, str(value))
        known = self._names.get(id(value))
        return known if known is not None else self._name(value, f"constant {_content(value)}")

    def note(self, what: str, operands: Any) -> None:
        self._count += 1
        self._running.update(f"{what} {operands!r}\n".encode("utf-8", "surrogatepass"))

    def name_results(self, result: Any) -> None:
        from torch import Tensor
        from torch.utils._pytree import tree_leaves

        for index, leaf in enumerate(tree_leaves(result)):
            if isinstance(leaf, Tensor) and id(leaf) not in self._names:
                self._name(leaf, f"{self._count}.{index} {leaf.dtype} {tuple(leaf.shape)}")

    def digest(self) -> str:
        return self._running.hexdigest()

    def _name(self, tensor: "Tensor", name: str) -> str:
        self._names.setdefault(id(tensor), name)
        self._kept.append(tensor)
        return self._names[id(tensor)]


def _content(tensor: "Tensor") -> Any:
    from torch._C import _DisableTorchDispatch  # type: ignore[attr-defined]

    from aot.runtime.values import digest_tensor

    with _DisableTorchDispatch():
        return digest_tensor(tensor)


@contextmanager
def _exporting() -> Iterator[None]:
    """Make `torch.compiler.is_compiling()` and `is_exporting()` answer yes, as a non-strict export does."""
    import torch

    flags = [name for name in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(torch.compiler, name)]
    before = {name: getattr(torch.compiler, name) for name in flags}
    try:
        for name in flags:
            setattr(torch.compiler, name, True)
        yield
    finally:
        for name, value in before.items():
            setattr(torch.compiler, name, value)
