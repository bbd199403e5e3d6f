"""Canaries: small inputs, synthetic weights and the outputs that belong to them, for a first check on the pod.

A pod runs them before the first real call: this is what finds a CPU that is not what it says. Weights come from a seed
(`aot.runtime.synthetic`); inputs travel, because what an integer means (a token, an index) no seed can tell, and so do
constants that are no floats. `canary/<artifact>/inputs.safetensors` holds `input.<n>` by the artifact's flat inputs and
`constant.<name>`, `outputs.safetensors` holds `output.<n>` by the leaves of its result: eager's in float64, rounded.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.bundle import StoredBundle
from aot.compile.program import Program
from aot.qualify.canary_files import INPUTS_FILE, OUTPUTS_FILE
from aot.qualify.inputs import tensors_in
from aot.qualify.job import CANARY, CANARY_DIRECTORY, ProofJob
from aot.qualify.loading import loaded
from aot.qualify.numerics import Numerics
from aot.qualify.outputs import run_traced, state_of
from aot.qualify.reference import Reference
from aot.qualify.subject import Call, signature_of
from aot.qualify.weights import kept
from aot.runtime.calling import bind_call
from aot.runtime.synthetic import is_synthesized, synthetic_tensor
from aot.schema.artifact import Artifact, ConstantKind, ConstantMeta
from aot.schema.manifest import Canary
from aot.schema.recipe import Route

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

MOST_BYTES = 4 << 20
WEIGHTS_SEED = 1


def make_canaries(numerics: Numerics, job: ProofJob, program: Program, bundle: StoredBundle) -> tuple[Canary, ...]:
    """Write a canary for every artifact that is small enough, and a case that proves them here.

    Overwrites the module's weights with synthetic ones, except in a frozen build, which has its own inside.
    """
    if not job.frozen:
        put_all_synthetic(program.module, bundle.manifest.artifacts, seed=WEIGHTS_SEED)
    reference = Reference(program.module, memory_bytes=job.memory_bytes)
    shared = names_in_one_memory(program.module)
    found: list[Canary] = []
    for subject in numerics.subjects:
        if subject.group.first.route is Route.FUNCTION:
            continue  # it runs on a live module alone, and a pod has no other weights to put into that
        point = subject.points()[0]
        seed = job.seed + 100
        call = subject.call_at(point, seed=seed)
        for index, artifact in zip(subject.group.indices, subject.group.artifacts, strict=True):
            part_call = call if subject.group.whole else seen_by(program.module, artifact.instances[0], call)
            directory = Path(job.out) / CANARY_DIRECTORY / str(index)
            known = {"shared": shared, "memory_bytes": job.memory_bytes}
            if part_call is None or not write_canary(program.module, artifact, part_call, into=directory, **known):
                continue
            found.append(Canary(artifact=index, seed=seed, point=point, weights_seed=0 if job.frozen else WEIGHTS_SEED))
        with loaded(bundle, subject.group, program.module, views=Path(job.out) / "views") as model:
            weights = str(job.base) if job.frozen else "seeded"
            numerics.run_case(
                subject, model, (call,), point=point, weights=weights, variants=(CANARY,), reference=reference
            )
    return tuple(found)


def put_all_synthetic(module: "Module", artifacts: Sequence[Artifact], *, seed: int) -> None:
    """Do so for every instance of every artifact; what several coverages share is drawn once."""
    done: set[tuple[str, tuple[ConstantMeta, ...]]] = set()
    for artifact in artifacts:
        for instance in artifact.instances:
            if (instance, artifact.constants) not in done:
                done.add((instance, artifact.constants))
                put_synthetic(module.get_submodule(instance), artifact, seed=seed)


def put_synthetic(module: "Module", artifact: Artifact, *, seed: int) -> None:
    """Write synthetic values into every float parameter and buffer that the artifact asks for."""
    import torch

    tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for meta in artifact.constants:
            if is_synthesized(meta):
                tensors[meta.name].copy_(synthetic_tensor(meta.name, meta.shape, meta.dtype, seed=seed))


def names_in_one_memory(module: "Module") -> frozenset[str]:
    """The parameters and buffers, by every name they have, in whose memory another name's lies as well.

    Asked once for all artifacts: a module of hundreds of regions has thousands of names.
    """
    whole = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    places = [(name, tensor.untyped_storage().data_ptr()) for name, tensor in whole]
    names = Counter(place for _, place in places)
    return frozenset(name for name, place in places if names[place] > 1)


def hold_their_own(module: "Module", artifact: Artifact, *, seed: int, shared: frozenset[str]) -> bool:
    """Whether every float that the artifact asks for has its own synthetic value, since none lies in another's memory.

    A buffer that is a weight's transpose does, and a weight that two artifacts know by different names: of such two the
    module holds the value of the last, and a pod, which has no module yet, gives each its own. `shared`: the names that
    lie in one memory (`names_in_one_memory`).
    """
    import torch

    if artifact.facts.get("frozen") == "true":
        return True
    instance = artifact.instances[0]
    prefix = f"{instance}." if instance else ""
    asked = [meta for meta in artifact.constants if is_synthesized(meta) and prefix + meta.name in shared]
    if not asked:
        return True
    part = module.get_submodule(instance)
    tensors = dict(part.named_parameters(remove_duplicate=False)) | dict(part.named_buffers(remove_duplicate=False))
    return all(
        torch.equal(tensors[meta.name].cpu(), synthetic_tensor(meta.name, meta.shape, meta.dtype, seed=seed))
        for meta in asked
    )


def seen_by(module: "Module", instance: str, call: Call) -> Call | None:
    """Return the arguments that `instance` gets in a call of the whole module; None where it is not called."""
    import torch

    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(part: "Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args, kwargs))

    hook = module.get_submodule(instance).register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            module(*call.args, **call.kwargs)
    finally:
        hook.remove()
    if not seen:
        return None
    args, kwargs = copy.deepcopy(seen[0])
    return Call(args, kwargs, tuple(tensors_in((args, kwargs))))


def write_canary(
    module: "Module", artifact: Artifact, call: Call, *, into: Path, shared: frozenset[str], memory_bytes: int
) -> bool:
    """Write both files; say whether there is one: it is small enough, its outputs are finite, its weights apart."""
    from safetensors.torch import save_file

    part = module.get_submodule(artifact.instances[0])
    if artifact.call is None or not hold_their_own(module, artifact, seed=WEIGHTS_SEED, shared=shared):
        return False
    flat = bind_call(artifact.call, signature_of(part)).flatten(call.args, call.kwargs)
    if isinstance(flat, str):
        return False
    inputs = {f"input.{number}": tensor.detach().cpu().contiguous().clone() for number, tensor in enumerate(flat)}
    inputs |= _plain_constants(part, artifact)
    outputs = _expected(part, call, memory_bytes)
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs.values(), *outputs.values()))
    if size > MOST_BYTES or not outputs or not all(_is_finite(tensor) for tensor in outputs.values()):
        return False
    into.mkdir(parents=True, exist_ok=True)
    save_file(inputs, str(into / INPUTS_FILE))
    save_file(outputs, str(into / OUTPUTS_FILE))
    return True


def _plain_constants(part: "Module", artifact: Artifact) -> Mapping[str, "Tensor"]:
    """Return the module's integers and booleans that the artifact asks for; lifted constants have a file already."""
    tensors = dict(part.named_parameters(remove_duplicate=False)) | dict(part.named_buffers(remove_duplicate=False))
    return {
        f"constant.{meta.name}": tensors[meta.name].detach().cpu().contiguous().clone()
        for meta in artifact.constants
        if meta.kind is not ConstantKind.CONSTANT and not is_synthesized(meta)
    }


def _expected(part: "Module", call: Call, memory_bytes: int) -> dict[str, "Tensor"]:
    """Return eager's outputs, computed in float64 where the module can, in the types that eager gives."""
    state = state_of(part)
    with kept(tuple(state.values())):
        eager = run_traced(part, call, state, most_elements=MOST_BYTES)
    _, (wide,) = Reference(part, memory_bytes=memory_bytes, most_elements=MOST_BYTES).run((call,), (eager,))
    return {
        name.replace(" ", "."): wide.leaves[name].to(leaf.dtype) if leaf.is_floating_point() else leaf
        for name, leaf in eager.leaves.items()
        if name.startswith("output")
    }


def _is_finite(tensor: "Tensor") -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())
