"""The parent's side: the kernels of one spec, compiled in a sandboxed child with caches of its own."""

from pathlib import Path

from aot.compile.job import CompileJob, JobKind
from aot.compile.kernels.signature import check_signatures
from aot.compile.kernels.targets import target_for
from aot.compile.layout import Layout
from aot.compile.run import Compiled, run_job
from aot.errors import CompileFailed, InvalidSpec
from aot.sandbox import Bubblewrap, OnEvent, ShouldStop
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe, Route
from aot.schema.spec import KernelSource, Spec
from aot.source import OpenedSource

KERNEL_RECIPE = Recipe(mode=Mode.DEFAULT, routes=(Route.KERNEL,))
"""The only recipe of kernels: what else decides the code is in their signatures."""


def compile_kernels(
    source: OpenedSource,
    spec: Spec,
    profile: Profile,
    *,
    scratch: Path,
    sandbox: Bubblewrap | None,
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> Compiled:
    """Compile every signature of the spec's kernel for `profile`, whose card need not be here; no device is used.

    `scratch` is a directory of this build's own, where the results stay. Raises InvalidSpec, InvalidCapability, and the
    families InvalidInput and CompileFailed; `details["log"]` then holds what Triton said, or the end of stderr.
    """
    if not isinstance(spec.source, KernelSource) or source.tree is None:
        raise InvalidSpec("wanted a kernel and its source tree", hint="`aot kernel build` makes such a spec")
    if spec.recipe != KERNEL_RECIPE:
        raise InvalidSpec("a kernel has no recipe of its own", hint="set options in its signatures")
    check_signatures(spec.source.signatures)
    target_for(profile.capability)
    layout = Layout(scratch=scratch.absolute(), isolated=sandbox is not None, source=source.tree.absolute())
    job = CompileJob(
        kind=JobKind.KERNEL,
        tree=str(layout.inside("source")),
        entry=source.entry,
        signatures=spec.source.signatures,
        recipe=spec.recipe,
        profile=profile,
        out=str(layout.inside("out")),
        build=str(layout.inside("build")),
    )
    try:
        return run_job(
            job, layout, limits=spec.limits, sandbox=sandbox, devices=(), on_event=on_event, should_stop=should_stop
        )
    except CompileFailed as error:
        error.details["backend"] = "triton"
        raise
