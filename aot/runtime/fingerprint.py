"""Fingerprints: what a program is apart from its weights, taken from the live module.

The compile child takes one of what it compiles, the pod one of what it is about to run: equal digests mean that the
artifact is this program's. It stands on the pod's start path, so it must stay within milliseconds, and reads no
weight. Parts, each a named factor so that a difference can be told:

    bytecode                 Python's minor version: code digests are comparable within one
    defaults                 torch's default dtype
    module:<where>           classes in the tree; numbers in dotted names become `*`, so 12 layers are one factor
    attributes:<where>       plain attributes of those modules
    object:<label>           a configuration or another object that attributes refer to
    tensors:<where>          names, dtypes, shapes and strides of parameters and buffers
    constants:<where>        values of tensors that are plain attributes: export lifts them into the program
    tied, training, hooks, global hooks, parametrizations
    code:<class>             methods and plain attributes of the classes, torch's own apart
    code:functions, code:globals   what they reach by name: functions, plain global values
    code:objects             objects that classes and closures hold

No part: values of parameters and buffers, devices, paths, file names, line numbers, comments.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aot.keys import fingerprint_of
from aot.runtime.code import (
    Reached,
    describe_class,
    describe_function,
    full_name,
    functions_of,
    name_of,
    own_classes,
    reach,
)
from aot.runtime.replaced import Replaced
from aot.runtime.values import NEUTRAL_ATTRIBUTES, ValueReader, digest_tensor
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.factor import Factor, Fingerprint

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_MOST_TEXT = 3000
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# Hooks that do nothing until a caller asks for intermediate results; transformers installs them at the first call.
_IDLE_HOOKS = frozenset(
    ("transformers.utils.output_capturing.install_output_capuring_hook.<locals>.output_capturing_hook",)
)


def fingerprint(module: "Module") -> Fingerprint:
    """Return the fingerprint of `module` as it is now."""
    return fingerprint_of(_Reading(module).factors())


def code_in_fingerprint(module: "Module") -> frozenset[int]:
    """Return the identities of the functions, code objects and classes whose content `module`'s fingerprint holds."""
    reading = _Reading(module)
    for _ in reading.factors():  # attributes first: what they refer to is reached as well
        pass
    classes, reached = reading.reached()
    functions = [*reached.followed.values()]
    functions += [one for kind in classes for value in vars(kind).values() for one in functions_of(value)]
    return frozenset(map(id, (*classes, *functions, *(one.__code__ for one in functions))))


def is_idle(hook: Any) -> bool:
    """True for a hook that a library installs on its own and that does nothing unless `is_capturing`."""
    return full_name(hook) in _IDLE_HOOKS


def is_capturing() -> bool:
    """True while idle hooks are at work: a caller of transformers has asked for hidden states or attentions."""
    library = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(library, "_active_collector", None)
    return collector is not None and collector.get() is not None


def parametrized(modules: "Mapping[str, Module]") -> list[str]:
    """Return the names of the tensors that are computed from others, among modules by name."""
    return sorted(
        f"{name}.{tensor}" if name else tensor
        for name, one in modules.items()
        if "parametrizations" in one._modules
        for tensor in one._modules["parametrizations"]._modules  # type: ignore[union-attr]
    )


class _Reading:
    """One walk over one module."""

    def __init__(self, module: "Module") -> None:
        from torch import Tensor
        from torch.nn import Module

        self._base = Module
        self._tensor = Tensor
        self._furniture = frozenset(vars(Module()))
        self._modules: dict[str, Module] = dict(module.named_modules())
        first = {id(one): name for name, one in self._modules.items()}
        named = module.named_modules(remove_duplicate=False)
        self._shared = {name: first[id(one)] for name, one in named if name not in self._modules}
        self._tensors = {name: list(_own_tensors(one)) for name, one in self._modules.items()}
        self._values = ValueReader(dict(self._names()))

    def _names(self) -> Iterator[tuple[int, str]]:
        for name, one in self._modules.items():
            yield id(one), f"{name or 'self'}"
            for inner, tensor, _ in self._tensors[name]:
                yield id(tensor), f"{name}.{inner}" if name else inner

    def factors(self) -> Iterable[Factor]:
        yield _factor("bytecode", f"{sys.version_info[0]}.{sys.version_info[1]}" + "-O" * bool(sys.flags.optimize))
        yield _factor("defaults", _default_dtype())
        yield from self._grouped("module", self._read_class, _count_classes)
        if self._shared:
            yield _factor("shared modules", self._shared)
        yield from self._grouped("attributes", self._read_attributes, _first_values)
        yield from self._grouped("tensors", self._read_tensors, _first_values)
        yield from self._grouped("constants", self._read_constants, _first_values)
        yield _factor("tied", self._read_tied())
        yield self._read_training()
        yield _factor("hooks", self._read_hooks())
        yield _factor("global hooks", self._describe_hooks(_global_hooks()))
        yield _factor("parametrizations", parametrized(self._modules))
        # After everything that may refer to one.
        yield from (_factor(f"object:{label}", content) for label, content in sorted(self._values.objects.items()))
        yield from self._read_code()

    def _grouped(
        self, part: str, read: "Callable[[str, Module], Any]", spell: Callable[[Mapping[str, Any]], Any]
    ) -> Iterator[Factor]:
        """One factor for all modules whose names differ by numbers only; modules that `read` as empty are left out."""
        groups: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, one in self._modules.items():
            if (found := read(name, one)) not in (None, {}, []):
                groups[_NUMBER.sub("*", name)][name] = found
        for where, found in sorted(groups.items()):
            yield _factor(f"{part}:{where}", found, text=spell(found))

    def _read_class(self, name: str, module: "Module") -> str:
        return name_of(type(module))

    def _read_attributes(self, name: str, module: "Module") -> dict[str, Any]:
        found = {}
        for attribute, value in vars(module).items():
            if attribute in self._furniture or attribute in NEUTRAL_ATTRIBUTES or isinstance(value, self._tensor):
                continue
            if attribute == "forward" and isinstance(value, Replaced):
                # Ours stands for what was there, which is nothing but the class's own in most modules.
                if value.earlier is None:
                    continue
                value = value.earlier
            found[attribute] = self._values.read(value)
        return found

    def _read_constants(self, name: str, module: "Module") -> dict[str, Any]:
        return {key: digest_tensor(value) for key, value in vars(module).items() if isinstance(value, self._tensor)}

    def _read_tensors(self, name: str, module: "Module") -> dict[str, Any]:
        return {inner: [kind, *_form(tensor)] for inner, tensor, kind in self._tensors[name]}

    def _read_tied(self) -> list[list[str]]:
        """Groups of names whose tensors start at the same memory."""
        groups: dict[Any, list[str]] = defaultdict(list)
        for name, found in self._tensors.items():
            for inner, tensor, _ in found:
                groups[_place_of(tensor)].append(f"{name}.{inner}" if name else inner)
        return sorted(sorted(names) for names in groups.values() if len(names) > 1)

    def _read_training(self) -> Factor:
        training = [name for name, one in self._modules.items() if one.training]
        mixed = 0 < len(training) < len(self._modules)
        mode = "train" if training else "eval"
        text = f"{mode}, but only in {', '.join(name or 'self' for name in training)}" if mixed else mode
        return _factor("training", training, text=text)

    def _read_hooks(self) -> dict[str, Any]:
        found = {}
        for name, one in self._modules.items():
            tables = {kind.strip("_"): self._describe_hooks(getattr(one, kind).values()) for kind in _FORWARD_HOOKS}
            if kinds := {kind: hooks for kind, hooks in tables.items() if hooks}:
                found[name or "self"] = kinds
        return found

    def _describe_hooks(self, hooks: Iterable[Any]) -> list[Any]:
        return [[name_of(hook), self._values.read(hook)] for hook in hooks if not is_idle(hook)]

    def reached(self) -> tuple[tuple[type, ...], Reached]:
        """Return the classes whose code is part of the fingerprint, and what they reach. After all else is read."""
        kinds = dict.fromkeys(type(one) for one in self._modules.values())
        tree = dict.fromkeys(one for kind in kinds for one in own_classes(kind, self._base))
        helpers = dict.fromkeys(one for kind in self._values.classes.values() for one in own_classes(kind, object))
        methods: dict[str, tuple[Any, ...]] = defaultdict(tuple)
        for kind in (*tree, *helpers):
            for name, value in vars(kind).items():
                methods[name] += functions_of(value)
        reached = reach((*methods["forward"], *methods["__call__"]), methods, described=self._values.functions)
        classes = {**tree, **helpers}
        for kind in reached.classes.values():
            classes |= dict.fromkeys(own_classes(kind, object))
        return tuple(classes), reached

    def _read_code(self) -> Iterator[Factor]:
        classes, reached = self.reached()
        # A reader without names: a class is the same whichever module of this program uses it.
        yield from _describe_code(classes, reached, ValueReader({}))


def _describe_code(classes: Sequence[type], reached: Reached, reader: ValueReader) -> Iterator[Factor]:
    """By qualified name; namesakes are told apart by content alone."""
    read = reader.read
    code: dict[str, list[Any]] = defaultdict(list)
    covered: set[int] = set()
    for kind in classes:
        code[f"code:{name_of(kind)}"].append(describe_class(kind, read))
        covered |= {id(function) for value in vars(kind).values() for function in functions_of(value)}
    functions: dict[str, list[Any]] = defaultdict(list)
    for identity, function in reached.functions.items():
        if identity not in covered:
            functions[name_of(function)].append(describe_function(function, read))
    values: dict[str, list[Any]] = defaultdict(list)
    for name, value in reached.values.items():
        values[name.rpartition(".")[2]].append(read(value))
    for name, found in sorted(code.items()):
        yield _factor(name, _merge(found))
    yield _factor("code:functions", {name: _merge(found) for name, found in functions.items()})
    yield _factor("code:globals", {name: _merge(found) for name, found in values.items()})
    if reader.objects:
        yield _factor("code:objects", reader.objects)


def _merge(namesakes: list[Any]) -> Any:
    distinct = sorted({repr(one): one for one in namesakes}.items())
    return distinct[0][1] if len(distinct) == 1 else [one for _, one in distinct]


def _factor(name: str, value: Any, *, text: Any = None) -> Factor:
    """A factor whose text is cut later than `Factor.of` does: differences are told from it."""
    content = encode(value)
    shown = content if text is None else text.encode() if isinstance(text, str) else encode(text)
    return Factor(name=name, digest=Digest.of(content), text=shown.decode()[:_MOST_TEXT])


def _count_classes(found: Mapping[str, str]) -> Any:
    counts: dict[str, int] = defaultdict(int)
    for kind in found.values():
        counts[kind] += 1
    return next(iter(counts)) if len(counts) == 1 == len(found) else counts


def _first_values(found: Mapping[str, Mapping[str, Any]]) -> Any:
    """What all modules have alike once; what differs as a list over the modules, in their order."""
    keys = dict.fromkeys(key for values in found.values() for key in values)
    columns = {key: [values.get(key) for values in found.values()] for key in keys}
    return {
        key: column[0] if all(one == column[0] for one in column) else {"varies": column}
        for key, column in columns.items()
    }


def _own_tensors(module: "Module") -> Iterator[tuple[str, "Tensor", str]]:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter, "parameter"
    for name, buffer in module._buffers.items():
        if buffer is not None:
            transient = name in getattr(module, "_non_persistent_buffers_set", ())
            yield name, buffer, "transient buffer" if transient else "buffer"


def _form(tensor: "Tensor") -> list[Any]:
    import torch

    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    form = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    form.append(list(tensor.stride()) if tensor.layout is torch.strided else str(tensor.layout))
    return form if plain else [*form, name_of(type(tensor))]


def _place_of(tensor: "Tensor") -> Any:
    try:
        return tensor.data_ptr() or id(tensor)
    except RuntimeError:  # no storage: fake, sparse
        return id(tensor)


def _default_dtype() -> str:
    import torch

    return str(torch.get_default_dtype()).removeprefix("torch.")


def _global_hooks() -> Iterator[Any]:
    import torch.nn.modules.module as everywhere

    yield from everywhere._global_forward_pre_hooks.values()
    yield from everywhere._global_forward_hooks.values()
