"""Values for tests of the routes `bytecode`, `cache` and `function`, as `tests.builders` has them for packages."""

from typing import Any

from aot.pipeline.bytecode import BYTECODE_RECIPE
from aot.proof import REBUILT, RECAPTURED
from aot.schema.artifact import Artifact, Coverage, CoverageKind
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard, ProgramGuard
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Namespace
from aot.schema.recipe import Recipe, Route, command_recipe
from aot.schema.report import Qualification
from aot.schema.spec import BytecodeSource, CommandSource, Distribution, Spec
from tests.builders import a_blob, a_file, a_manifest, a_profile, a_spec, an_artifact, host_guards

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


def a_capture_source(**deviations: Any) -> CommandSource:
    fields: dict[str, Any] = {
        "command": ("python", "train.py", "--steps", "2"),
        "tree": a_blob(b"a packed tree"),
        "entries": Digest.of(b"entries"),
        "requirements": ("torchvision==0.28.0",),
    }
    return CommandSource(**(fields | deviations))


def a_capture_artifact(**deviations: Any) -> Artifact:
    """One graph with its joint graph and its code, and one kernel of Triton's."""
    fields: dict[str, Any] = {
        "region": "caches",
        "instances": (),
        "route": Route.CACHE,
        "capability": Capability("cpu:x86-64-v3"),
        "coverage": Coverage(kind=CoverageKind.EXACT, constraints=("1 graphs, as they were captured",)),
        "files": (
            a_file("inductor/aotautograd/key/one", b"joint graph"),
            a_file("inductor/cd/code.cpp", b"source"),
            a_file("inductor/cd/code.so", b"code"),
            a_file("inductor/fxgraph/ab/key/one", b"graph"),
            a_file("triton/KEY/__grp__add.json", b'{"child_paths":{"add.cubin":"[AOT_CACHES]/triton/KEY/add.cubin"}}'),
            a_file("triton/KEY/add.cubin", b"cubin"),
        ),
        "host_guards": (
            *host_guards(),
            HostGuard(kind="isa", value="x86-64-v3"),
            HostGuard(kind="python", value="3.11"),
        ),
        "facts": {
            "factor:isa": "x86-64-v3",
            "factor:torch": "2.13.0+cpu",
            "first_seconds": "90.00",
            "graphs": "1",
            "key_tag": "aot-x86-64-v3-python3.11",
            "second_seconds": "3.00",
        },
    }
    return Artifact(**(fields | deviations))


def a_capture_manifest(source: CommandSource | None = None, **deviations: Any) -> Manifest:
    """As a worker publishes it, having run the command itself."""
    profile = a_profile()
    recipe = command_recipe({"TORCHINDUCTOR_MAX_AUTOTUNE": "1"})
    fields: dict[str, Any] = {
        "artifacts": (a_capture_artifact(),),
        "qualification": Qualification(
            numerics=RECAPTURED, profile=profile.name, torch=profile.toolchain.torch, seconds=93.0
        ),
        "canaries": (),
    }
    spec = a_spec("trainer", source=source or a_capture_source(), recipe=recipe)
    return a_manifest(spec, profile=profile, **(fields | deviations))
