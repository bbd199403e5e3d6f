"""What to do where nothing fits: the rejected artifacts that come nearest, and the build that is missing.

Beside `aot.select` and as pure: `aot explain` prints what these functions return.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aot.rules import A_RECORDED_VALUE, NOT_KNOWN, RULES, Change
from aot.rules.profile import profile_guards
from aot.schema.capability import Capability
from aot.schema.decision import Decision, Level, Reason, Rejected, Verdict
from aot.schema.environment import Environment, Gpu
from aot.schema.guard import HostGuard
from aot.schema.profile import Profile
from aot.select import judge_guards, particularity

# How a person makes a guard hold; {wanted} is the reason's.
_STEPS = {
    "machine": "run on a {wanted} machine",
    "capability": "run on hardware that covers {wanted}",
    "cpu": "run on a CPU that covers {wanted}",
    "isa": "run on a CPU of exactly {wanted}",
    "memory": "use a card with {wanted} bytes",
    "sm_floor": "use a card with {wanted} multiprocessors",
    "sku": "use a {wanted}, or accept what was tuned elsewhere",
    "sm_count": "use a card with {wanted} multiprocessors, or accept what was tuned elsewhere",
    "mig": "use MIG slice {wanted}, or accept what was tuned elsewhere",
    "driver": "install NVIDIA driver {wanted} or newer",
    "ptx": "install NVIDIA driver {wanted} or newer",
    "fallback": "install NVIDIA driver {wanted} or newer",
    "machine_code": "run on {wanted}, or accept what was tuned elsewhere",
    "kernel": "boot Linux {wanted} or newer",
    "torch": "install torch {wanted}",
    "python": "run under Python {wanted}",
    "interpreter": "run under Python {wanted}",
    "triton": "install triton {wanted}",
    "libc": "use an image with glibc {wanted} or newer",
    "libstdcxx": "use an image whose libstdc++ has GLIBCXX_{wanted}",
    "cxx11_abi": "install a torch whose C++ strings are of the new ABI: {wanted}",
    "cuda": "install a torch built for CUDA {wanted}, or newer in that major release",
    "hip": "install a torch built for HIP {wanted}",
    "bytecode": "run under the interpreter {wanted}",
    "distribution": "install {wanted}",
    "threads": "torch.set_num_threads({wanted})",
    "deterministic": "torch.use_deterministic_algorithms(False)",
    "matmul_precision": 'torch.set_float32_matmul_precision("{wanted}")',
    "conv_precision": 'torch.backends.cudnn.conv.fp32_precision = "{wanted}"',
    "default_dtype": "torch.set_default_dtype(torch.{wanted})",
    "autocast": "load with autocast {wanted}",
    "grad": "load with gradients recorded: {wanted}",
    "world_size": "run {wanted} processes",
    "rank": "run as rank {wanted}",
    "tuned": "accept what was not tuned",
}


@dataclass(frozen=True)
class Near:
    """A rejected artifact, the dearest change that it needs, and all of them in words, cheapest first."""

    decision: Decision
    change: Change
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Need:
    """The build that would serve a host: what it must be made for, as far as the host's facts tell.

    `profile` is the registered one that serves it best, `level` how well; None where no worker of today does.
    `open_facts` name what was not observed and would have to be known to be sure.
    """

    capability: Capability | None
    sku: str | None
    torch: str | None
    python: str | None
    cuda: str | None
    libc: str | None
    profile: Profile | None = None
    level: Level | None = None
    open_facts: tuple[str, ...] = ()


def nearest(decisions: Iterable[Decision]) -> tuple[Near, ...]:
    """Return the rejected artifacts: first those that need the cheapest and fewest changes, equal ones in their order.

    A line in a program is cheaper than another image, that than a driver, that than other hardware; an artifact that
    does not record what it must cannot be helped from the host at all.
    """
    near = [_near(decision, decision.verdict) for decision in decisions if isinstance(decision.verdict, Rejected)]
    return tuple(one for _, one in sorted(near, key=lambda pair: pair[0]))


def missing(environment: Environment, *, profiles: Sequence[Profile] = ()) -> Need:
    """Return what to build for `environment`, and which of `profiles` would build it.

    A host with a card and a torch for it is served by a build for that card, as `aot build` would choose there. What
    kernels alone are built for is no answer: no worker builds there.
    """
    node, container = environment.node, environment.container
    gpu = _card(environment)
    capability = gpu.capability if gpu else node.cpu
    facts = {"capability": capability, "torch": container.torch, "python": container.python, "libc": container.libc}
    need = {
        "capability": capability,
        "sku": gpu.sku if gpu else None,
        "torch": container.torch,
        "python": container.python,
        "cuda": container.cuda if gpu else None,
        "libc": container.libc,
        "open_facts": tuple(name for name, value in facts.items() if value is None),
    }
    family = capability.family if capability else "cpu"
    fitting = [
        (profile, verdict)
        for profile in profiles
        if profile.capability.family == family and not profile.is_for_kernels
        if not isinstance(verdict := verdict_on_profile(profile, environment), Rejected)
    ]
    if not fitting:
        return Need(**need)
    profile, verdict = min(fitting, key=lambda pair: (_LEVELS.index(pair[1].level), -particularity(pair[0].capability)))
    return Need(**need, profile=profile, level=verdict.level)


def verdict_on_profile(profile: Profile, environment: Environment) -> Verdict:
    """Return the verdict on what a build for `profile` would ask, as far as it is known before the build."""
    values = profile_guards(profile) | {"python": ".".join(profile.toolchain.python.split(".")[:2])}
    guards = tuple(HostGuard(kind=kind, value=value) for kind, value in values.items())
    return judge_guards(guards, environment)


_LEVELS = tuple(Level)


def _near(decision: Decision, verdict: Rejected) -> tuple[tuple[int, int], Near]:
    reasons = sorted(verdict.reasons, key=_change)
    changes = [_change(reason) for reason in reasons]
    steps = tuple(dict.fromkeys(_step(reason) for reason in reasons))
    return (max(changes), sum(changes)), Near(decision, max(changes), steps)


def _change(reason: Reason) -> Change:
    if reason.found == NOT_KNOWN or reason.wanted == A_RECORDED_VALUE or reason.kind not in RULES:
        return Change.ARTIFACT
    return RULES[reason.kind].change


def _step(reason: Reason) -> str:
    if reason.wanted == A_RECORDED_VALUE:
        return f"build it again: it does not record its {reason.kind}"
    if reason.found == NOT_KNOWN:
        return f"update aot: {reason.text}"
    template = _STEPS.get(reason.kind)
    # A statement has room for one value: the first of those that would do.
    wanted = reason.wanted.partition(" or ")[0] if _change(reason) is Change.SETTING else reason.wanted
    return template.format(wanted=wanted) if template else reason.text


def _card(environment: Environment) -> Gpu | None:
    """Return the card that a torch of this container can use; of several, that of the highest architecture."""
    container = environment.container
    usable = {"cuda": container.cuda, "rocm": container.hip}
    # "2.12.0" of a described host does not say what it was built for, "2.12.0+cpu" does.
    unsaid = not any(usable.values()) and container.torch is not None and "+" not in container.torch
    gpus = [gpu for gpu in environment.node.gpus or () if unsaid or usable.get(gpu.capability.family)]
    return max(gpus, key=lambda gpu: (particularity(gpu.capability), gpu.memory_bytes), default=None)
