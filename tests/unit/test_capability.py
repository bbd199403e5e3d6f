import itertools

import pytest

from aot.errors import InvalidCapability
from aot.schema.capability import CPU_X86_LEVELS, Capability

LEVELS = [Capability.parse(f"cpu:{level}") for level in CPU_X86_LEVELS]


def covers(host: str, artifact: str) -> bool:
    return Capability.parse(host).covers(Capability.parse(artifact))


@pytest.mark.parametrize(("host", "artifact"), list(itertools.product(range(4), range(4))))
def test_a_cpu_level_covers_itself_and_the_lower_ones(host: int, artifact: int) -> None:
    assert LEVELS[host].covers(LEVELS[artifact]) == (host >= artifact)


@pytest.mark.parametrize(
    ("host", "artifact", "expected"),
    [
        ("cuda:sm_90", "cuda:sm_90", True),
        ("cuda:sm_86", "cuda:sm_80", True),
        ("cuda:sm_80", "cuda:sm_86", False),
        ("cuda:sm_120", "cuda:sm_86", False),  # public report: sm_86 binaries crash on sm_120
        ("cuda:sm_100", "cuda:sm_90", False),
        ("cuda:sm_90", "cuda:sm_90a", True),
        ("cuda:sm_103", "cuda:sm_100a", False),
        ("cuda:sm_103", "cuda:sm_100f", True),
        ("rocm:gfx942", "rocm:gfx90a", False),
        ("cpu:x86-64-v4", "cpu:armv8.2-a", False),
        ("cuda:sm_90", "rocm:gfx942", False),
    ],
)
def test_gpu_binaries_run_where_the_vendor_says(host: str, artifact: str, expected: bool) -> None:
    assert covers(host, artifact) is expected


@pytest.mark.parametrize("text", ["", "cpu", "cpu:x86-64-v5", "cuda:90", "cuda:sm_9x", "rocm:942", "tpu:v5", "cpu:"])
def test_an_unknown_capability_is_refused(text: str) -> None:
    with pytest.raises(InvalidCapability):
        Capability.parse(text)
