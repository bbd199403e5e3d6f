"""Values for tests of the routes `bytecode` and `function`, as `tests.builders` has them for packages."""

from typing import Any

from aot.pipeline.bytecode import BYTECODE_RECIPE
from aot.proof import REBUILT
from aot.schema.artifact import Artifact, Coverage, CoverageKind
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard, ProgramGuard
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Namespace
from aot.schema.recipe import Recipe, Route
from aot.schema.report import Qualification
from aot.schema.spec import BytecodeSource, Distribution, Spec
from tests.builders import a_file, a_manifest, a_profile, a_spec, an_artifact, host_guards

INTERPRETER = "cpython-311 a70d0d0a"
FUNCTION_RECIPE = Recipe(routes=(Route.FUNCTION,))


def a_distribution(**deviations: Any) -> Distribution:
    fields: dict[str, Any] = {
        "name": "toy-box",
        "version": "1.2",
        "record": Digest.of(b"record"),
        "files": ("toy/__init__.py", "toy/box.py"),
    }
    return Distribution(**(fields | deviations))


def a_bytecode_spec(**deviations: Any) -> Spec:
    fields: dict[str, Any] = {
        "namespace": Namespace("default"),
        "name": Name("image"),
        "source": BytecodeSource(interpreter=INTERPRETER, distributions=(a_distribution(),)),
        "profile": Name("cpu-v3"),
        "recipe": BYTECODE_RECIPE,
    }
    return Spec(**(fields | deviations))


def a_bytecode_artifact(**deviations: Any) -> Artifact:
    fields: dict[str, Any] = {
        "region": "toy-box",
        "instances": (),
        "route": Route.BYTECODE,
        "capability": Capability("cpu:x86-64-v3"),
        "coverage": Coverage(kind=CoverageKind.EXACT),
        "files": (a_file("bytecode/toy-box.tar", b"archive"),),
        "host_guards": (
            HostGuard(kind="bytecode", value=INTERPRETER),
            HostGuard(kind="distribution", value=a_distribution().guard),
        ),
        "facts": {"modules": "2"},
    }
    return Artifact(**(fields | deviations))


def a_bytecode_manifest(**deviations: Any) -> Manifest:
    """As a worker publishes it, having compiled the same again."""
    profile = a_profile()
    fields: dict[str, Any] = {
        "artifacts": (a_bytecode_artifact(),),
        "qualification": Qualification(numerics=REBUILT, profile=profile.name, torch=profile.toolchain.torch),
        "canaries": (),
    }
    return a_manifest(a_bytecode_spec(), profile=profile, **(fields | deviations))


def a_function_artifact(**deviations: Any) -> Artifact:
    fields: dict[str, Any] = {
        "route": Route.FUNCTION,
        "files": (a_file("function/compiled.bin", b"pickle"), a_file("lib/kernel.so", b"library")),
        "host_guards": (
            *host_guards(),
            HostGuard(kind="python", value="3.11"),
            HostGuard(kind="interpreter", value="3.11.7"),
        ),
        "program_guards": (
            ProgramGuard(kind="CONSTANT_MATCH", source="L['self'].scale", condition="L['self'].scale == 2.0"),
            ProgramGuard(kind="TORCH_FUNCTION_STATE"),
        ),
        "elf": None,
    }
    return an_artifact(**(fields | deviations))


def a_function_manifest(**deviations: Any) -> Manifest:
    fields = {"artifacts": (a_function_artifact(),), "canaries": ()}
    return a_manifest(a_spec(recipe=FUNCTION_RECIPE), **(fields | deviations))
