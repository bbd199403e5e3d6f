"""The parent's side: the kernels of one spec, or those that packages keep, compiled in a sandboxed child with caches of
its own."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aot.compile.job import CompileJob, JobKind
from aot.compile.kernels.signature import check_signatures
from aot.compile.kernels.targets import target_for
from aot.compile.layout import Layout
from aot.compile.run import Compiled, run_job
from aot.errors import CompileFailed, InvalidSpec
from aot.sandbox import Bubblewrap, OnEvent, ShouldStop
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe, Route
from aot.schema.spec import KernelSource, Limits, Spec
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


def compile_kept_kernels(
    kept: Sequence[Path],
    profile: Profile,
    *,
    scratch: Path,
    limits: Limits,
    sandbox: Bubblewrap | None,
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> Compiled:
    """Compile what packages keep of their kernels (`kept`, one file each) for `profile`, whose card need not be here.

    The result has one artifact for each file, in their order, whose files are its cubins and nothing else. Nothing of a
    model's source is run, and no device is used. `scratch` is a directory of this build's own, where the results stay.
    Raises InvalidCapability for a profile that is for no card of NVIDIA's, and the families InvalidInput and
    CompileFailed; `details` then say which kernel it was.
    """
    target_for(profile.capability)
    tree = scratch / "kept"
    tree.mkdir(parents=True)
    for index, place in enumerate(kept):
        shutil.copyfile(place, tree / f"{index:06d}")
    layout = Layout(scratch=scratch.absolute(), isolated=sandbox is not None, source=tree.absolute())
    out, build = (str(layout.inside(place)) for place in ("out", "build"))
    job = CompileJob(kind=JobKind.KEPT, tree=str(layout.inside("source")), profile=profile, out=out, build=build)
    step = ""

    def tell(event: Mapping[str, Any]) -> None:
        nonlocal step
        step = str(event.get("step", step))
        on_event(event)

    try:
        return run_job(job, layout, limits=limits, sandbox=sandbox, devices=(), on_event=tell, should_stop=should_stop)
    except CompileFailed as error:
        error.details["backend"] = "triton"
        error.details.setdefault("kernel", step)  # where the child died of it
        raise
