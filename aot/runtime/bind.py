"""Opens the artifacts of one region and binds them to one instance of it: the core of `load`, and of every rebind."""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from aot.errors import AotError
from aot.runtime.argument_names import speaker
from aot.runtime.binding import plan_binding
from aot.runtime.calling import bind_call
from aot.runtime.container import Container
from aot.runtime.fingerprint import fingerprint
from aot.runtime.graphs import Graphed, GraphSpace
from aot.runtime.guards import compile_check
from aot.runtime.liveness import explain_conduct, explain_difference, is_of_program
from aot.runtime.unit import Bound, Form, Variant, never
from aot.runtime.watch import Conduct, Tree, Watch
from aot.runtime.weights import WEIGHTS_FACT, digest_weights
from aot.runtime.winner import asks_for_graphs, choose_of
from aot.schema.artifact import Artifact
from aot.schema.factor import Fingerprint
from aot.select import describe_coverage

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


log = logging.getLogger("aot")


class Opener(Protocol):
    """Opens artifacts from verified files."""

    def open(self, artifact: Artifact, device: str, *, num_models: int | None = None) -> Container:
        """Map the artifact's library for `device`; `num_models` as in `Container.open`. Raises LoadFailed."""

    def space(self, device: str) -> GraphSpace | None:
        """What the model's CUDA graphs on `device` share; None where none are wanted or there can be none."""

    def lifted(self, artifact: Artifact) -> "Mapping[str, Tensor]":
        """The values of its lifted constants, by name. Raises MalformedDocument."""

    def trial(self, artifact: Artifact, device: str) -> str | None:
        """Say why the artifact does not give what it gave at its proof; None when it does, or is not tried."""


class Likeness:
    """Whether a live module is the program that was compiled, by fingerprint; shared by all units of one bundle."""

    def __init__(self, recorded: Fingerprint, module: "Module") -> None:
        self._recorded = recorded
        self._module = module
        self._lock = Lock()
        self._watch: Watch | None = None
        self._found: tuple[str, ...] = ()

    def differences(self) -> tuple[str, ...]:
        """Say how the module differs now; empty when it is that program. Milliseconds, where something has changed."""
        with self._lock:
            if self._watch is None or not self._watch.is_current():
                watch = Watch(self._module, anything=True)
                self._found = self._compare()
                self._watch = watch
            return self._found

    def _compare(self) -> tuple[str, ...]:
        if not self._recorded.factors:
            # An exported program of 0.1.0: names, shapes and strides are compared at binding.
            return explain_conduct(self._module)
        if is_of_program(self._recorded):
            from aot.runtime.program import explain_program

            return (*explain_conduct(self._module), *explain_program(self._recorded, self._module))
        live = fingerprint(self._module)
        return () if live.digest == self._recorded.digest else explain_difference(self._recorded, live)

    def is_current(self) -> bool:
        """Say whether `differences` would say what it said last."""
        watch = self._watch
        return watch is None or watch.is_current()


class Binder:
    """Binds the artifacts of one region to one instance of it; called again whenever the instance has changed."""

    def __init__(self, artifacts: Sequence[Artifact], module: "Module", opener: Opener, likeness: Likeness) -> None:
        self._artifacts = tuple(artifacts)
        self._module = module
        self._opener = opener
        self._likeness = likeness
        self._containers: dict[tuple[int, str], Container] = {}
        self._singles: dict[tuple[int, str], Container] = {}  # of one model, for graphs
        # What the fingerprint was equal for. It is not taken again when tensors alone are others: those are all
        # compared at binding, and modules do change attributes of their own when they run.
        self._tree: Tree | None = None
        self._conduct: Conduct | None = None

    def __call__(self) -> Bound:
        """Return what the unit runs on: one variant for each artifact that fits the module as it is now.

        Where none fits, `Bound.reasons` has every reason.
        """
        # Before anything is read: what changes meanwhile is found at the next call.
        watch = Watch(self._module, anything=True)
        try:
            if reasons := self._unlike():
                return Bound(is_current=_both(watch.is_current, self._likeness.is_current), reasons=reasons)
            return self._bind(watch)
        except AotError as error:
            return Bound(is_current=watch.is_current, reasons=(error.as_line,))

    def _unlike(self) -> tuple[str, ...]:
        if self._tree is not None and self._tree.is_current():
            return ()
        self._tree, tree, conduct = None, Tree(self._module), Conduct(self._module)
        if reasons := self._likeness.differences():
            return reasons
        if not tree.is_current() or conduct.change():
            return ("the module was changed while it was examined",)
        self._tree, self._conduct = tree, conduct
        return ()

    def _bind(self, watch: Watch) -> Bound:
        artifacts, module = self._artifacts, self._module
        fitting = Watch(module, writes=any(map(_is_frozen, artifacts)))
        if other := _other_checkpoint(artifacts, module):
            # A write may make it the right one.
            return Bound(is_current=_both(watch.is_current, fitting.is_current), reasons=other)
        device = device_of(artifacts[0], module)
        forms: dict[str, Form] = {}
        tensors: dict[int, Tensor] = {}
        reasons: list[str] = []
        for index, artifact in enumerate(artifacts):
            try:
                found = self._bind_one(index, artifact, device)
            except AotError as error:
                found = (error.as_line,)
            if isinstance(found, tuple):
                reasons += found
                continue
            tensors |= {id(tensor): tensor for tensor in found.values()}
            container = self._containers[index, device]
            graphs = self._find_graphs(index, artifact, device, container, found)
            _add_variant(forms, artifact, container, module, device=device, graphs=graphs)
        assert self._conduct is not None
        return Bound(
            forms=tuple(forms.values()),
            is_current=(fitting if forms else watch).is_current,
            change=self._conduct.change,
            is_settled=fitting.with_conduct(self._conduct) if forms else never,
            tensors=tuple(tensors.values()),
            reasons=tuple(reasons),
        )

    def _bind_one(self, index: int, artifact: Artifact, device: str) -> "Mapping[str, Tensor] | tuple[str, ...]":
        """Bind one artifact and return its tensors, or why it does not fit.

        A container stays open over a rebinding: on a GPU its kernels would have to be loaded again. One that does not
        fit is let go of, and with it the earlier weights; a call that still runs in it keeps it until it returns.
        """
        container = self._containers.pop((index, device), None)
        if container is None:
            if reason := self._opener.trial(artifact, device):
                return (reason,)
            container = self._opener.open(artifact, device)
        if _is_frozen(artifact):
            if not container.is_bound:
                container.keep_own()
            self._containers[index, device] = container
            return {}
        plan = plan_binding(
            container.constants,
            self._module,
            constants=artifact.constants,
            lifted=self._opener.lifted(artifact),
            device=device,
        )
        if isinstance(plan, tuple):
            return plan
        container.bind(plan.tensors)
        self._containers[index, device] = container
        return plan.tensors

    def _find_graphs(
        self, index: int, artifact: Artifact, device: str, plain: Container, tensors: "Mapping[str, Tensor]"
    ) -> Graphed | None:
        """As `_graphed`; what fails there costs the graphs, and not the artifact."""
        try:
            return self._graphed(index, artifact, device, plain, tensors)
        except (AotError, RuntimeError) as error:
            log.warning("no CUDA graphs of [%s]: %s", describe_coverage(artifact), error)
            return None

    def _graphed(
        self, index: int, artifact: Artifact, device: str, plain: Container, tensors: "Mapping[str, Tensor]"
    ) -> Graphed | None:
        """Return what replays the artifact's calls, none captured yet: a graph holds the addresses of one binding."""
        if not asks_for_graphs(artifact) or not _may_be_graphed(artifact, tensors.values()):
            return None
        if (space := self._opener.space(device)) is None:
            return None
        single = self._singles.pop((index, device), None) or self._opener.open(artifact, device, num_models=1)
        if not _is_frozen(artifact):
            single.bind({slot.fqn: tensors[slot.fqn] for slot in single.constants if not slot.folded})
        elif not single.is_bound:
            single.keep_own()
        self._singles[index, device] = single
        return Graphed(single, plain, space, tensors)


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


def _add_variant(
    forms: dict[str, Form],
    artifact: Artifact,
    container: Container,
    module: "Module",
    *,
    device: str,
    graphs: Graphed | None,
) -> None:
    """Put the artifact among those of its calling convention, which most share."""
    assert artifact.call is not None
    signature = _signature_of(module)
    variant = Variant(
        coverage=describe_coverage(artifact),
        check=compile_check(artifact.input_guards, artifact.inputs, device=device, speak=speaker(signature)),
        container=container,
        choose=choose_of(artifact),
        writes=any(constant.mutated for constant in artifact.constants),
        graphs=graphs,
    )
    key = repr(artifact.call)
    if key not in forms:
        call = bind_call(artifact.call, signature)
        forms[key] = Form(call, (), call.plain_length)
    forms[key] = Form(forms[key].call, (*forms[key].variants, variant), forms[key].plain)


def _signature_of(module: "Module") -> inspect.Signature:
    # Of the class: the instance's own forward may be ours.
    signature = inspect.signature(type(module).forward)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _may_be_graphed(artifact: Artifact, tensors: "Iterable[Tensor]") -> bool:
    """Whether a replay sees what a call would.

    An input that is written into would have to be copied back, and the caller may hold views of it. What lies on the
    host is read when the graph is captured, and never again.
    """
    guards = artifact.input_guards
    if any(guard.kind == "apart" or (guard.kind == "device" and guard.value != "cuda") for guard in guards):
        return False
    return all(tensor.device.type == "cuda" for tensor in tensors)


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


def _both(one: Callable[[], bool], other: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: one() and other()
