"""Canaries on the pod: an artifact must give, here, what eager gave at its proof, before it gets a real call.

Off by default, since it costs start time: a second container, synthetic weights for every parameter, one run. It finds
a device or a library that computes something else than the builder's. An instruction that this CPU does not have ends
the process, here as in a real call; that is the host guards' to prevent.

Files of a bundle: `inputs.safetensors` with `input.<n>` by flat input and `constant.<name>` for what no seed tells,
`outputs.safetensors` with `output.<n>` by the leaves of the result.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import AotError
from aot.runtime.constants import read_tensors
from aot.runtime.container import Container
from aot.runtime.synthetic import is_synthesized, synthetic_tensor
from aot.schema.artifact import Artifact, ConstantKind, ConstantMeta
from aot.schema.manifest import Canary
from aot.schema.spec import File

if TYPE_CHECKING:
    from torch import Tensor

INPUTS, OUTPUTS = "inputs.safetensors", "outputs.safetensors"
# Largest error, relative to the output's magnitude: a hundred times what the proof allows the RMSE beyond eager's.
LARGEST = {"float64": 1e-7, "complex128": 1e-7, "float32": 1e-3, "complex64": 1e-3}
LARGEST_OF_HALVES = 1e-1


def check_canary(
    canary: Canary,
    artifact: Artifact,
    *,
    open_container: Callable[[], Container],
    lifted: "Mapping[str, Tensor]",
    locate: Callable[[File], Path],
) -> str | None:
    """Run the canary of `artifact` in a container of its own; None, or why the artifact must not be used here.

    A frozen artifact runs on its own weights. What cannot be read or run is a reason as well.
    """
    try:
        files = {file.path.rpartition("/")[2]: locate(file) for file in canary.expected}
        if missing := {INPUTS, OUTPUTS} - files.keys():
            return f"canary: the bundle has no {min(missing)} for it"
        inputs, expected = read_tensors(files[INPUTS]), read_tensors(files[OUTPUTS])
        container = open_container()
        try:
            return _compare_all(_run(container, canary, artifact, inputs, lifted), expected, artifact)
        finally:
            container.close()
    except AotError as error:
        return f"canary: {error.message}"
    except KeyError as error:
        return f"canary: its inputs lack {error}"


def _run(
    container: Container,
    canary: Canary,
    artifact: Artifact,
    inputs: "Mapping[str, Tensor]",
    lifted: "Mapping[str, Tensor]",
) -> "tuple[Tensor | None, ...]":
    if artifact.facts.get("frozen") == "true":
        container.keep_own()
    else:
        container.bind(
            {
                meta.name: lifted[meta.name].to(container.device)
                if meta.kind is ConstantKind.CONSTANT
                else _constant(meta, canary, inputs, container.device)
                for meta in artifact.constants
            }
        )
    return container.run(
        [
            _laid_out(inputs[f"input.{number}"], meta.stride).to(container.device)
            for number, meta in enumerate(artifact.inputs)
        ]
    )


def _constant(meta: ConstantMeta, canary: Canary, inputs: "Mapping[str, Tensor]", device: str) -> "Tensor":
    if is_synthesized(meta):
        value = synthetic_tensor(meta.name, meta.shape, meta.dtype, seed=canary.weights_seed)
    else:
        value = inputs[f"constant.{meta.name}"]
    return _laid_out(value, meta.stride).to(device)


def _laid_out(tensor: "Tensor", strides: tuple[int | str, ...]) -> "Tensor":
    """Return the values with the recorded strides, which compiled code takes for granted; as they are where a symbol
    is among them."""
    import torch

    if not all(isinstance(stride, int) for stride in strides) or len(strides) != tensor.dim():
        return tensor
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)  # type: ignore[arg-type]


def _compare_all(
    found: "tuple[Tensor | None, ...]", expected: "Mapping[str, Tensor]", artifact: Artifact
) -> str | None:
    compared = 0
    for number, tensor in enumerate(found):
        wanted = expected.get(f"output.{number}")
        if wanted is None or tensor is None:
            continue
        if reason := difference(tensor.cpu(), wanted):
            return f"canary: output {number} is not what it was at the proof: {reason}"
        compared += 1
    return None if compared else "canary: it has no output to compare"


def difference(found: "Tensor", wanted: "Tensor") -> str | None:
    """Say how one output differs from another by more than rounding does; None where it does not. Both on the CPU."""
    import torch

    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return (
            f"wanted {wanted.dtype} of shape {tuple(wanted.shape)}, found {found.dtype} of shape {tuple(found.shape)}"
        )
    if not (wanted.is_floating_point() or wanted.is_complex()):
        wrong = int((found != wanted).sum())
        return f"{wrong} of {wanted.numel()} values differ" if wrong else None
    if wanted.numel() == 0:
        return None
    exact: Any = torch.complex128 if wanted.is_complex() else torch.float64
    one, other = found.to(exact), wanted.to(exact)
    limit = LARGEST.get(str(wanted.dtype).removeprefix("torch."), LARGEST_OF_HALVES)
    scale = float(other.abs().square().mean().sqrt())
    error = float((one - other).abs().max())
    # Not `error > …`: NaN is no agreement.
    if error <= limit * scale:
        return None
    return f"largest error {error:.3g}, the output's magnitude is {scale:.3g}"
