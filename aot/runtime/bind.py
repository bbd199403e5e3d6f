"""Opens the artifacts of one region and binds them to one instance of it: the core of `load`, and of every rebind."""

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from aot.runtime.binding import plan_binding
from aot.runtime.calling import bind_call
from aot.runtime.container import Container
from aot.runtime.guards import compile_check
from aot.runtime.unit import Bound, Form, Plan, Variant
from aot.runtime.weights import WEIGHTS_FACT, FrozenPlan, digest_weights
from aot.schema.artifact import Artifact
from aot.select import describe_coverage

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class Opener(Protocol):
    """Opens artifacts from verified files."""

    def open(self, artifact: Artifact, device: str) -> Container:
        """Map the artifact's library for `device`. Raises LoadFailed."""

    def lifted(self, artifact: Artifact) -> "Mapping[str, Tensor]":
        """The values of its lifted constants, by name. Raises MalformedDocument."""


def bind_artifacts(artifacts: Sequence[Artifact], module: "Module", opener: Opener) -> Bound:
    """Return what a unit runs on: one variant for each artifact that fits `module` as it is now.

    Where none fits, `Bound.against` has every reason. Raises LoadFailed and BindingFailed for artifacts that cannot
    be opened or whose call is not that of the module.
    """
    device = device_of(artifacts[0], module)
    if reasons := _other_checkpoint(artifacts, module):
        return Bound((), (FrozenPlan(module),), (), reasons)
    forms: dict[str, Form] = {}
    plans: list[Plan] = []
    tensors: dict[int, Tensor] = {}
    against: list[str] = []
    for artifact in artifacts:
        container = opener.open(artifact, device)
        plan = _plan(artifact, container, module, opener, device)
        if isinstance(plan, tuple):
            against += plan
            continue
        plans.append(plan)
        tensors |= {id(tensor): tensor for tensor in plan.tensors.values()}
        _add_variant(forms, artifact, container, module, device)
    return Bound(tuple(forms.values()), tuple(plans), tuple(tensors.values()), () if forms else tuple(against))


def device_of(artifact: Artifact, module: "Module") -> str:
    """Return where the artifact is to run: the CPU, or the card that holds the module."""
    family = "cuda" if artifact.capability.family == "rocm" else artifact.capability.family
    if family == "cpu":
        return "cpu"
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type == family:
            return str(tensor.device)
    import torch

    return f"{family}:{torch.cuda.current_device()}"


def _plan(
    artifact: Artifact, container: Container, module: "Module", opener: Opener, device: str
) -> Plan | tuple[str, ...]:
    if _is_frozen(artifact):
        container.keep_own()
        return FrozenPlan(module)
    lifted = opener.lifted(artifact)
    plan = plan_binding(container.constants, module, constants=artifact.constants, lifted=lifted, device=device)
    if not isinstance(plan, tuple):
        container.bind(plan.tensors)
    return plan


def _add_variant(
    forms: dict[str, Form], artifact: Artifact, container: Container, module: "Module", device: str
) -> None:
    """Put the artifact among those of its calling convention, which most share."""
    assert artifact.call is not None
    variant = Variant(
        coverage=describe_coverage(artifact),
        check=compile_check(artifact.input_guards, artifact.inputs, device=device),
        container=container,
        winner=artifact.winner,
        writes=any(constant.mutated for constant in artifact.constants),
    )
    key = repr(artifact.call)
    if key not in forms:
        forms[key] = Form(bind_call(artifact.call, _signature_of(module)), ())
    forms[key] = Form(forms[key].call, (*forms[key].variants, variant))


def _signature_of(module: "Module") -> inspect.Signature:
    # Of the class: the instance's own forward may be ours.
    signature = inspect.signature(type(module).forward)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _is_frozen(artifact: Artifact) -> bool:
    return artifact.facts.get("frozen") == "true"


def _other_checkpoint(artifacts: Sequence[Artifact], module: "Module") -> tuple[str, ...]:
    """Say whether frozen artifacts hold other weights than the module; empty when none is frozen or all agree."""
    wanted = {artifact.facts.get(WEIGHTS_FACT, "not recorded") for artifact in artifacts if _is_frozen(artifact)}
    if not wanted:
        return ()
    found = digest_weights(module)
    if wanted == {found}:
        return ()
    return (f"the artifact is frozen with other weights ({', '.join(wanted)}) than the module's ({found})",)
