"""Every constant is accounted for (design.md, section 4): what an artifact asks for, and whose it is.

After compile, before an artifact is recorded. A tensor that belongs to the builder's own weights (folded, packed)
would silently run every fine-tune on them, so it fails the build by name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.export import Exported
from aot.errors import BackendFailed
from aot.schema.artifact import ConstantKind, ConstantMeta

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

CONSTANTS_FILE = "constants/constants.safetensors"


@dataclass(frozen=True)
class Wanted:
    """One tensor input of the exported program, and its value at build time.

    `used`: the program reads or writes it. Batch norm in eval mode never looks at its counter.
    """

    meta: ConstantMeta
    value: "Tensor"
    used: bool = True


def wanted_constants(exported: Exported, module: "Module") -> dict[str, Wanted]:
    """Return every parameter, buffer and lifted constant of the program by name."""
    from torch.export.graph_signature import InputKind

    program = exported.program
    tied = tied_names(module)
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    wanted: dict[str, Wanted] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER) or spec.target is None:
            continue
        name = spec.target
        value = program.state_dict[name] if name in program.state_dict else program.constants[name]
        kind = ConstantKind.PARAMETER if spec.kind is InputKind.PARAMETER else ConstantKind.BUFFER
        meta = describe_tensor(
            name,
            value,
            ConstantKind.CONSTANT if name in exported.lifted else kind,
            mutated=name in exported.mutated,
            aliases=tied.get(name, ()),
        )
        wanted[name] = Wanted(meta, value, used=spec.arg.name in used)
    return wanted


def describe_tensor(
    name: str, tensor: "Tensor", kind: ConstantKind, *, mutated: bool = False, aliases: tuple[str, ...] = ()
) -> ConstantMeta:
    return ConstantMeta(
        name=name,
        kind=kind,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        device=tensor.device.type,
        mutated=mutated,
        aliases=aliases,
    )


def describe_parameters(module: "Module") -> tuple[ConstantMeta, ...]:
    """Return all parameters and buffers of `module`, tied ones under each of their names."""
    tied = tied_names(module)
    kinds = (
        (ConstantKind.PARAMETER, module.named_parameters(remove_duplicate=False)),
        (ConstantKind.BUFFER, module.named_buffers(remove_duplicate=False)),
    )
    return tuple(
        describe_tensor(name, tensor, kind, aliases=tied.get(name, ()))
        for kind, tensors in kinds
        for name, tensor in tensors
    )


def tied_names(module: "Module") -> dict[str, tuple[str, ...]]:
    """Return, for each parameter or buffer that has several names, its other ones."""
    names: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for tensors in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in tensors:
            if tensor.numel():
                place = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
                names[place].append(name)
    return {
        name: tuple(other for other in group if other != name)
        for group in names.values()
        if len(group) > 1
        for name in group
    }


def account_for(asked: Iterable[str], wanted: Mapping[str, Wanted], *, region: str) -> tuple[ConstantMeta, ...]:
    """Return what the artifact asks for, in its order.

    Raises BackendFailed naming each tensor that belongs to nobody, and each that was baked into the code.
    """
    names = tuple(asked)
    derived = [name for name in names if name not in wanted]
    missing = [name for name in wanted if name not in names and wanted[name].used]
    baked = [name for name in missing if not _tied_to_one_of(wanted[name].meta, names)]
    if derived or baked:
        complaints = [f"asks for {', '.join(derived)}, made from the builder's weights"] if derived else []
        complaints += [f"has {', '.join(baked)} baked into its code"] if baked else []
        raise BackendFailed(
            f"the artifact of {region or 'the program'} {' and '.join(complaints)}: it would run every other "
            "checkpoint on the weights of this one",
            hint="set freeze = true for a bundle of this checkpoint alone, or drop the option that folds weights",
            details={"backend": "inductor", "region": region, "derived": derived, "baked": baked, "log": ""},
        )
    return tuple(wanted[name].meta for name in names)


def _tied_to_one_of(meta: ConstantMeta, names: Iterable[str]) -> bool:
    return not set(meta.aliases).isdisjoint(names)


def save_lifted(metas: Iterable[ConstantMeta], wanted: Mapping[str, Wanted], into: Path) -> tuple[str, ...]:
    """Write the values of lifted constants below `into`; return the path of the file, `()` when there are none.

    A safetensors file, whose keys are the constants' names: readable without running anything.
    """
    from safetensors.torch import save_file

    lifted = {
        meta.name: wanted[meta.name].value.detach().cpu().contiguous().clone()
        for meta in sorted(metas, key=lambda meta: meta.name)
        if meta.kind is ConstantKind.CONSTANT
    }
    if not lifted:
        return ()
    target = into / CONSTANTS_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file(lifted, str(target))
    return (CONSTANTS_FILE,)
