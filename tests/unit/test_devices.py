"""Cards and CPUs by name."""

import re
import shutil
import subprocess

import pytest

from aot.schema.devices import CARDS, CPUS


def test_every_row_has_a_source_and_a_target_that_is_known() -> None:
    assert all(row.source and row.capability.is_known for row in (*CARDS.values(), *CPUS.values()))


def test_names_of_cards_are_unique_and_no_cpus() -> None:
    assert len({card.name for card in CARDS.values()}) == len(CARDS)
    assert not CARDS.keys() & CPUS.keys()


@pytest.mark.parametrize("name", CARDS)
def test_what_a_driver_reports_is_near_what_the_maker_states(name: str) -> None:
    card = CARDS[name]
    if card.reported_bytes is not None:
        assert 0.9 * 10**9 < card.reported_bytes / card.gigabytes < 1.1 * (1 << 30)
    assert card.memory_bytes == (card.reported_bytes or card.gigabytes * 10**9)


def test_cards_have_the_number_of_multiprocessors_that_tuning_depends_on() -> None:
    assert CARDS["h100-sxm"].multiprocessors == 132
    assert CARDS["h100-pcie"].multiprocessors == 114
    assert CARDS["a10"].multiprocessors is None  # not stated by any source that is named here


@pytest.mark.parametrize("name", [name for name, cpu in CPUS.items() if cpu.machine == "x86_64"])
def test_a_cpu_has_nothing_that_its_compiler_target_has_not(name: str) -> None:
    march = CPUS[name].source.removeprefix("GCC ")
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    run = subprocess.run([compiler, f"-march={march}", "-dM", "-E", "-"], input="", text=True, capture_output=True)
    if run.returncode:
        pytest.skip(f"this gcc does not know {march}")
    macros = {name.lower().replace("_", "") for name in re.findall(r"#define __(\w+?)__ 1", run.stdout)}
    wanted = {feature.replace("_", "") for feature in CPUS[name].capability.features}
    assert wanted <= macros, wanted - macros
    if march.startswith("skylake"):
        assert "avx512vnni" not in macros  # the test can tell


@pytest.mark.parametrize("name", [name for name, cpu in CPUS.items() if cpu.machine == "aarch64"])
def test_an_arm_cpu_says_its_vector_length_where_it_has_vectors_of_one(name: str) -> None:
    cpu = CPUS[name]
    assert (cpu.sve_bits is not None) == ("sve" in cpu.features)
    assert not any(feature.startswith("sve_vl") for feature in cpu.features)
