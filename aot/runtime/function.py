"""An artifact of the route `function`: what Dynamo compiled ahead of time, with its own guards, called like a package.

Loading imports Dynamo and Inductor and unpickles, which runs code: bytes arrive here verified, like a library that is
about to be mapped (`aot.runtime.pod` checks signature and digests before). No tracing and no compiler: what is not in
the artifact is refused.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import GuardFailed, LoadFailed, RunFailed
from aot.runtime.code_guard import CODE_CONTENT, content_holds
from aot.runtime.function_kernels import serve_kernels
from aot.runtime.slots import ConstantSlot
from aot.schema.artifact import Artifact, ConstantKind, LeafKind

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

FUNCTION_FILE, LIBRARIES = "function/compiled.bin", "lib/"
_MOST_TEXT = 600
_GLOBAL = re.compile(r"\bG\['([^']+)'\]")


class FunctionContainer:
    """One loaded function, bound to one live module; it has the interface of `Container`.

    Its weights are the module's own at every call. What guards of parameters would check is compared at binding, as
    for a package; the other guards are Dynamo's and checked at each call.
    """

    def __init__(self, function: Any, artifact: Artifact, module: "Module", device: str) -> None:
        self.device = device
        self.is_bound = False
        self.constants = tuple(
            ConstantSlot(
                name=meta.name, fqn=meta.name, kind=meta.kind, dtype=meta.dtype, storage_bytes=None, folded=False
            )
            for meta in artifact.constants
            if meta.kind is not ConstantKind.CONSTANT
        )
        self._function = function
        self._module = module
        self._follow = _follower(function, artifact, module)
        self._rebuild = _rebuilder(artifact)
        self._flatten = _flattener(artifact)

    def bind(self, tensors: "Mapping[str, Tensor]") -> None:
        """Note that the module's tensors were compared. They are not kept: a call takes the module itself."""
        self.is_bound = True

    def run(self, inputs: "Sequence[Tensor]") -> "Sequence[Tensor | None]":
        """Call the function. Raises GuardFailed with the guard that does not hold, RunFailed for what it raises."""
        function = self._function
        if function is None:
            raise RunFailed("the function is closed, so it cannot be called", hint="load it again")
        try:
            args, kwargs = self._rebuild(inputs)
            self._follow()
            if function.guard_check(self._module, *args, **kwargs):
                return self._flatten(function.fn(self._module, *args, **kwargs))
        except Exception as error:
            raise RunFailed(
                f"the compiled function failed: {type(error).__name__}: {str(error)[:_MOST_TEXT]}"
            ) from error
        raise GuardFailed(f"a guard of the program does not hold: {self._explain(function, args, kwargs)}")

    def close(self) -> None:
        self._function = None

    def _explain(self, function: Any, args: Any, kwargs: Any) -> str:
        """Return Dynamo's own words, without the line of source that it adds. Never raises."""
        try:
            state = function.prepare_f_locals(self._module, *args, **kwargs)
            found = function._artifacts.guard_manager.check_verbose(state)
            parts = getattr(found, "verbose_code_parts", None) or [str(found)]
            return "; ".join(part.partition("  #")[0].strip() for part in parts)[:_MOST_TEXT]
        except Exception:
            return "a guard does not hold"


def open_function(
    artifact: Artifact, module: "Module", *, device: str, locate: Callable[[str], Path]
) -> FunctionContainer:
    """Load the function of `artifact` for `module`; `locate` gives the place of one of its verified files by path.

    Raises LoadFailed: for another Python or torch, code that cannot be imported, or a kernel that is not in it.
    """
    import torch
    from torch._dynamo.aot_compile import AOTCompiledFunction

    paths = [file.path for file in artifact.files]
    if FUNCTION_FILE not in paths:
        raise LoadFailed("the artifact holds no compiled function", hint="build it again")
    libraries = {Path(path).stem: locate(path) for path in paths if path.startswith(LIBRARIES)}
    content = locate(FUNCTION_FILE).read_bytes()
    try:
        with serve_kernels(libraries), torch.no_grad():
            function = AOTCompiledFunction.deserialize(content, type(module).forward.__globals__)
    except LoadFailed:
        raise
    except Exception as error:
        raise _unloadable(error, libraries.values()) from error
    if changed := _changed_since_build(artifact, function.fn.__globals__):
        raise LoadFailed(f"a guard of the program does not hold: {changed}", hint="build it again with these globals")
    return FunctionContainer(function, artifact, module, device)


def _unloadable(error: Exception, libraries: Iterable[Path]) -> LoadFailed:
    from aot.cache.faults import NOEXEC_HINT, is_noexec

    text = f"the compiled function cannot be loaded: {type(error).__name__}: {str(error)[:_MOST_TEXT]}"
    if place := next((library.parent for library in libraries if is_noexec(library)), None):
        return LoadFailed(f"{text}; {place} is on a file system mounted noexec", hint=NOEXEC_HINT)
    return LoadFailed(text, hint="it needs the same Python and torch, and the program's modules under the same names")


class FunctionOpener:
    """Opens the artifacts of one live module: functions here, everything else as `inner` does."""

    def __init__(self, inner: Any, module: "Module", locate: Callable[[Artifact, str], Path]) -> None:
        self._inner = inner
        self._module = module
        self._locate = locate

    def open(self, artifact: Artifact, device: str, *, num_models: int | None = None) -> Any:
        if not any(file.path == FUNCTION_FILE for file in artifact.files):
            return self._inner.open(artifact, device, num_models=num_models)
        return open_function(artifact, self._module, device=device, locate=lambda path: self._locate(artifact, path))

    def space(self, device: str) -> Any:
        return self._inner.space(device)

    def lifted(self, artifact: Artifact) -> "Mapping[str, Tensor]":
        return self._inner.lifted(artifact)

    def trial(self, artifact: Artifact, device: str) -> str | None:
        return self._inner.trial(artifact, device)


def _changed_since_build(artifact: Artifact, own: Mapping[str, Any]) -> str:
    """Return the first condition on a global's value that does not hold now; "" for none.

    Torch compares with what it saved, but a module is saved by its name: what a guard finds there at loading would
    become the value to compare with. Conditions in words of Dynamo's own (`___check_type_id`) are left to it.
    """
    import torch

    names = {"G": own, "torch": torch, "inf": float("inf"), "nan": float("nan")}
    plain = {"__builtins__": {"len": len, "set": set, "list": list, "tuple": tuple, "type": type}, **names}
    for guard in artifact.program_guards:
        if not guard.source.startswith("G[") or not guard.condition:
            continue
        if guard.kind == CODE_CONTENT:
            if not content_holds(guard, plain):
                return guard.condition
            continue
        try:
            holds = eval(guard.condition, plain)  # as trusted as the pickle beside it
        except (NameError, SyntaxError):
            continue
        except Exception:
            holds = False
        if not holds:
            return guard.condition
    return ""


def _follower(function: Any, artifact: Artifact, module: "Module") -> Callable[[], None]:
    """Return what gives the function the globals as they are now: torch has copied the dictionary at loading.

    Only those that guards and the function's own bytecode read.
    """
    live, own = type(module).forward.__globals__, function.fn.__globals__
    texts = [text for guard in artifact.program_guards for text in (guard.source, guard.condition)]
    named = {name for text in texts for name in _GLOBAL.findall(text)} | set(function.fn.__code__.co_names)
    names = tuple(sorted(name for name in named if name in live))
    absent = object()

    def follow() -> None:
        for name in names:
            value = live.get(name, absent)
            if value is absent:
                own.pop(name, None)
            elif own.get(name, absent) is not value:
                own[name] = value

    return follow


def _rebuilder(artifact: Artifact) -> Callable[[Sequence[Any]], tuple[Any, Any]]:
    """Return what makes the call's args and kwargs of its flat tensors."""
    from torch.utils._pytree import tree_unflatten, treespec_loads

    assert artifact.call is not None
    tree = treespec_loads(artifact.call.in_spec)
    fixed = [leaf.constant if leaf.kind is LeafKind.CONSTANT else None for leaf in artifact.call.inputs]
    places = [index for index, leaf in enumerate(artifact.call.inputs) if leaf.kind is LeafKind.TENSOR]

    def rebuild(inputs: Sequence[Any]) -> tuple[Any, Any]:
        leaves = list(fixed)
        for place, tensor in zip(places, inputs, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, tree)
        return args, kwargs

    return rebuild


def _flattener(artifact: Artifact) -> Callable[[Any], Sequence[Any]]:
    """Return what makes the result's leaves, numbers as 0-dim tensors, as a package returns them."""
    from torch import tensor
    from torch.utils._pytree import tree_leaves

    assert artifact.call is not None
    numbers = tuple(index for index, leaf in enumerate(artifact.call.outputs) if leaf.kind is LeafKind.INTEGER)

    def flatten(result: Any) -> Sequence[Any]:
        leaves = tree_leaves(result)
        for index in numbers:
            leaves[index] = tensor(leaves[index])
        return leaves

    return flatten
