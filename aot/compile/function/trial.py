"""One eager call of the program before it is compiled: what it returns, what it writes into, whether it draws numbers.

A package reads the latter two from its graph; here they are seen happening, on the example of each coverage.
"""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.compile.function.describe import flat_tensors
from aot.compile.program import Example

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass(frozen=True)
class Seen:
    """`inputs`: positions of flat inputs that were written into; `tensors`: names of parameters and buffers."""

    result: Any
    inputs: frozenset[int]
    tensors: frozenset[str]
    draws: bool


def try_call(module: "Module", example: Example) -> Seen:
    """Call `module` once without gradients; its tensors get their values back."""
    import torch

    args, kwargs = copy.deepcopy((example.args, dict(example.kwargs)))
    given = flat_tensors(Example(args, kwargs))
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    versions = [tensor._version for tensor in given], {name: tensor._version for name, tensor in own.items()}
    state = torch.random.get_rng_state()
    with torch.no_grad():
        result = module(*args, **kwargs)
        draws = not torch.equal(state, torch.random.get_rng_state())
        torch.random.set_rng_state(state)
        inputs = frozenset(index for index, tensor in enumerate(given) if tensor._version != versions[0][index])
        tensors = frozenset(name for name, tensor in own.items() if tensor._version != versions[1][name])
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    return Seen(result, inputs, tensors, draws)
