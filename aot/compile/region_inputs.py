"""What blocks inside a program are called with: recorded from one eager run, and compared.

Used by `aot.compile.regions`.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.compile.program import Example, call_failed

if TYPE_CHECKING:
    from torch.nn import Module

Pattern = tuple[Any, ...]
AUTO = "*"  # a size that varies, by no named dimension alone


def record_calls(
    module: "Module", example: Example, names: Sequence[str], *, tree: Path | None = None
) -> dict[str, list[Example]]:
    """Call `module` with `example`, without gradients, and return every call of the submodules `names` in order.

    Buffers that the call writes into get their values back. Raises SourceNotLoadable, with the frame in `tree`, when
    the call fails.
    """
    import copy

    import torch

    found: dict[str, list[Example]] = defaultdict(list)
    args, kwargs = copy.deepcopy((example.args, dict(example.kwargs)))
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    handles = [
        module.get_submodule(name).register_forward_pre_hook(_recorder(found[name]), with_kwargs=True) for name in names
    ]
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    except Exception as error:
        raise call_failed(error, tree) from error
    finally:
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in before and before[name].shape == buffer.shape:
                    buffer.copy_(before[name])
    return dict(found)


def _recorder(calls: list[Example]) -> Callable[..., None]:
    def record(module: "Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(_detached(Example(args, kwargs)))

    return record


def _detached(example: Example) -> Example:
    """Tensors as plain leaves: a block is exported from its inputs alone."""
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.detach(), (example.args, dict(example.kwargs)))
    return Example(args, kwargs)


def read_pattern(example: Example) -> Pattern:
    """Return the structure of a call with the form of each tensor and the value of each constant."""
    leaves, spec = _flatten(example)
    return (str(spec), *(_form(leaf) for leaf in leaves))


def find_misfit(calls: Sequence[Example]) -> str | None:
    """Return why a block with these calls in one run of the program cannot be a region; None if it can."""
    if not calls:
        return "not called by the example inputs"
    for example in calls:
        for leaf in _flatten(example)[0]:
            if not _is_carried(leaf):
                return f"called with a {type(leaf).__qualname__}, which compiled code cannot take"
    if len({read_pattern(example) for example in calls}) > 1:
        return "called in more than one way within one run"
    return None


def name_sizes(examples: Sequence[Example], sizes: Sequence[Mapping[str, int]]) -> tuple[Mapping[int, str], ...]:
    """Return, for each leaf of a block's call, which of its axes vary and by which dimension of the program.

    `examples` are the block's calls at points of the coverage, `sizes` the named dimensions at those points. A size
    that changes is named after the dimension it equals at every point, if there is exactly one; else AUTO (a flattened
    batch * seq, for example). A size that stays is fixed.
    """
    from torch import Tensor

    columns = zip(*(_flatten(example)[0] for example in examples), strict=True)
    named: list[Mapping[int, str]] = []
    for leaves in columns:
        axes: dict[int, str] = {}
        for axis in range(leaves[0].dim() if isinstance(leaves[0], Tensor) else 0):
            found = [int(leaf.shape[axis]) for leaf in leaves]
            if len(set(found)) > 1:
                equal = [name for name in sizes[0] if [at[name] for at in sizes] == found]
                axes[axis] = equal[0] if len(equal) == 1 else AUTO
        named.append(axes)
    return tuple(named)


def _flatten(example: Example) -> tuple[list[Any], Any]:
    from torch.utils._pytree import tree_flatten

    return tree_flatten((example.args, dict(example.kwargs)))


def _form(leaf: Any) -> Any:
    from torch import Tensor, strided

    if not isinstance(leaf, Tensor):
        return (type(leaf).__name__, repr(leaf) if _is_carried(leaf) else "")
    stride = tuple(leaf.stride()) if leaf.layout is strided else str(leaf.layout)
    return (str(leaf.dtype), tuple(leaf.shape), stride, leaf.device.type)


def _is_carried(leaf: Any) -> bool:
    from torch import Tensor
    from torch.nn import Parameter

    if isinstance(leaf, Tensor):
        return type(leaf) in (Tensor, Parameter)
    return leaf is None or isinstance(leaf, bool | int | float | str)
