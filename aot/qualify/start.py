"""The start of a pod, and the start of the same program without us: two children that are watched from outside.

Each builds the module, makes one call on the first example, and says so at once; the parent takes the time. Nothing
else happens here, so that what the parent counts is what a pod would do. A recipe may cover other sizes than the
example's (buckets of 128 and 512, an example of 64): it is then resized to the nearest that is covered.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aot.compile.dimensions import nearest_point
from aot.compile.program import Example, Program
from aot.compile.shapes import locate, measure, resize
from aot.qualify.imports import compiler_modules
from aot.qualify.job import BUILT, OUTPUT, Claim, ProofJob, Task, Tell
from aot.schema.artifact import Coverage


def run_start(job: ProofJob, program: Program, tell: Tell) -> Claim:
    """Make the first call, eagerly or on the bundle. Raises what loading and calling raise."""
    example = covered_example(program, job.coverages)
    tell(BUILT)
    function: Callable[..., Any] = program.module
    if job.task is Task.START:
        from aot.emulator import on_cpu
        from aot.environment import observe_environment
        from aot.runtime.load import load_bundle

        environment = on_cpu(observe_environment(), job.cpu) if job.cpu else None
        # A refusal must not be hidden by an eager answer.
        function = load_bundle(Path(job.bundle), program.module, fallback="raise", environment=environment)
    _call_once(function, example)
    tell(OUTPUT)
    import torch

    return Claim(
        modules=tuple(sorted(compiler_modules(sys.modules))),
        counters=getattr(function, "counters", {}),
        torch=str(torch.__version__),
    )


def covered_example(program: Program, coverages: Sequence[Coverage]) -> Example:
    """Return the first example, or one of the nearest sizes that `coverages`, those of its artifacts, have."""
    example, sizes = program.examples[0], locate(program, 0)
    given = measure(example, sizes)
    point = nearest_point(given, [one.dimensions for one in coverages])
    return example if point == given else resize(example, sizes, point)


def _call_once(function: Callable[..., Any], example: Example) -> None:
    import torch

    with torch.no_grad():
        function(*example.args, **example.kwargs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # the call returns before the card has computed
