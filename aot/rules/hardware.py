"""Rules about the CPU and about one card. Card rules see an environment with the one card that is judged."""

from collections.abc import Callable

from aot.errors import InvalidCapability
from aot.rules.rule import against, floor, missing, same, spell, unknown
from aot.schema.capability import Capability
from aot.schema.decision import Reason
from aot.schema.environment import Environment, Gpu, NodeFacts

WHOLE_CARD = "none"  # a guard's spelling for "not a MIG slice"


def check_machine(value: str, environment: Environment) -> Reason | None:
    """Exact: an ELF file runs on the instruction set that its header names and on no other.

    Source: System V ABI, ELF header, e_machine.
    """
    return same("machine", value, environment.node.machine, "the artifact is built for {wanted}, this host is {found}")


def check_capability(value: str, environment: Environment) -> Reason | None:
    """Monotone along `Capability.covers`: a host may have more than the code was generated for, in the ways that the
    makers of the hardware promise and in no other. What the catalogue does not have runs nowhere. Code that is there
    twice, as machine code and as PTX, lists both: `cuda:sm_86 cuda:compute_86` runs where either does.

    Sources: those of `aot.schema.targets`, row by row.
    """
    try:
        wanted, *others = [Capability.parse(word) for word in value.split(" ")]
    except InvalidCapability:
        return unknown("capability", value)
    if not all(one.is_known and one.family == wanted.family for one in (wanted, *others)):
        return unknown("capability", value)
    if wanted.family == "cpu":
        return _run_by_cpu("capability", wanted, environment.node)
    gpus = environment.node.gpus
    if gpus is None:
        return missing("capability", wanted)
    found = gpus[0].capability if gpus else f"no {wanted.family} device"
    if isinstance(found, Capability) and any(found.runs(one) for one in others):
        return None
    return _run_by("capability", wanted, found)


def check_cpu(value: str, environment: Environment) -> Reason | None:
    """Monotone along `Capability.covers`: what the code that launches a card's kernels is compiled for.

    Source: as for `capability` of a CPU artifact.
    """
    try:
        wanted = Capability.parse(value)
    except InvalidCapability:
        return unknown("cpu", value)
    return _run_by_cpu("cpu", wanted, environment.node) if wanted.is_known else unknown("cpu", value)


def check_isa(value: str, environment: Environment) -> Reason | None:
    """Exact, for cache entries: loop steps are baked into source that is compiled again at load, and read on
    another vector width they give wrong numbers or corrupt the heap.

    Source: measured with torch 2.13; the vector width is no part of FxGraphCache's key (torch/_inductor/codecache.py).
    """
    found = None if environment.node.cpu is None else environment.node.cpu.target
    return same("isa", value, found, "the cache entries are made for {wanted}, this host is {found}")


def check_memory(value: str, environment: Environment) -> Reason | None:
    """Monotone: bytes of device memory that the proof saw in use; those of the slice on a MIG device.

    Source: NVML API reference, nvmlDeviceGetMemoryInfo and nvmlDeviceAttributes_t.
    """
    text = "needs {wanted} bytes of device memory, the card has {found}"
    return _of_card("memory", value, environment, lambda gpu: floor("memory", value, str(gpu.memory_bytes), text))


def check_sm_floor(value: str, environment: Environment) -> Reason | None:
    """Monotone: a cooperative kernel's blocks wait for each other, so all of them must be resident at once; with fewer
    multiprocessors than its grid was sized for it never ends.

    Source: CUDA C++ programming guide, cooperative groups, grid synchronization; Inductor sizes such a grid by the
    builder's card (torch/_inductor/runtime/triton_heuristics.py, cooperative_reduction).
    """
    text = "cooperative kernels need {wanted} multiprocessors at once, the card has {found}"
    return _of_card("sm_floor", value, environment, lambda gpu: floor("sm_floor", value, spell(gpu.sm_count), text))


def check_sku(value: str, environment: Environment) -> Reason | None:
    """Advisory: the same architecture on another SKU runs, but block sizes were chosen by measuring on this one.

    Source: torch/_inductor/runtime/triton_heuristics.py; Inductor's own caches are keyed by the device's name.
    """
    text = "tuned on {wanted}, the card is {found}"
    return _of_card("sku", value, environment, lambda gpu: same("sku", value, gpu.sku, text))


def check_sm_count(value: str, environment: Environment) -> Reason | None:
    """Advisory: persistent kernels are launched with one block a multiprocessor; with another number they are right and
    uneven. (pytorch#109489: choices hang on the number of multiprocessors.)

    Source: torch/_inductor/utils.py, is_big_gpu and get_num_sms.
    """
    text = "tuned for {wanted} multiprocessors, the card has {found}"
    return _of_card("sm_count", value, environment, lambda gpu: same("sm_count", value, spell(gpu.sm_count), text))


def check_machine_code(value: str, environment: Environment) -> Reason | None:
    """Advisory: where no machine code in a fat binary runs on the card, the driver compiles its PTX. That runs;
    nothing of it was tuned for this architecture, and the proof ran machine code.

    No rejection: that PTX means the same on every later architecture is its maker's promise, as it is of machine code
    on a later minor revision (`Capability.covers`), which is not proven there either; it is in the bundle because the
    recipe asks for it; and whoever wants proven code alone refuses it by policy (`tuned_elsewhere`), as the note says.

    Source: CUDA programming guide, "PTX Compatibility"; torch/_inductor/config.py, emit_multi_arch_kernel.
    """
    try:
        wanted = Capability.parse(value)
    except InvalidCapability:
        return unknown("machine_code", value)
    text = "runs, not tuned, not proven on it: the driver compiles its PTX for {found}, machine code is for {wanted}"

    def judge(gpu: Gpu) -> Reason | None:
        return None if gpu.capability.runs(wanted) else against("machine_code", wanted, gpu.capability, text)

    return _of_card("machine_code", value, environment, judge)


def check_mig(value: str, environment: Environment) -> Reason | None:
    """Advisory: a slice of a card runs the same code with a part of its multiprocessors, memory and bandwidth.

    Source: NVIDIA multi-instance GPU user guide, GPU instance profiles.
    """
    text = "tuned on MIG slice {wanted}, the card is MIG slice {found}"
    return _of_card("mig", value, environment, lambda gpu: same("mig", value, gpu.mig or WHOLE_CARD, text))


def _of_card(kind: str, value: str, environment: Environment, judge: Callable[[Gpu], Reason | None]) -> Reason | None:
    gpus = environment.node.gpus
    if gpus is None:
        return missing(kind, value)
    return (
        judge(gpus[0]) if gpus else against(kind, value, "no card", "{kind} {wanted} is needed, this host has {found}")
    )


def _run_by_cpu(kind: str, wanted: Capability, node: NodeFacts) -> Reason | None:
    """A CPU is its level with the features that it has beyond that, which are asked for only where code uses some."""
    cpu = node.cpu
    if cpu is None:
        return missing(kind, wanted)
    if not wanted.features or cpu.runs(wanted):
        return _run_by(kind, wanted, cpu)
    if node.cpu_features is None:
        # More features would not lift the level: a CPU of a lower one than the code's is certain not to run it.
        return missing(kind, wanted) if cpu.runs(Capability(f"cpu:{wanted.level}")) else _run_by(kind, wanted, cpu)
    try:
        whole = Capability.of_cpu(cpu.level, (*cpu.features, *node.cpu_features))
    except InvalidCapability:
        whole = cpu  # features that contradict each other say nothing
    return _run_by(kind, wanted, whole)


def _run_by(kind: str, wanted: Capability, found: Capability | str) -> Reason | None:
    if isinstance(found, Capability):
        if found.runs(wanted):
            return None
        if not found.is_known:
            return against(kind, wanted, found, "generated for {wanted}; what runs on {found} is not known")
    return against(kind, wanted, found, "generated for {wanted}, this host has {found}")
