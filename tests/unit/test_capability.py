"""Capabilities: one spelling each, a partial order between them, and what a host runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.errors import InvalidCapability
from aot.schema.capability import CPU_X86_LEVELS, Capability
from aot.schema.codec import decode, encode
from aot.schema.targets import ARM_FEATURES, ARM_LEVELS, GFXS, SMS, SVE_WIDTHS, X86_FEATURES, X86_LEVELS

UNKNOWN = ("cuda:sm_130", "cuda:sm_90f", "cuda:compute_101", "rocm:gfx1300", "cpu:x86-64-v5", "cpu:armv9.3-a")


def settings_of(processor: str) -> list[str]:
    row = GFXS[processor].settings
    return [f"{a}{b}" for a in ("", ":sramecc+", ":sramecc-") for b in ("", ":xnack+", ":xnack-")] if row else [""]


GPU_TARGETS = [
    *(
        f"cuda:{kind}_{version}{suffix}"
        for version, row in SMS.items()
        for suffix in row.suffixes
        for kind in ("sm", "compute")
    ),
    *(f"rocm:{processor}{settings}" for processor in GFXS for settings in settings_of(processor)),
]
CPU_TARGETS = [f"cpu:{level}" for level in (*X86_LEVELS, *ARM_LEVELS)]
TABLE = [Capability.parse(text) for text in (*GPU_TARGETS, *CPU_TARGETS, *UNKNOWN)]


@st.composite
def cpus(draw: st.DrawFn) -> Capability:
    """A level with any of the features that it may have."""
    levels, table = draw(st.sampled_from([(X86_LEVELS, X86_FEATURES), (ARM_LEVELS, ARM_FEATURES)]))
    level = draw(st.sampled_from(list(levels)))
    order = list(levels)
    usable = [n for n, row in table.items() if order.index(row.above) <= order.index(level) and "_vl" not in n]
    features = draw(st.lists(st.sampled_from(usable), max_size=6)) if usable else []
    width = draw(st.sampled_from(["", *(f"sve_vl{bits}" for bits in SVE_WIDTHS)])) if table is ARM_FEATURES else ""
    return Capability.parse("+".join(filter(None, (f"cpu:{level}", *features, width))))


anything = st.one_of(st.sampled_from(TABLE), cpus(), cpus())


def runs(host: str, code: str) -> bool:
    return Capability.parse(host).runs(Capability.parse(code))


def covers(upper: str, lower: str) -> bool:
    return Capability.parse(upper).covers(Capability.parse(lower))


def test_covers_is_a_partial_order_over_the_whole_table() -> None:
    below = {one: {other for other in TABLE if one.covers(other)} for one in TABLE}
    for one in TABLE:
        assert one in below[one]
        assert all(one not in below[other] for other in below[one] - {one}), one
        assert all(below[other] <= below[one] for other in below[one]), one


@given(anything, anything, anything)
def test_covers_is_a_partial_order_over_combinations_of_features(a: Capability, b: Capability, c: Capability) -> None:
    assert a.covers(a)
    assert a == b or not (a.covers(b) and b.covers(a))
    assert a.covers(c) or not (a.covers(b) and b.covers(c))


@given(anything, anything, anything)
def test_a_host_that_runs_code_runs_all_that_the_code_covers(host: Capability, a: Capability, b: Capability) -> None:
    assert host.runs(b) or not (host.runs(a) and a.covers(b))


@given(cpus(), cpus())
def test_a_cpu_of_both_covers_each(a: Capability, b: Capability) -> None:
    """Adding features never takes anything away."""
    widths = {name for one in (a, b) for name in one.features if name.startswith("sve_vl")}
    if a.target[:3] != b.target[:3] or len(widths) > 1:
        return
    try:
        both = Capability.parse("+".join((a, *sorted(b.features))))
    except InvalidCapability:
        return  # a feature of b needs a level that a has not
    assert both.covers(a)


@given(anything)
def test_a_capability_has_one_spelling(one: Capability) -> None:
    assert Capability.parse(one) == one
    assert decode(encode(one), Capability) == one


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("cpu:x86-64-v4+avx512_vnni+amx_tile", "cpu:x86-64-v4+amx_tile+avx512_vnni"),
        ("cpu:x86-64-v4+amx_bf16", "cpu:x86-64-v4+amx_bf16+amx_tile"),
        ("cpu:x86-64-v3+avx2", "cpu:x86-64-v3"),
        ("cpu:armv8.5-a+sve+sve2", "cpu:armv9-a"),
        ("cpu:armv8.6-a+sve2", "cpu:armv9-a+bf16+i8mm"),
        ("rocm:gfx90a:xnack-:sramecc+", "rocm:gfx90a:sramecc+:xnack-"),
    ],
)
def test_other_spellings_are_read(text: str, spelled: str) -> None:
    assert Capability.parse(text) == spelled


@pytest.mark.parametrize(
    "old", ["cpu:x86-64", "cpu:x86-64-v3", "cuda:sm_90", "cuda:sm_90a", "cpu:armv8.2-a", "rocm:gfx942"]
)
def test_spellings_of_old_documents_stay(old: str) -> None:
    assert Capability.parse(old) == old
    assert Capability.parse(old).is_known


@pytest.mark.parametrize("level", range(4))
def test_a_cpu_level_covers_itself_and_the_lower_ones(level: int) -> None:
    levels = [Capability.parse(f"cpu:{name}") for name in CPU_X86_LEVELS]
    assert [levels[level].covers(other) for other in levels] == [level >= other for other in range(4)]


@pytest.mark.parametrize(
    ("host", "code", "expected"),
    [
        ("cuda:sm_90", "cuda:sm_90", True),
        ("cuda:sm_86", "cuda:sm_80", True),
        ("cuda:sm_89", "cuda:sm_80", True),
        ("cuda:sm_80", "cuda:sm_86", False),
        ("cuda:sm_120", "cuda:sm_86", False),  # public report: sm_86 binaries crash on sm_120
        ("cuda:sm_100", "cuda:sm_90", False),
        # `a`: that architecture alone; `f`: its family
        ("cuda:sm_90", "cuda:sm_90a", True),
        ("cuda:sm_100", "cuda:sm_90a", False),
        ("cuda:sm_103", "cuda:sm_100a", False),
        ("cuda:sm_103", "cuda:sm_100f", True),
        ("cuda:sm_100", "cuda:sm_103f", False),
        ("cuda:sm_121", "cuda:sm_120f", True),
        ("cuda:sm_120", "cuda:sm_100f", False),
        # PTX: forwards; with a suffix as the cubin
        ("cuda:sm_120", "cuda:compute_90", True),
        ("cuda:sm_80", "cuda:compute_90", False),
        ("cuda:sm_90", "cuda:compute_90a", True),
        ("cuda:sm_100", "cuda:compute_90a", False),
        ("cuda:sm_103", "cuda:compute_100f", True),
        ("cuda:sm_110", "cuda:compute_100f", False),
        # Tegra: neither from nor to the desktop
        ("cuda:sm_87", "cuda:sm_80", False),
        ("cuda:sm_89", "cuda:sm_87", False),
        ("cuda:sm_87", "cuda:sm_87", True),
        ("cuda:sm_87", "cuda:compute_80", True),
        # AMD
        ("rocm:gfx942", "rocm:gfx90a", False),
        ("rocm:gfx942:sramecc+:xnack-", "rocm:gfx942", True),
        ("rocm:gfx942:sramecc+:xnack-", "rocm:gfx942:xnack+", False),
        ("rocm:gfx942", "rocm:gfx942:xnack-", False),  # the host's setting was not observed
        ("rocm:gfx950:sramecc+:xnack-", "rocm:gfx9-4-generic", True),
        ("rocm:gfx90a", "rocm:gfx9-4-generic", False),
        ("rocm:gfx1100", "rocm:gfx11-generic", True),
        ("cuda:sm_90", "rocm:gfx942", False),
        # CPUs
        ("cpu:x86-64-v4+avx512_vnni", "cpu:x86-64-v4", True),
        ("cpu:x86-64-v4", "cpu:x86-64-v4+avx512_vnni", False),
        ("cpu:x86-64-v4+avx_vnni", "cpu:x86-64-v3+avx_vnni", True),
        ("cpu:x86-64-v3+avx_vnni", "cpu:x86-64-v4", False),
        ("cpu:x86-64-v4", "cpu:armv8.2-a", False),
        ("cpu:armv8.2-a", "cpu:x86-64", False),
        ("cpu:armv9-a", "cpu:armv8.5-a", True),
        ("cpu:armv9-a", "cpu:armv8.6-a", False),  # bf16 and i8mm are none of armv9-a
        ("cpu:armv9-a+bf16+i8mm", "cpu:armv8.6-a", True),
        # a fixed vector length is exact
        ("cpu:armv8.4-a+bf16+sve+sve_vl256", "cpu:armv8-a+bf16+sve_vl256", True),
        ("cpu:armv9-a+bf16+sve_vl128", "cpu:armv8-a+bf16+sve_vl256", False),
        ("cpu:armv8.4-a+bf16+sve_vl512", "cpu:armv8-a+bf16+sve_vl256", False),
        ("cpu:armv9-a+bf16+sve_vl128", "cpu:armv8-a+bf16+sve", True),
    ],
)
def test_code_runs_where_the_vendor_says(host: str, code: str, expected: bool) -> None:
    assert runs(host, code) is expected


def test_code_for_an_architecture_is_no_code_for_its_successors() -> None:
    assert covers("cuda:sm_100a", "cuda:sm_100f") and covers("cuda:sm_103a", "cuda:sm_100f")
    assert not covers("cuda:sm_100", "cuda:sm_100a")
    assert not covers("cuda:sm_103", "cuda:sm_100f")


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_an_unknown_target_is_read_and_nothing_is_known_of_it(unknown: str) -> None:
    found = Capability.parse(unknown)
    assert not found.is_known
    assert found.covers(found)
    assert not found.runs(found)
    assert not any(found.covers(other) or other.covers(found) for other in TABLE if other != found)
    assert not any(found.runs(other) or other.runs(found) for other in TABLE)


@pytest.mark.parametrize(
    "text",
    [
        *("", "cpu", "cpu:", "cuda:90", "cuda:sm_9x", "cuda:sm_90b", "rocm:942", "tpu:v5", "cpu:x86-64-v4+", "cpu:v3"),
        *("cpu:x86-64-v4+avx512_vnmi", "cpu:x86-64-v3+avx512_vnni", "cpu:armv9-a+avx_vnni", "cpu:x86-64-V3"),
        *("cpu:armv9-a+sve_vl128+sve_vl256", "rocm:gfx90a:xnack", "rocm:gfx90a:xnack+:xnack-", "cuda:sm_90\n"),
    ],
)
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidCapability):
        Capability.parse(text)


def test_an_unknown_feature_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(InvalidCapability) as caught:
        Capability.parse("cpu:x86-64-v4+avx512_vnmi")
    assert "'avx512_vnmi'" in caught.value.message
    assert "avx512_vnni" in caught.value.hint


def test_of_a_cpus_features_those_count_that_code_may_use() -> None:
    found = Capability.of_cpu("x86-64-v4", ("fpu", "avx512f", "amx_tile", "clzero", "avx512_vnni"))
    assert found == "cpu:x86-64-v4+amx_tile+avx512_vnni"
    assert Capability.of_cpu("x86-64-v3", ("avx512_vnni", "amx_bf16")) == "cpu:x86-64-v3"
    assert Capability.of_cpu("x86-64-v9", ("avx512_vnni",)) == "cpu:x86-64-v9"
