"""Build keys: what changes generated code is a factor, what does not is none, and a change is named."""

from typing import Any

import pytest

from aot.keys import changes_between, factors_of, key_of, queue_for
from aot.schema.profile import Profile
from aot.schema.recipe import Dimension, Mode, Recipe, Regions, Route
from aot.schema.spec import Limits, Spec
from tests.builders import (
    a_device,
    a_file,
    a_frozen_spec,
    a_gpu_profile,
    a_profile,
    a_program,
    a_source,
    a_spec,
    a_toolchain,
    altered,
)


def changed(spec: Spec, *, profile: Profile | None = None) -> list[str]:
    before = factors_of(a_spec(), a_profile())
    after = factors_of(spec, profile or a_profile())
    assert (key_of(before) == key_of(after)) == (not changes_between(before, after))
    return [change.name for change in changes_between(before, after)]


@pytest.mark.parametrize(
    ("deviation", "factors"),
    [
        ({"source": a_source(b"another tree")}, ["source"]),
        ({"source": a_source(entry="model:other")}, ["entry"]),
        ({"source": a_source(requirements=("transformers==5.24.0",))}, ["requirements"]),
        ({"recipe": Recipe(mode=Mode.DEFAULT)}, ["mode"]),
        ({"recipe": Recipe(fullgraph=False)}, ["fullgraph"]),
        ({"recipe": Recipe(dynamic=True)}, ["dynamic"]),
        ({"recipe": Recipe(regions=Regions.AUTO)}, ["regions"]),
        ({"recipe": Recipe(options={"epilogue_fusion": False})}, ["option:epilogue_fusion"]),
        ({"recipe": Recipe(environment={"TORCH_X": "1"})}, ["environment:TORCH_X"]),
        ({"recipe": Recipe(dimensions=(Dimension(name="batch", high=8),))}, ["dimensions"]),
        ({"recipe": Recipe(routes=(Route.PACKAGE,))}, ["routes"]),
    ],
)
def test_every_option_is_a_factor_of_its_own(deviation: dict[str, Any], factors: list[str]) -> None:
    assert changed(a_spec(**deviation)) == factors


@pytest.mark.parametrize(
    "deviation",
    [
        {"name": "another"},
        {"namespace": "team"},
        {"limits": Limits(wall_seconds=1.0)},
        {"weights": (a_file("model.safetensors", b"weights"),)},
    ],
)
def test_names_limits_and_unfrozen_weights_are_no_factors(deviation: dict[str, Any]) -> None:
    assert changed(a_spec(**deviation)) == []


def test_weights_are_a_factor_of_a_frozen_build() -> None:
    other = a_frozen_spec(weights=(a_file("model.safetensors", b"other weights"),))
    before, after = factors_of(a_frozen_spec(), a_profile()), factors_of(other, a_profile())
    assert [change.name for change in changes_between(before, after)] == ["weights"]


@pytest.mark.parametrize(
    ("deviation", "factors"),
    [
        ({"capability": "cpu:x86-64-v4"}, ["capability"]),
        ({"toolchain": a_toolchain(torch="2.14.1+cpu")}, ["torch"]),
        ({"toolchain": a_toolchain(compiler="g++ 13.1.0")}, ["compiler"]),
        ({"toolchain": a_toolchain(libc="glibc 2.39")}, ["libc"]),
        ({"toolchain": a_toolchain(triton="3.7.0", cuda="13.0")}, ["triton", "cuda"]),
        ({"device": a_device()}, ["device"]),
        ({"threads": 4}, ["threads"]),
        ({"toolchain": a_toolchain(python="3.12.0")}, ["python"]),
        ({"toolchain": a_toolchain(python="3.11.9")}, []),  # the same bytecode
        ({"packages": {"numpy": "2.4.6"}}, []),
    ],
)
def test_what_a_profile_is_made_of_is_a_factor_and_its_name_is_not(
    deviation: dict[str, Any], factors: list[str]
) -> None:
    assert changed(a_spec(profile="renamed"), profile=a_profile("renamed", **deviation)) == factors


def test_python_is_no_factor_of_a_package_from_an_exported_program() -> None:
    spec = a_spec(source=a_program(), recipe=Recipe(routes=(Route.PACKAGE,)))
    newer = a_profile(toolchain=a_toolchain(python="3.13.0"))
    assert key_of(factors_of(spec, a_profile())) == key_of(factors_of(spec, newer))


def test_the_order_of_options_and_requirements_does_not_matter() -> None:
    one = a_spec(source=a_source(requirements=("a==1", "b==2")), recipe=Recipe(options={"x": 1, "y": 2}))
    other = a_spec(source=a_source(requirements=("b==2", "a==1")), recipe=Recipe(options={"y": 2, "x": 1}))
    assert key_of(factors_of(one, a_profile())) == key_of(factors_of(other, a_profile()))


def test_a_change_says_both_values() -> None:
    before = factors_of(a_spec(), a_profile())
    after = factors_of(a_spec(recipe=Recipe(mode=Mode.DEFAULT)), a_profile())
    (change,) = changes_between(before, after)
    assert (change.name, change.before, change.after) == ("mode", '"max-autotune"', '"default"')


def test_queues_follow_device_and_toolchain_but_not_the_name() -> None:
    gpu = a_gpu_profile()
    assert queue_for(gpu) == queue_for(altered(gpu, name=a_profile("other").name))
    others = [
        a_gpu_profile(device=a_device(sku="NVIDIA H100 PCIe")),
        a_gpu_profile(capability="cuda:sm_80"),
        altered(gpu, toolchain=altered(gpu.toolchain, torch="2.14.1+cu130")),
        altered(gpu, toolchain=altered(gpu.toolchain, triton="3.9.0")),
        altered(gpu, toolchain=altered(gpu.toolchain, compiler="g++ 13.1.0")),
    ]
    assert len({queue_for(gpu), *map(queue_for, others)}) == len(others) + 1
