"""What holds of every verdict, whatever the artifact and the host."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aot.compile.host import fallback_guards
from aot.facts.targets import Fallback
from aot.rules import RULES, Order
from aot.rules.profile import profile_guards
from aot.schema.artifact import Artifact
from aot.schema.capability import CPU_X86_LEVELS, Capability
from aot.schema.codec import decode
from aot.schema.decision import Accepted, Level, Rejected, Verdict
from aot.schema.environment import ContainerFacts, Environment, Gpu, NodeFacts, ProcessFacts
from aot.schema.guard import HostGuard
from aot.schema.profile import Device, Profile
from aot.select import Policy, verdict_on
from tests.builders import a_profile, a_toolchain, altered, an_artifact

RECORDED_HOSTS = tuple(
    decode(path.read_bytes(), Environment) for path in sorted((Path(__file__).parents[1] / "hosts").glob("*.json"))
)

X86 = tuple(Capability(f"cpu:{level}") for level in CPU_X86_LEVELS)
EXTRAS = ("amx_int8", "amx_tile", "avx512_vnni")
AMX = Capability("cpu:x86-64-v4+amx_int8+amx_tile")
SMS = tuple(Capability(f"cuda:{target}") for target in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"))
SKUS = ("NVIDIA A", "NVIDIA B")
TORCHES = (("2.13.0+cpu", None), ("2.13.0+cu130", "13.0"), ("2.12.1+cu128", "12.8"), ("2.12.1+cu126", "12.6"))
DRIVERS = ("470.256.02", "525.60.13", "550.54.15", "580.65.06", "590.10")
# The PTX that each of them brought, and none of those before it reads.
PTX_OF = dict(zip(DRIVERS[1:4], ("8.0", "8.4", "9.0"), strict=True))
CUDAS = (("12.6", "12.8", "12.9"), ("13.0", "13.1"))  # the minor versions of a major one
GLIBCS, LIBSTDCXX, KERNELS = (
    ("2.17", "2.31", "2.34", "2.36", "2.41"),
    ("3.4.28", "3.4.30", "3.4.33"),
    ("5.15.0", "6.8.0", "6.12.0"),
)
PRECISIONS, DTYPES = ("highest", "high", "medium"), ("float32", "bfloat16")
SLICES, COUNTS, MEMORIES = (None, "1g.10gb"), (16, 114, 132), (10 << 30, 80 << 30)
FLOOR_OF_MULTIPROCESSORS = 114

gpus = st.builds(
    Gpu,
    capability=st.sampled_from(SMS),
    sku=st.sampled_from(SKUS),
    memory_bytes=st.sampled_from(MEMORIES),
    sm_count=st.sampled_from(COUNTS),
    mig=st.sampled_from(SLICES),
)
processes = st.builds(
    ProcessFacts,
    deterministic=st.booleans(),
    matmul_precision=st.sampled_from(PRECISIONS),
    default_dtype=st.sampled_from(DTYPES),
    autocast=st.sampled_from(("off", "cuda:bfloat16")),
    grad=st.booleans(),
    world_size=st.sampled_from((1, 2)),
    rank=st.sampled_from((0, 1)),
)


@st.composite
def made_hosts(draw: st.DrawFn) -> Environment:
    """A host that has observed everything."""
    torch, cuda = draw(st.sampled_from(TORCHES))
    return Environment(
        node=NodeFacts(
            machine=draw(st.sampled_from(("x86_64", "x86_64", "x86_64", "aarch64"))),
            cpu=draw(st.sampled_from(X86)),
            cpu_features=tuple(draw(st.sets(st.sampled_from(EXTRAS)))),
            kernel=draw(st.sampled_from(KERNELS)),
            driver=draw(st.sampled_from(DRIVERS)),
            gpus=tuple(draw(st.lists(gpus, min_size=1, max_size=3))),
        ),
        container=ContainerFacts(
            torch=torch,
            cuda=cuda or "13.0",
            triton=draw(st.sampled_from(("3.6.0", "3.7.0"))),
            python=draw(st.sampled_from(("3.11.7", "3.12.1"))),
            libc=draw(st.sampled_from(GLIBCS)),
            libstdcxx=draw(st.sampled_from(LIBSTDCXX)),
            cxx11_abi=draw(st.booleans()),
            threads=draw(st.sampled_from((2, 8))),
        ),
        process=draw(processes),
    )


hosts = st.one_of(made_hosts(), st.sampled_from(RECORDED_HOSTS))


@st.composite
def artifacts(draw: st.DrawFn) -> Artifact:
    """An artifact as a build records it, sometimes with a condition more."""
    on_card = draw(st.booleans())
    capability = draw(st.sampled_from(SMS if on_card else (*X86, AMX)))
    torch, cuda = draw(st.sampled_from(TORCHES[1:] if on_card else TORCHES[:1]))
    threads = draw(st.sampled_from((None, None, 8)))
    profile = Profile(
        name=a_profile().name,
        capability=capability,
        toolchain=a_toolchain(torch=torch, cuda=cuda),
        device=draw(devices()) if on_card else None,
        threads=threads,
    )
    values = profile_guards(profile) | {
        "machine": "x86_64",
        "libc": draw(st.sampled_from(GLIBCS)),
        "libstdcxx": draw(st.sampled_from(LIBSTDCXX)),
        "deterministic": draw(st.sampled_from(("true", "false"))),
        "default_dtype": draw(st.sampled_from(DTYPES)),
        "matmul_precision": draw(st.sampled_from((*PRECISIONS, "high medium", "highest high medium"))),
    }
    facts = {"threads": "dynamic" if threads is None else str(threads)}
    if on_card:
        values["cpu"] = "cpu:x86-64-v2"
        if draw(st.booleans()):
            values["sm_floor"], facts["cooperative_kernels"] = str(FLOOR_OF_MULTIPROCESSORS), "true"
        portable = Capability(f"cuda:{capability.target.replace('sm', 'compute')}")
        ptx = draw(st.sampled_from(sorted(PTX_OF.values())))
        match draw(st.sampled_from(("machine code", "ptx", "both"))):
            case "ptx":  # which a driver compiles for the card
                capability = portable
                values |= {"capability": portable, "ptx": ptx}
            case "both":
                values |= fallback_guards(capability, Fallback(portable, ptx))
        if draw(st.booleans()):
            values["memory"] = str(draw(st.sampled_from(MEMORIES)))
    guards = tuple(HostGuard(kind=kind, value=value) for kind, value in values.items())
    return an_artifact(capability=capability, host_guards=guards, facts=facts)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    card = draw(gpus)
    return Device(sku=card.sku, sm_count=card.sm_count or 0, memory_bytes=card.memory_bytes, mig=card.mig)


policies = st.builds(Policy, tuned_elsewhere=st.booleans())


def with_facts(environment: Environment, **facts: Any) -> Environment:
    """The host with other facts, each in the scope that has it."""
    for name, value in facts.items():
        for scope in ("node", "container", "process"):
            part = getattr(environment, scope)
            if name in part.__struct_fields__:
                environment = altered(environment, **{scope: altered(part, **{name: value})})
    return environment


def fitted(artifact: Artifact, environment: Environment, *, but: frozenset[str] = frozenset()) -> Environment:
    """The host with what the guards ask for, so that many verdicts are fits; facts in `but` stay as they were."""
    wanted = {guard.kind: guard.value for guard in artifact.host_guards}
    facts: dict[str, Any] = {
        "machine": wanted["machine"],
        "torch": wanted["torch"],
        "libc": wanted["libc"],
        "libstdcxx": wanted["libstdcxx"],
        "deterministic": wanted["deterministic"] == "true",
        "default_dtype": wanted["default_dtype"],
        "matmul_precision": wanted["matmul_precision"].split()[0],
        "cpu": Capability(f"cpu:{artifact.capability.level}") if artifact.capability.family == "cpu" else X86[-1],
        "cpu_features": EXTRAS,
        "kernel": KERNELS[1],
    }
    facts |= {name: wanted[name] for name in ("cuda", "driver") if name in wanted}
    if version := wanted.get("ptx") or wanted.get("fallback", "").rpartition(" ")[2]:
        of_ptx = next(driver for driver, ptx in PTX_OF.items() if ptx == version)
        facts["driver"] = max(of_ptx, wanted["driver"], key=DRIVERS.index)
    facts |= {"threads": int(wanted["threads"])} if "threads" in wanted else {}
    if "sku" in wanted:
        card = Gpu(
            capability=Capability(f"cuda:{artifact.capability.target.replace('compute', 'sm')}"),
            sku=wanted["sku"],
            memory_bytes=80 << 30,
            sm_count=max(int(wanted["sm_count"]), int(wanted.get("sm_floor", 0))),
            mig=None if wanted["mig"] == "none" else wanted["mig"],
        )
        facts["gpus"] = (card,)
    return with_facts(environment, **{name: value for name, value in facts.items() if name not in but})


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Artifact, Environment]:
    """An artifact and a host that fits it in all but a few facts."""
    artifact, environment = draw(artifacts()), draw(hosts)
    names = (
        "machine",
        "torch",
        "libc",
        "libstdcxx",
        "deterministic",
        "default_dtype",
        "matmul_precision",
        "cpu",
        "cpu_features",
        "kernel",
    )
    names += ("cuda", "driver", "threads", "gpus")
    but = draw(
        st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(names), max_size=3), st.just(frozenset(names)))
    )
    return artifact, fitted(artifact, environment, but=but)


def after(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """`value` and what is better than it."""
    return values[values.index(value) :] if value in values else (value,)


def ways_to_more(environment: Environment, extra: Gpu, policy: Policy) -> dict[str, tuple[Any, ...]]:
    """By fact, what is better than what the host has of it, in the ways that a rule calls monotone."""
    node, container = environment.node, environment.container
    cards = node.gpus or ()
    more_memory = tuple(altered(card, memory_bytes=2 * card.memory_bytes) for card in cards)
    more_multiprocessors = tuple(
        altered(card, sm_count=None if card.sm_count is None else 2 * card.sm_count) for card in cards
    )
    return {
        "cpu": after(X86, node.cpu),
        "cpu_features": (tuple({*(node.cpu_features or ()), *EXTRAS}), (*(node.cpu_features or ()), "unheard_of")),
        "kernel": after(KERNELS, node.kernel),
        "driver": after(DRIVERS, node.driver),
        "cuda": next(
            (after(minors, container.cuda) for minors in CUDAS if container.cuda in minors), (container.cuda,)
        ),
        "libc": after(GLIBCS, container.libc),
        "libstdcxx": after(LIBSTDCXX, container.libstdcxx),
        "deterministic": after((True, False), environment.process.deterministic),
        "gpus": (
            (*cards, extra),
            (extra, *cards),
            more_memory,
            # A caller who takes nothing that was tuned elsewhere does not take another number of multiprocessors.
            *((more_multiprocessors,) if policy.tuned_elsewhere else ()),
        ),
    }


@st.composite
def betterments(draw: st.DrawFn, environment: Environment, policy: Policy) -> Environment:
    """The same host with one thing more."""
    ways = ways_to_more(environment, draw(gpus), policy)
    name, value = draw(st.sampled_from([(name, value) for name, values in ways.items() for value in values]))
    return with_facts(environment, **{name: value})


@settings(max_examples=400, deadline=None)
@given(data=st.data(), pair=pairs(), policy=policies)
def test_more_of_a_monotone_factor_never_turns_a_fit_into_a_rejection(
    data: st.DataObject, pair: tuple[Artifact, Environment], policy: Policy
) -> None:
    artifact, environment = pair
    if isinstance(verdict_on(artifact, environment, policy=policy), Accepted):
        better = data.draw(betterments(environment, policy))
        assert isinstance(verdict_on(artifact, better, policy=policy), Accepted)


def test_every_monotone_factor_is_made_better_above_where_an_artifact_asks_for_it() -> None:
    """What no artifact asks for, or no host gets more of, was not shown."""
    asked: set[str] = set()
    bettered: set[str] = set()

    @settings(max_examples=900, deadline=None, database=None, derandomize=True)
    @given(data=st.data(), artifact=artifacts(), host=made_hosts())
    def look(data: st.DataObject, artifact: Artifact, host: Environment) -> None:
        environment = fitted(artifact, host)
        if not isinstance(verdict_on(artifact, environment), Accepted):
            return
        better = data.draw(betterments(environment, Policy()))
        if better == environment:
            return
        scopes = ("node", "container", "process")
        names = {f"{scope}.{name}" for scope in scopes for name in getattr(environment, scope).__struct_fields__}
        changed = {name for name in names if _fact(environment, name) != _fact(better, name)}
        for guard in artifact.host_guards:
            if RULES[guard.kind].order is Order.MONOTONE:
                asked.add(guard.kind)
                bettered.update({guard.kind} if changed & set(RULES[guard.kind].facts) else ())

    look()
    monotone = {kind for kind, rule in RULES.items() if rule.order is Order.MONOTONE}
    assert asked == bettered == monotone


def _fact(environment: Environment, name: str) -> Any:
    scope, _, fact = name.partition(".")
    return getattr(getattr(environment, scope), fact)


EXACT = sorted(kind for kind, rule in RULES.items() if rule.order is Order.EXACT)
OF_MORE = ("isa", "distribution")  # whose fact is no text of one value
# How a fact is spelled in a guard, where that is not its own text.
SHORTENED = {"python": 2, "hip": 2}
values_of = st.one_of(
    st.sampled_from(("x86_64", "2.13.0+cpu", "3.11", "3.11.7", "float32", "off", "high", "1", "8")),
    st.text(alphabet="abcdefgh0123456789.+-_:", min_size=1, max_size=12),
)


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from([kind for kind in EXACT if kind not in OF_MORE]), wanted=values_of, found=values_of)
def test_an_exact_guard_holds_for_the_same_and_for_nothing_else(kind: str, wanted: str, found: str) -> None:
    [fact] = RULES[kind].facts
    environment = with_facts(Environment(), **{fact.partition(".")[2]: found})
    length = SHORTENED.get(kind)
    heads = (".".join(text.split(".")[:length]) if length else text for text in (wanted, found))
    same = len(set(heads)) == 1 if kind != "python" else wanted == ".".join(found.split(".")[:2])
    assert (RULES[kind].check(wanted, environment) is None) is same


@given(wanted=st.sampled_from(X86), found=st.sampled_from(X86))
def test_the_instruction_set_of_cache_entries_is_exact(wanted: Capability, found: Capability) -> None:
    reason = RULES["isa"].check(wanted.target, with_facts(Environment(), cpu=found))
    assert (reason is None) is (wanted == found)


ABSENCE_SAYS = ("memory",)  # that nobody measured it (`aot.rules.required`)


@settings(max_examples=400, deadline=None)
@given(pair=pairs(), policy=policies)
def test_an_artifact_that_forgets_a_fact_is_never_accepted_where_it_was_rejected(
    pair: tuple[Artifact, Environment], policy: Policy
) -> None:
    artifact, environment = pair
    before = verdict_on(artifact, environment, policy=policy)
    for forgotten in artifact.host_guards:
        if forgotten.kind in ABSENCE_SAYS:
            continue
        left = tuple(guard for guard in artifact.host_guards if guard is not forgotten)
        now = verdict_on(altered(artifact, host_guards=left), environment, policy=policy)
        if isinstance(before, Rejected):
            assert isinstance(now, Rejected), forgotten


def hidden(environment: Environment, fact: str) -> Environment:
    """The host without one of its facts; `gpus.sm_count` is that of every card."""
    scope, name, *inner = fact.split(".")
    part = getattr(environment, scope)
    cards = part.gpus if inner else None
    value = None if cards is None else tuple(altered(card, **{inner[0]: None}) for card in cards)
    return altered(environment, **{scope: altered(part, **{name: value})})


HIDEABLE = sorted({fact for rule in RULES.values() for fact in rule.facts} | {"node.gpus.sm_count"})


def asked_for(artifact: Artifact, fact: str) -> bool:
    """True when some guard of the artifact reads this fact."""
    kinds = {guard.kind for guard in artifact.host_guards}
    if fact == "node.gpus.sm_count":
        return bool(kinds & {"sm_count", "sm_floor"})
    if fact == "node.cpu_features":
        return artifact.capability == AMX
    if fact in ("node.cpu", "node.gpus"):
        family = artifact.capability.family
        own = fact == ("node.cpu" if family == "cpu" else "node.gpus")
        return own or any(fact in RULES[kind].facts for kind in kinds - {"capability"})
    return any(fact in RULES[kind].facts for kind in kinds)


@settings(max_examples=400, deadline=None)
@given(pair=pairs(), policy=policies)
def test_a_host_that_hides_a_fact_is_undecided_and_never_accepted(
    pair: tuple[Artifact, Environment], policy: Policy
) -> None:
    artifact, environment = pair
    before = verdict_on(artifact, environment, policy=policy)
    for fact in HIDEABLE:
        now = verdict_on(artifact, hidden(environment, fact), policy=policy)
        if asked_for(artifact, fact):
            assert not isinstance(now, Accepted), fact
            assert allowed(before, now), fact
        else:
            assert now == before, fact


def allowed(before: Verdict, now: Verdict) -> bool:
    """What was not rejected is not rejected for want of a fact."""
    return isinstance(before, Rejected) or not isinstance(now, Rejected)


@settings(max_examples=200, deadline=None)
@given(artifact=artifacts(), environment=hosts)
def test_nothing_is_accepted_on_a_host_of_which_nothing_is_known(artifact: Artifact, environment: Environment) -> None:
    assert not isinstance(verdict_on(artifact, Environment()), Accepted | Rejected)
    assert not isinstance(verdict_on(artifact, Environment(node=environment.node)), Accepted)


@settings(max_examples=300, deadline=None)
@given(pair=pairs(), policy=policies)
def test_a_verdict_says_of_which_cards_it_holds(pair: tuple[Artifact, Environment], policy: Policy) -> None:
    """With one of these cards alone the level is the same, with one of the others it is a worse one."""
    artifact, environment = pair
    verdict = verdict_on(artifact, environment, policy=policy)
    cards = environment.node.gpus or ()
    if len(cards) < 2 or artifact.capability.family == "cpu":
        assert verdict.devices == ()
        return
    alone = [verdict_on(artifact, with_facts(environment, gpus=(card,)), policy=policy) for card in cards]
    levels = [one.level for one in alone]
    assert verdict.devices == tuple(index for index, level in enumerate(levels) if level is verdict.level)
    assert altered(verdict, devices=()) in alone
    ladder = list(Level)
    assert ladder.index(verdict.level) == min(ladder.index(level) for level in levels)


def test_the_pairs_above_reach_every_level() -> None:
    """Properties of what never happens prove nothing."""
    levels: set[str] = set()

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(pair=pairs(), policy=policies)
    def collect(pair: tuple[Artifact, Environment], policy: Policy) -> None:
        levels.add(verdict_on(*pair, policy=policy).level)

    collect()
    assert levels >= {"fits", "fits, tuned elsewhere", "rejected"}


def test_host_files_are_enough_to_matter() -> None:
    assert len(RECORDED_HOSTS) >= 40
