"""Regions: repeated blocks of a module, each kind compiled once and used for every instance.

Before export: `find_regions` looks at the module alone, `capture_region_inputs` runs it to learn what its blocks are
called with, `confirm_regions` proves that blocks which differ in some attribute (a layer's number, an inactive drop
rate) compute the same nonetheless. Whatever cannot be a region is left out with the reason, and runs as it is.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.compile.program import Example
from aot.compile.region_inputs import Pattern, find_misfit, read_pattern, record_calls
from aot.compile.region_trace import trace_operations
from aot.runtime.fingerprint import fingerprint, is_idle
from aot.runtime.values import NEUTRAL_ATTRIBUTES, ValueReader

if TYPE_CHECKING:
    from torch.nn import Module

# Parts of a fingerprint that may differ between instances, when they turn out to compute the same.
_MAY_VARY = ("attributes", "object")


@dataclass(frozen=True, slots=True)
class Region:
    """One kind of block: `instances` are the dotted names of the modules it stands for, in the module's order.

    `varying` names attributes that differ between instances, relative to the block: what they compute must be compared.
    """

    name: str
    instances: tuple[str, ...]
    module_class: str
    varying: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Modules that repeat, and why they are no region."""

    instances: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    regions: tuple[Region, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class Captured:
    """What the first instance of each region was called with, once for each example of the whole program."""

    examples: Mapping[Region, tuple[Example, ...]]
    left_out: tuple[LeftOut, ...]


def find_regions(module: "Module") -> tuple[Region, ...]:
    """Return the outermost repeated blocks of `module`."""
    return survey_regions(module).regions


def survey_regions(module: "Module") -> Survey:
    """Return the outermost repeated blocks, and the repeated ones that cannot be regions with the reason.

    Blocks repeat when they have the same class and code, the same modules within, and the same names, shapes, strides,
    dtypes and ties of tensors. A block is a module with children, or with a forward and two parameters of its own.
    """
    named = dict(module.named_modules())
    uses: dict[int, int] = defaultdict(int)
    for _, one in module.named_modules(remove_duplicate=False):
        uses[id(one)] += 1
    groups: dict[Any, list[str]] = defaultdict(list)
    for name, one in named.items():
        if name and _is_block(one):
            groups[_shape_of(one)].append(name)
    keys: dict[str, Any] = {}
    for names in groups.values():
        if sum(uses[id(named[name])] for name in names) > 1:
            keys.update((name, _program_of(named[name])) for name in names)
    counts: dict[Any, int] = defaultdict(int)
    for name, key in keys.items():
        counts[key] += uses[id(named[name])]
    chosen = _choose_outermost(module, keys, counts)
    return _describe(chosen, named, uses)


def _choose_outermost(module: "Module", keys: Mapping[str, Any], counts: Mapping[Any, int]) -> dict[Any, list[str]]:
    chosen: dict[Any, list[str]] = defaultdict(list)
    seen: set[int] = set()

    def visit(name: str, one: "Module") -> None:
        if id(one) in seen:
            return
        seen.add(id(one))
        key = keys.get(name)
        if key is not None and counts[key] > 1:
            chosen[key].append(name)
            return
        for inner, child in one.named_children():
            visit(f"{name}.{inner}" if name else inner, child)

    visit("", module)
    return chosen


def _describe(chosen: Mapping[Any, list[str]], named: Mapping[str, "Module"], uses: Mapping[int, int]) -> Survey:
    regions: list[Region] = []
    left_out: list[LeftOut] = []
    for instances in chosen.values():
        first = named[instances[0]]
        if (reason := _objection(first)) is not None:
            left_out.append(LeftOut(tuple(instances), reason))
        elif sum(uses[id(named[name])] for name in instances) < 2:
            left_out.append(LeftOut(tuple(instances), "its like are parts of other regions"))
        else:
            varying = _varying([named[name] for name in instances])
            regions.append(Region(type(first).__qualname__, tuple(instances), type(first).__qualname__, varying))
    return Survey(_rename(regions), tuple(left_out))


def _is_block(module: "Module") -> bool:
    from torch.nn import Module

    if type(module).forward is Module.forward:  # a container
        return False
    children = len(module._modules)
    if type(module).__module__.partition(".")[0] == "torch":
        return children > 1
    return children > 0 or len(module._parameters) > 1


def _shape_of(module: "Module") -> Any:
    """A cheap key: what differs in it cannot be one program."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return (
        tuple((name, _kind_of(one)) for name, one in module.named_modules()),
        tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors),
    )


def _kind_of(module: "Module") -> type:
    """The module's class; torch derives a class of its own for every module that it parametrizes."""
    kind = type(module)
    return kind.__mro__[1] if "parametrizations" in module._modules else kind


def _program_of(module: "Module") -> Any:
    factors = fingerprint(module).factors
    return tuple((one.name, one.digest) for one in factors if one.name.partition(":")[0] not in _MAY_VARY)


def _objection(module: "Module") -> str | None:
    """Why a repeated block cannot be a region, None if it can."""
    import torch.nn.modules.module as everywhere
    from torch.jit import ScriptModule

    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return "a global forward hook runs on every module; compiled code would run it once"
    for name, one in module.named_modules():
        hooks = [*one._forward_hooks.values(), *one._forward_pre_hooks.values()]
        if any(not is_idle(hook) for hook in hooks):
            # Its own hooks would run twice, those within not at all.
            return f"a forward hook on {name or 'the block itself'} would not run as it does now"
        if "forward" in vars(one):
            return f"the forward of {name or 'the block itself'} was replaced on the instance"
        if isinstance(one, ScriptModule):
            return f"{name or 'the block itself'} is a ScriptModule"
    return None


def _varying(modules: Sequence["Module"]) -> tuple[str, ...]:
    """Return the attributes, relative to the block, that are not the same in all of `modules`."""
    read = [_read_attributes(module) for module in modules]
    names = dict.fromkeys(name for values in read for name in values)
    absent = object()
    first = read[0]
    return tuple(
        name for name in names if any(values.get(name, absent) != first.get(name, absent) for values in read[1:])
    )


def _read_attributes(module: "Module") -> dict[str, Any]:
    from torch import Tensor
    from torch.nn import Module

    furniture = vars(Module()).keys()
    reader = ValueReader({id(one): name or "self" for name, one in module.named_modules()})
    found: dict[str, Any] = {}
    for name, one in module.named_modules():
        for key, value in vars(one).items():
            if key not in furniture and key not in NEUTRAL_ATTRIBUTES and not isinstance(value, Tensor):
                found[f"{name}.{key}" if name else key] = reader.read(value)
    for label, content in reader.objects.items():
        found.update((f"{label}.{key}", value) for key, value in content.items())
    return found


def _rename(regions: Sequence[Region]) -> tuple[Region, ...]:
    """Number the regions of one class: Block, Block-2, Block-3."""
    counts: dict[str, int] = defaultdict(int)
    renamed = []
    for region in regions:
        short = region.module_class.rpartition(".")[2]
        counts[short] += 1
        number = counts[short]
        renamed.append(replace(region, name=short + (f"-{number}" if number > 1 else "")))
    return tuple(renamed)


def capture_region_inputs(
    module: "Module", examples: Sequence[Example], regions: Sequence[Region], *, tree: Path | None = None
) -> Captured:
    """Call `module` once with each of `examples`, and return what its regions were called with.

    Instances that are called with another structure, other constants or other forms of tensors become a region of
    their own. Left out are instances that no call reaches, or that are called in several ways within one example, or
    with something that is neither a tensor nor a constant.

    With examples at two points of a coverage, `name_sizes` tells which sizes within belong to which dimension.
    Raises SourceNotLoadable, with the frame in `tree`, when a call fails.
    """
    names = [name for region in regions for name in region.instances]
    recorded = [record_calls(module, example, names, tree=tree) for example in examples]
    split: list[tuple[Region, tuple[Example, ...]]] = []
    left_out: list[LeftOut] = []
    for region in regions:
        kinds: dict[tuple[Pattern, ...], list[str]] = defaultdict(list)
        misfits: dict[str, list[str]] = defaultdict(list)
        for name in region.instances:
            calls = [found.get(name, []) for found in recorded]
            reason = next((reason for one in calls if (reason := find_misfit(one)) is not None), None)
            if reason is None:
                kinds[tuple(read_pattern(one[0]) for one in calls)].append(name)
            else:
                misfits[reason].append(name)
        for instances in kinds.values():
            seen = tuple(found[instances[0]][0] for found in recorded)
            split.append((_narrowed(module, region, instances), seen))
        left_out += [LeftOut(tuple(instances), reason) for reason, instances in misfits.items()]
    renamed = _rename([region for region, _ in split])
    return Captured(dict(zip(renamed, (seen for _, seen in split), strict=True)), tuple(left_out))


def confirm_regions(module: "Module", captured: Captured) -> Captured:
    """Split regions with varying attributes so that all instances of one do the same operations on the same inputs.

    Each such instance is called twice on its region's first example.
    """
    confirmed: list[tuple[Region, tuple[Example, ...]]] = []
    for region, examples in captured.examples.items():
        confirmed += [(kind, examples) for kind in _split_by_trace(module, region, examples[0])]
    renamed = _rename([region for region, _ in confirmed])
    return Captured(dict(zip(renamed, (seen for _, seen in confirmed), strict=True)), captured.left_out)


def _split_by_trace(module: "Module", region: Region, example: Example) -> Iterator[Region]:
    if not region.varying:
        yield region
        return
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in region.instances:
        kinds[trace_operations(module.get_submodule(name), example)].append(name)
    for instances in kinds.values():
        yield _narrowed(module, region, instances)


def _narrowed(module: "Module", region: Region, instances: Sequence[str]) -> Region:
    varying = _varying([module.get_submodule(name) for name in instances])
    return replace(region, instances=tuple(instances), varying=varying)
