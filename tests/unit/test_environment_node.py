"""Node facts on hosts that this one is not."""

import os
from pathlib import Path

import pytest

from aot.environment import Host, observe_node
from aot.environment.cpu import usable_cores
from aot.schema.capability import Capability
from aot.schema.environment import NodeFacts, host_cpu
from tests.hosts import CPUS, a_cpuinfo, a_host

V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
MEMORY_BYTES = 16384000 * 1024


@pytest.mark.parametrize("cpu", CPUS)
def test_the_level_of_a_cpu(tmp_path, cpu):
    machine, model, flags, level = CPUS[cpu]
    node = observe_node(a_host(tmp_path, cpu=cpu))
    assert node.machine == machine
    assert node.cpu == (None if level is None else Capability.parse(level))
    assert node.cpu_features == (tuple(sorted(flags.split())) if machine != "riscv64" else None)
    assert node.cpu_model == {
        "x86_64": model,
        "aarch64": "implementer 0x41 part 0xd40",
        "riscv64": None,
    }.get(machine)


def test_two_kinds_of_cores_have_what_both_have(tmp_path):
    fast = a_cpuinfo(CPUS["skylake"][2], processors=1)
    slow = a_cpuinfo(CPUS["haswell"][2], processors=1).replace("processor\t: 0", "processor\t: 1")
    node = observe_node(a_host(tmp_path, files={"/proc/cpuinfo": fast + slow}))
    assert node.cpu == "cpu:x86-64-v3"
    assert "avx512f" not in (node.cpu_features or ())


def test_nothing_to_read_is_nothing_observed(tmp_path):
    node = observe_node(Host(root=tmp_path, machine="x86_64", packages=(), nvml="libnothing-of-this-name.so.1"))
    assert (node.cpu, node.cpu_model, node.cpu_features) == (None, None, None)
    assert (node.memory_bytes, node.kernel, node.driver) == (None, None, None)
    assert node.gpus == ()


@pytest.mark.parametrize("text", ["", "\0\xff\n: :\n\n\n", "processor", "flags: sse2\n\nflags: sse2"])
def test_a_garbled_cpuinfo_is_nothing_observed(tmp_path, text):
    node = observe_node(a_host(tmp_path, files={"/proc/cpuinfo": text, "/proc/meminfo": text}))
    assert (node.cpu, node.memory_bytes) == (None, None)


def test_this_host_is_observed():
    node = observe_node(Host())
    assert node.machine == os.uname().machine
    assert node.kernel == os.uname().release
    assert node.memory_bytes is not None and node.memory_bytes > 1 << 28
    assert node.cpu is not None and node.cpu.family == "cpu"


@pytest.mark.parametrize(
    ("files", "memory_bytes"),
    [
        ({}, MEMORY_BYTES),
        (
            {"/proc/self/mountinfo": V2_MOUNTS, "/proc/self/cgroup": "0::/", f"{V2}/memory.max": "4294967296\n"},
            4 << 30,
        ),
        (
            {"/proc/self/mountinfo": V2_MOUNTS, "/proc/self/cgroup": "0::/", f"{V2}/memory.max": "max\n"},
            MEMORY_BYTES,
        ),
        (  # the group above is tighter than ours
            {
                "/proc/self/mountinfo": V2_MOUNTS,
                "/proc/self/cgroup": "0::/pods/one",
                f"{V2}/pods/one/memory.max": "4294967296",
                f"{V2}/pods/memory.max": "2147483648",
            },
            2 << 30,
        ),
        (  # the path of a group outside the container's own namespace
            {
                "/proc/self/mountinfo": V2_MOUNTS,
                "/proc/self/cgroup": "0::/../../kubepods/x",
                f"{V2}/memory.max": "3221225472",
            },
            3 << 30,
        ),
        (  # version 1, whole tree mounted
            {
                "/proc/self/mountinfo": V1_MOUNTS.format(root="/"),
                "/proc/self/cgroup": "4:memory:/group\n1:cpu,cpuacct:/\n0::/\n",
                f"{V1}/group/memory.limit_in_bytes": "1073741824\n",
                f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
            },
            1 << 30,
        ),
        (  # version 1 as Docker mounts it: only the container's group is visible
            {
                "/proc/self/mountinfo": V1_MOUNTS.format(root="/docker/abc"),
                "/proc/self/cgroup": "4:memory:/docker/abc\n0::/\n",
                f"{V1}/memory.limit_in_bytes": "536870912\n",
            },
            1 << 29,
        ),
        (  # above what the machine has: no limit
            {
                "/proc/self/mountinfo": V2_MOUNTS,
                "/proc/self/cgroup": "0::/",
                f"{V2}/memory.max": str(1 << 50),
            },
            MEMORY_BYTES,
        ),
    ],
    ids=["none", "v2", "v2 max", "v2 above", "v2 outside", "v1", "v1 docker", "v2 huge"],
)
def test_memory_is_what_the_container_may_use(tmp_path, files, memory_bytes):
    assert observe_node(a_host(tmp_path, files=files)).memory_bytes == memory_bytes


CPU_V1 = "/sys/fs/cgroup/cpu,cpuacct"


@pytest.mark.parametrize(
    ("files", "allowed", "cores"),
    [
        ({}, "0-15", 16),
        ({}, "0-3,8,10-11", 7),
        ({}, "5", 1),
        ({}, "nonsense", None),
        (
            {
                "/proc/self/mountinfo": V2_MOUNTS,
                "/proc/self/cgroup": "0::/",
                f"{V2}/cpu.max": "350000 100000",
            },
            "0-15",
            4,
        ),
        (
            {"/proc/self/mountinfo": V2_MOUNTS, "/proc/self/cgroup": "0::/", f"{V2}/cpu.max": "10000 100000"},
            "0-15",
            1,
        ),
        (
            {"/proc/self/mountinfo": V2_MOUNTS, "/proc/self/cgroup": "0::/", f"{V2}/cpu.max": "max 100000"},
            "0-7",
            8,
        ),
        (
            {
                "/proc/self/mountinfo": V1_MOUNTS.format(root="/"),
                "/proc/self/cgroup": "1:cpu,cpuacct:/pod",
                f"{CPU_V1}/pod/cpu.cfs_quota_us": "200000",
                f"{CPU_V1}/pod/cpu.cfs_period_us": "100000",
                f"{CPU_V1}/cpu.cfs_quota_us": "-1",
                f"{CPU_V1}/cpu.cfs_period_us": "100000",
            },
            "0-15",
            2,
        ),
    ],
    ids=["all", "list", "one", "garbled", "v2", "v2 tenth", "v2 max", "v1"],
)
def test_cores_are_those_that_the_process_may_keep_busy(tmp_path, files, allowed, cores):
    host = a_host(tmp_path, files=files, cpu="zen2", processors=16, allowed=allowed)
    assert usable_cores(host) == cores


@pytest.mark.parametrize("path", [Path("/"), Path("/proc")])
def test_a_root_may_be_any_directory(path):
    assert observe_node(Host(root=path)).machine == os.uname().machine


@pytest.mark.parametrize(("text", "bits"), [("32\n", 256), ("16\n", 128), ("", None), ("0\n", None), ("wide", None)])
def test_the_length_of_vectors_is_that_of_a_new_process(tmp_path, text, bits):
    host = a_host(tmp_path, cpu="graviton3", files={"/proc/sys/abi/sve_default_vector_length": text})
    assert observe_node(host).sve_bits == bits


def test_a_cpu_is_its_level_with_its_features(tmp_path):
    node = observe_node(a_host(tmp_path / "x86", cpu="sapphire-rapids"))
    assert (node.cpu, host_cpu(node)) == ("cpu:x86-64-v4", "cpu:x86-64-v4+amx_tile")
    arm = a_host(tmp_path / "arm", cpu="graviton3", files={"/proc/sys/abi/sve_default_vector_length": "32"})
    found = host_cpu(observe_node(arm))
    assert found is not None and found.features >= {"bf16", "i8mm", "sve", "sve_vl256"}


def test_a_cpu_without_features_is_its_level_alone():
    assert host_cpu(NodeFacts()) is None
    assert host_cpu(NodeFacts(cpu=Capability("cpu:x86-64-v4"))) == "cpu:x86-64-v4"
