"""Hosts that are described, and the host files of the tests."""

from pathlib import Path

import pytest

from aot.cli.doctor import Report
from aot.errors import InvalidInput, MalformedDocument
from aot.hosts import parse_host, read_host
from aot.schema.capability import Capability
from aot.schema.codec import decode, encode, encode_pretty
from aot.schema.devices import CARDS, CPUS
from aot.schema.environment import (
    ContainerFacts,
    Environment,
    Gpu,
    NodeFacts,
    ProcessFacts,
    host_cpu,
)

FILES = sorted((Path(__file__).parents[1] / "hosts").glob("*.json"))
BY_NAME = {card.name: card for card in CARDS.values()}
H100 = Gpu(capability=Capability("cuda:sm_90"), sku="NVIDIA H100 80GB HBM3", memory_bytes=85520809984, sm_count=132)


def environments() -> dict[str, Environment]:
    return {path.stem: decode(path.read_bytes(), Environment) for path in FILES}


def test_a_card_with_facts() -> None:
    assert parse_host("h100-sxm,driver=550,torch=2.12") == Environment(
        node=NodeFacts(driver="550", gpus=(H100,)), container=ContainerFacts(torch="2.12.0")
    )


def test_what_is_not_said_is_not_observed() -> None:
    assert parse_host("h100-sxm") == Environment(node=NodeFacts(gpus=(H100,)))
    assert parse_host("driver=550") == Environment(node=NodeFacts(driver="550"))
    assert parse_host("") == Environment()
    assert parse_host("epyc-genoa").node.gpus is None
    assert parse_host("epyc-genoa,no-gpu").node.gpus == ()


def test_a_cpu_brings_its_features() -> None:
    node = parse_host("xeon-sapphire-rapids").node
    assert (node.machine, node.cpu) == ("x86_64", "cpu:x86-64-v4")
    assert {"avx512f", "amx_tile", "fma"} <= set(node.cpu_features or ())
    assert host_cpu(node) == CPUS["xeon-sapphire-rapids"].capability


def test_a_cpu_of_fixed_vectors_says_their_length() -> None:
    code = Capability.parse("cpu:armv8-a+bf16+sve_vl256")
    assert [host_cpu(parse_host(name).node).runs(code) for name in ("graviton3", "graviton4", "graviton2")] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4+avx512_vnni", "armv8.2-a"])
def test_a_level_is_a_cpu(name: str) -> None:
    assert host_cpu(parse_host(name).node) == f"cpu:{name}"


def test_cards_may_be_several_and_different_beside_a_cpu() -> None:
    node = parse_host("epyc-milan, h100-sxm, h100-sxm, t4").node
    assert [gpu.sku for gpu in node.gpus or ()] == [H100.sku, H100.sku, "Tesla T4"]
    assert node.cpu == "cpu:x86-64-v3"


def test_a_slice_says_what_it_has_of_its_card() -> None:
    described = parse_host("a100-sxm4-40gb,mig=3g.20gb,gpu_memory=19968MiB,sm_count=42")
    assert described.node.gpus == (
        Gpu(
            capability=Capability("cuda:sm_80"),
            sku="NVIDIA A100-SXM4-40GB",
            memory_bytes=19968 << 20,
            sm_count=42,
            mig="3g.20gb",
        ),
    )
    with pytest.raises(InvalidInput, match="not said"):
        parse_host("a100-sxm4-40gb,mig=3g.20gb")


def test_a_build_says_its_cuda() -> None:
    assert parse_host("torch=2.13+cu130").container == ContainerFacts(torch="2.13.0+cu130", cuda="13.0")
    assert parse_host("torch=2.13.0+cu128,cuda=12.9").container.cuda == "12.9"
    assert parse_host("torch=2.13.0+cpu").container.cuda is None


def test_facts_of_a_process() -> None:
    assert parse_host("deterministic=true,autocast=cuda:bfloat16,world_size=8,rank=3").process == ProcessFacts(
        deterministic=True, autocast="cuda:bfloat16", world_size=8, rank=3
    )


def test_what_is_described_and_what_is_read_have_equal_bytes() -> None:
    described = parse_host("h100-sxm,driver=550")
    assert encode(decode(encode(described), Environment)) == encode(described)
    assert b"process" not in encode(described)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("h100", "'h100' is no known card, CPU or level", "h100-sxm"),
        ("epyc-gena", "is no known card, CPU or level", "epyc-genoa"),
        ("x86-64-v9", "is no known card, CPU or level", ""),
        ("h100-sxm,drver=550", "'drver' is no fact of a host", "driver"),
        ("epyc-genoa,epyc-rome", "wanted one CPU", ""),
        ("epyc-genoa,h100-sx", "wanted one CPU, or a card", "h100-sxm"),
        ("h100-sxm,driver=new", "driver=new is not understood", ""),
        ("h100-sxm,driver=550,driver=570", "said twice", ""),
        ("threads=many", "threads=many is not understood", ""),
        ("gpu_memory=80GiB", "gpu_memory is of a card", ""),
        ("h100-sxm,no-gpu", "found both", ""),
        ("h100-sxm,gpu_memory=80 GB", "wanted a size", ""),
        ("matmul_precision=low", "wanted highest, high, medium", ""),
        ("grad=yes", "wanted true or false", ""),
    ],
)
def test_what_is_not_known_is_refused_with_what_is_near(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_host(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_file_of_the_doctor_is_a_host(tmp_path: Path) -> None:
    environment = parse_host("h100-sxm,driver=550")
    path = tmp_path / "host.json"
    path.write_bytes(encode(Report(environment=environment, problems=(), registry="somewhere", exit_code=0)))
    assert parse_host(str(path)) == environment
    path.write_bytes(encode_pretty(environment))
    assert read_host(path) == environment


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"environment": 3}',
        b'{"format": 1, "nod": {}}',
        b"\xff",
        b'{"environment":' + b"[" * 100_000,
    ],
    ids=["nothing", "a list", "an object", "no environment", "another field", "no text", "deeper than Python goes"],
)
def test_a_file_that_is_no_host_is_malformed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "host.json"
    path.write_bytes(content)
    with pytest.raises(MalformedDocument):
        read_host(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.json cannot be read"):
        parse_host(str(tmp_path / "absent.json"))


def test_host_files_are_many_and_each_is_another_host() -> None:
    contents = [encode(environment) for environment in environments().values()]
    assert len(contents) >= 40
    assert len(set(contents)) == len(contents)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_host_file_is_canonical_and_agrees_with_the_tables(path: Path) -> None:
    environment = read_host(path)
    assert encode_pretty(environment) == path.read_bytes()
    node = environment.node
    for gpu in node.gpus or ():
        card = BY_NAME.get(gpu.sku)
        if card is None:
            assert not gpu.capability.is_known, "a card that is in no table is of no known target"
            continue
        assert gpu.capability == card.capability
        if gpu.mig is None:
            assert gpu.sm_count == card.multiprocessors
            assert 0.97 * card.memory_bytes < gpu.memory_bytes < card.gigabytes * 1.1 * (1 << 30)
        else:
            assert gpu.memory_bytes < card.memory_bytes and (gpu.sm_count or 0) < (card.multiprocessors or 0)
    if node.cpu is None:
        return
    cpu = host_cpu(node)
    assert cpu is not None and cpu.is_known and cpu.covers(node.cpu)
    assert any(
        cpu.covers(known.capability) and set(known.features) == set(node.cpu_features or ()) for known in CPUS.values()
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_name_of_a_host_file_says_what_it_is(path: Path) -> None:
    environment = read_host(path)
    container, node = environment.container, environment.node
    words = path.stem
    if "-driver-" in words and "not-loaded" not in words and "libraries" not in words:
        assert (node.driver or "").startswith(f"{words.partition('-driver-')[2][:3]}.")
    if "-torch-2." in words:
        assert (container.torch or "").startswith(words.partition("-torch-")[2][:4])
    for build in ("cpu", "cu126", "cu128", "cu130", "rocm"):
        if words.endswith(f"-{build}"):
            assert f"+{build}" in (container.torch or "")
    if "-mig-" in words:
        assert all(gpu.mig for gpu in node.gpus or ())
    if (container.torch or "").partition("+")[2].startswith("cu"):
        local = (container.torch or "").partition("+cu")[2]
        assert container.cuda == f"{local[:2]}.{local[2:]}"
    assert (container.hip is not None) == ("+rocm" in (container.torch or ""))


def test_host_files_hold_every_kind_of_host() -> None:
    hosts = list(environments().values())
    drivers = {(host.node.driver or "none").split(".")[0] for host in hosts}
    assert {"470", "525", "535", "550", "570", "580", "none"} <= drivers
    builds = {(host.container.torch or "none").replace(".0+", "+") for host in hosts}
    for release in ("2.11", "2.12", "2.13"):
        assert any(build.startswith(f"{release}+cu") for build in builds) and f"{release}+cpu" in builds
    assert {"none"} <= builds
    assert any(host.container.libc == "musl" for host in hosts)
    assert any(host.node.gpus is None for host in hosts) and any(host.node.gpus == () for host in hosts)
    assert any(len({gpu.sku for gpu in host.node.gpus or ()}) > 1 for host in hosts)
    assert any(gpu.mig for host in hosts for gpu in host.node.gpus or ())
    families = {gpu.capability.family for host in hosts for gpu in host.node.gpus or ()}
    assert families == {"cuda", "rocm"}
    assert {host.node.cpu.level for host in hosts if host.node.cpu} >= {
        *("x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8.2-a", "armv8.4-a", "armv9-a"),
    }
