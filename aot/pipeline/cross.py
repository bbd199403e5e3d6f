"""Code for a CPU that this machine is not: compiled here, its instructions read, and run by nobody yet.

Beside `build_bundle` what `aot build --here` does for a CPU target above its own. The bundle is pending in the
registry until a worker on such a CPU has proven it (`requalify_bundle`); it goes live by no other way.
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from aot.bundle import write_bundle
from aot.compile.options import GEMM_BACKENDS, gemm_backends, refuse_other_machine
from aot.environment import observe_node
from aot.errors import InvalidSpec
from aot.pipeline.build import Question, Staged, compile_draft, read_staged
from aot.pipeline.recheck import refuse_false_facts
from aot.sandbox import Bubblewrap, OnEvent, ShouldStop
from aot.schema.capability import Capability
from aot.schema.environment import NodeFacts, host_cpu
from aot.schema.names import Name
from aot.schema.profile import CPU_TARGETS, Profile, cpu_target_among
from aot.schema.recipe import Recipe
from aot.schema.report import Qualification
from aot.schema.wire.workers import ProfileView
from aot.source import OpenedSource

_ARM_NAMES, _LEAST_ARM = ("cpu-arm", "cpu-aarch64"), Capability("cpu:armv8-a")


def find_cross_profile(name: Name, views: Sequence[ProfileView], *, node: NodeFacts) -> Profile | None:
    """Return the profile of a CPU target that this host does not run and can compile for; None for every other name.

    The registry says what a target is that it lists. Of the others nothing was pushed yet: they have the toolchain of
    what its CPU workers hold, by the same rule as in the registry.
    """
    capability, own = CPU_TARGETS.get(name), host_cpu(node)
    if capability is None or own is None or own.runs(capability) or not _same_machine(own, capability):
        return None
    listed = next((view.profile for view in views if view.profile.name == name), None)
    return listed or cpu_target_among(name, [view.profile for view in views if view.held])


def build_unproven(
    question: Question,
    source: OpenedSource,
    *,
    scratch: Path,
    shared_caches: Path,
    sandbox: Bubblewrap | None,
    builder: str,
    on_event: OnEvent,
    should_stop: ShouldStop,
) -> Staged:
    """Compile as `build_bundle` does, read every instruction, and stage the bundle with a proof of nothing.

    Raises as `build_bundle`, InvalidSpec for a recipe whose choices are measured on the CPU, and QualificationFailed
    where the code is not what the manifest says.
    """
    refuse_measuring(question.spec.recipe, question.profile)
    draft, compiled = compile_draft(
        question,
        source,
        scratch=scratch,
        shared_caches=shared_caches,
        sandbox=sandbox,
        builder=builder,
        on_event=on_event,
        should_stop=should_stop,
    )
    manifest = replace(draft, qualification=nothing_proven(question.profile, observe_node()))
    # The source's code ran in the child that wrote this, so what it says is read from the bytes once more.
    refuse_false_facts(manifest, compiled.paths)
    return read_staged(write_bundle(scratch / "bundle", manifest=manifest, files=compiled.paths).directory)


def nothing_proven(profile: Profile, node: NodeFacts) -> Qualification:
    """Return what is known where nothing has run: which CPU built the code, and what stands for a run."""
    own = host_cpu(node)
    return Qualification(
        numerics="not run",
        profile=profile.name,
        torch=profile.toolchain.torch,
        host_cpu=own,
        not_run=f"a CPU of {own} does not run all code for {profile.capability}; only the instructions were read",
    )


def refuse_measuring(recipe: Recipe, profile: Profile) -> None:
    """Raises InvalidSpec where the compiler would run candidates on the CPU: here they would die of SIGILL.

    With weights outside nothing is tuned on a CPU, and of one backend there is one candidate.
    """
    if recipe.freeze and recipe.mode.tunes and len(gemm_backends(recipe)) != 1:
        raise InvalidSpec(
            f"mode {recipe.mode} with frozen weights measures candidates on the CPU, and this one does not run code "
            f"for {profile.capability}",
            hint=f"build it on a worker of {profile.name}, use mode default, or let it choose between no two: "
            f"--option {GEMM_BACKENDS}=CPP",
        )


def refuse_foreign(name: Name, profile: Profile | None) -> None:
    """Raises InvalidProfile for a CPU profile of another machine, registered or known by its name alone."""
    if profile is not None:
        refuse_other_machine(profile.capability)
    elif name.startswith(_ARM_NAMES):
        refuse_other_machine(_LEAST_ARM)


def _same_machine(own: Capability, other: Capability) -> bool:
    return own.level.startswith("x86") == other.level.startswith("x86")
