"""The host guards of a compiled package: what its bytes say, what the profile pins, and what the program has set."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aot.compile.options import captures_graphs, cpu_capability
from aot.errors import BackendFailed
from aot.facts.targets import Fallback, machine_codes
from aot.rules import OLDEST_DRIVERS
from aot.rules.profile import profile_guards
from aot.rules.required import COOPERATIVE_FACT
from aot.runtime.winner import GRAPHS_FACT
from aot.schema.artifact import ElfFacts
from aot.schema.capability import Capability
from aot.schema.environment import ProcessFacts
from aot.schema.guard import HostGuard
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe

# Words in the names of ATen operators that multiply matrices, or that Inductor turns into such.
_PRODUCTS = (
    "mm",
    "matmul",
    "linear",
    "attention",
    "conv",
    "einsum",
    "dot",
    "mv",
    "lstm",
    "gru",
    "rnn",
    "addr",
    "cdist",
)
_PRECISIONS = "highest high medium"
_COOPERATIVE = ("triton.cooperative_reductions", "triton.force_cooperative_reductions")


def capability_of(profile: Profile, kernels: Iterable[Path], *, library: Path | None) -> Capability:
    """Return what the code really is for: kernels compiled for `sm_90a` run on that architecture and on no other, those
    for `sm_100f` on its family. Of a fat binary's images those count that run on the profile's card; those inside
    `library` are kernels too."""
    codes = machine_codes(((path.name, path) for path in kernels), library=library)
    usable = [[one for one in images if profile.capability.runs(one)] or images for images in codes]
    return narrowest_of(profile, {one for images in usable for one in images})


def narrowest_of(profile: Profile, found: Collection[Capability]) -> Capability:
    """Return the capability of the whole of several kernels, each for one of `found`."""
    narrowest = [capability for suffix in "af" for capability in sorted(found) if capability.endswith(suffix)]
    return narrowest[0] if narrowest else profile.capability


def host_guards(
    elf: ElfFacts,
    profile: Profile,
    *,
    torch: str,
    capability: Capability | None = None,
    fallback: Fallback | None = None,
    of_module: bool = False,
) -> tuple[HostGuard, ...]:
    """Return the conditions that bytes and profile set; `torch` is the version that compiled, local part included.

    `fallback`: the PTX of every kernel, where newer cards may run that.

    `of_module`: the fingerprint is of a live module, hence made of bytecode, which another Python cannot compare.

    Raises BackendFailed for a shared object with a second libstdc++ inside, which crashes the process that loads it.
    """
    refuse_second_runtime(elf, profile)
    values = {
        "machine": elf.machine,
        **profile_guards(profile, capability=capability),
        **fallback_guards(capability or profile.capability, fallback),
        "torch": torch,
        "libc": elf.libc_floor,
        "libstdcxx": elf.libstdcxx_floor,
        "python": ".".join(profile.toolchain.python.split(".")[:2]) if of_module else None,
        "cpu": None if profile.capability.family == "cpu" else cpu_capability(profile),
    }
    return tuple(HostGuard(kind=kind, value=value) for kind, value in values.items() if value is not None)


def refuse_second_runtime(elf: ElfFacts, profile: Profile) -> None:
    """Raises BackendFailed for a shared object that holds a libstdc++ of its own; to be asked before it is loaded."""
    if elf.static_libstdcxx:
        raise BackendFailed(
            f"the C++ compiler, {profile.toolchain.compiler}, linked libstdc++ statically: two copies in one process "
            "crash it at load",
            hint="let g++ on PATH be the system's; `aot doctor` lists the compilers",
            details={"backend": "g++", "region": "", "log": f"NEEDED: {', '.join(elf.needed)}"},
        )


def fallback_guards(capability: Capability, fallback: Fallback | None) -> dict[str, str]:
    """Return what takes the place of the guard on the capability where PTX stands in for machine code."""
    if fallback is None:
        return {}
    return {
        "capability": f"{capability} {fallback.capability}",
        "fallback": f"{capability} {fallback.ptx}",
        "machine_code": capability,
    }


def program_guards(
    process: ProcessFacts, recipe: Recipe, profile: Profile, *, settings: Mapping[str, Any], multiplies: bool
) -> tuple[HostGuard, ...]:
    """Return the conditions that the program and its recipe set, beside those of `host_guards`.

    `process` is what the program had set while it was compiled, `settings` the configuration of Inductor;
    `multiplies`: float32 matrices are multiplied, so that the precision of products matters.
    """
    on_card = profile.capability.family != "cpu"
    # With weights outside, products on a CPU are the library's, which follows the process; frozen, they are ours.
    precise = multiplies and (on_card or recipe.freeze)
    cooperative = profile.device is not None and any(settings.get(name) for name in _COOPERATIVE)
    values = {
        "deterministic": None if process.deterministic is None else str(process.deterministic).lower(),
        "default_dtype": process.default_dtype,
        "matmul_precision": _same_products(process.matmul_precision, on_card=on_card) if precise else _PRECISIONS,
        "conv_precision": process.conv_precision if on_card and multiplies else None,
        "sm_floor": str(profile.device.sm_count) if profile.device and cooperative else None,
    }
    return tuple(HostGuard(kind=kind, value=value) for kind, value in values.items() if value is not None)


def _same_products(precision: str | None, *, on_card: bool) -> str | None:
    """Return every precision under which products are computed as under this one.

    On a card both lower ones allow TensorFloat-32 (torch.set_float32_matmul_precision).
    """
    return "high medium" if on_card and precision in ("high", "medium") else precision


def multiplies_float32(graph: Any) -> bool:
    """True when a graph module, or one inside it, may multiply float32 matrices; so does any operator of others."""
    return any(
        _has_float32_input(node) and _may_multiply(node.target)
        for module in graph.modules()
        for node in getattr(getattr(module, "graph", None), "nodes", ())
        if node.op == "call_function"
    )


def _may_multiply(target: Any) -> bool:
    namespace, _, name = str(getattr(target, "_name", "")).partition("::")
    if not name:
        return False  # a Python function such as getitem; the graphs of a branch are modules of their own
    return namespace not in ("aten", "prims") or any(word in name for word in _PRODUCTS)


def _has_float32_input(node: Any) -> bool:
    def dtypes() -> Iterator[str]:
        for source in node.all_input_nodes:
            values = source.meta.get("val")
            for value in values if isinstance(values, (tuple, list)) else (values,):
                yield str(getattr(value, "dtype", ""))

    return "torch.float32" in dtypes()


def kernel_guards(capability: Capability, *, cuda_major: str | None) -> tuple[HostGuard, ...]:
    """Return the conditions of one code object that a driver loads: nothing of the container is asked.

    `cuda_major` is the release of CUDA that assembled it. Of AMD's driver no floor is known, so none is recorded.
    """
    values = {"capability": capability, "driver": OLDEST_DRIVERS.get(cuda_major) if cuda_major else None}
    return tuple(HostGuard(kind=kind, value=value) for kind, value in values.items() if value is not None)


def route_facts(recipe: Recipe, profile: Profile, settings: dict[str, object], isa: str) -> dict[str, str]:
    """Facts for people and for the loader: march, simdlen, threads, whether a CUDA graph is to be captured."""
    facts = {"mode": recipe.mode.value, "frozen": str(recipe.freeze).lower()}
    facts |= {"march": str(settings["cpp.march"]), "simdlen": str(settings["cpp.simdlen"]), "isa": isa}
    facts["threads"] = "dynamic" if profile.threads is None else str(profile.threads)
    if profile.device is not None and any(settings.get(name) for name in _COOPERATIVE):
        facts[COOPERATIVE_FACT] = "true"
    if captures_graphs(recipe, profile):
        facts[GRAPHS_FACT] = "capture"
    return facts
