"""The catalogue of targets, compared with the tools that generate for them, where those are here."""

import inspect
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from aot.facts import levels as decoded_levels
from aot.schema.capability import Capability
from aot.schema.targets import ARM_FEATURES, ARM_LEVELS, GFXS, SMS, X86_FEATURES, X86_LEVELS, level_features

PTX = ".version 9.0\n.target sm_{}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"
TARGETS = [f"{version}{suffix}" for version, row in SMS.items() for suffix in row.suffixes]


def test_every_row_has_a_source() -> None:
    assert all(row.source for rows in (SMS, GFXS, X86_FEATURES, ARM_FEATURES) for row in rows.values())


def test_a_feature_is_needed_or_stood_for_by_nothing_that_is_not_in_the_tables() -> None:
    for table, levels in ((X86_FEATURES, X86_LEVELS), (ARM_FEATURES, ARM_LEVELS)):
        assert all(set(row.needs) <= table.keys() and row.above in levels for row in table.values())
    assert not X86_FEATURES.keys() & level_features("x86-64-v4")
    assert all(set(row.generic_of) <= GFXS.keys() for row in GFXS.values())


def test_levels_are_those_that_decoded_code_is_measured_by() -> None:
    assert dict(decoded_levels.X86_LEVELS) == X86_LEVELS


@pytest.fixture(scope="module")
def ptxas() -> Path:
    package = find_spec("triton")
    path = Path(package.origin or "").parent / "backends/nvidia/bin/ptxas-blackwell" if package else Path("absent")
    if not path.exists():
        pytest.skip("this Triton has no ptxas for every architecture")
    return path


@pytest.mark.parametrize("ptx", TARGETS)
def test_ptx_compiles_for_the_targets_that_cover_it(ptxas: Path, ptx: str) -> None:
    """NVIDIA's assembler is the judge; it takes PTX of a family for the plain targets of that family too."""
    accepted = {
        target
        for target in TARGETS
        if subprocess.run(
            [ptxas, "-arch", f"sm_{target}", "-o", "/dev/null", "-"],
            input=PTX.format(ptx),
            text=True,
            capture_output=True,
        ).returncode
        == 0
    }
    of_device = {
        target for target in TARGETS if Capability(f"cuda:sm_{target}").runs(Capability(f"cuda:compute_{ptx}"))
    }
    # A plain sm_90 is a device of 9.0 to `runs`, and a target without suffix to the assembler.
    plain = {target for target in of_device - accepted if target.isdecimal()}
    assert accepted == of_device - plain
    assert plain == ({ptx[:-1]} if ptx.endswith("a") else set())


@pytest.mark.torch
def test_architectures_are_those_that_torch_names() -> None:
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    named = re.findall(r"'(\d+\.\d+a?)'", inspect.getsource(cpp_extension._get_cuda_arch_flags))
    assert named
    ours = {f"{version // 10}.{version % 10}{suffix}" for version, row in SMS.items() for suffix in row.suffixes}
    older = {"7.0", "7.2"} | {name for name in named if int(name.split(".")[0]) < 7}
    assert {name for name in ours if not name.endswith("f")} == set(named) - older


@pytest.mark.parametrize(
    ("level", "macro"), [("x86-64-v2", "SSE4_2"), ("x86-64-v3", "AVX2"), ("x86-64-v4", "AVX512VL")]
)
def test_a_compiler_uses_of_a_level_what_the_level_stands_for(level: str, macro: str) -> None:
    compiler = shutil.which("gcc")
    if (
        compiler is None
        or "x86" not in subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True).stdout
    ):
        pytest.skip("no gcc for x86-64")
    macros = subprocess.run(
        [compiler, f"-march={level}", "-dM", "-E", "-"], input="", text=True, capture_output=True, check=True
    ).stdout
    assert f"__{macro}__" in macros
    stated = {name.lower() for name in re.findall(r"#define __(AVX\w+?|BMI2?|F16C|FMA|POPCNT|SSE\w+?)__ 1", macros)}
    spelled = {"bmi": "bmi1", "sse3": "pni"}
    have = level_features(level) or frozenset()
    assert {spelled.get(name, name) for name in stated} - {"sse2_math", "sse_math"} <= have
