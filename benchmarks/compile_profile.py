"""Where the seconds of a compile go, whole and by regions: phases, each artifact, and torch's own timers.

`python -m benchmarks.compile_profile [--models blocks:build24,decoder:deep_bf16] [--profile here] [--mode default]
[--dim batch=1]` compiles each model whole and by regions, in fresh processes without a sandbox, on warm headers and
otherwise empty caches, and prints a line for each timer of torch's of a tenth of a second or more. Timers lie inside of
one another, so they do not add up: what `compile_fx.<locals>.fw_compiler_base` took holds `GraphLowering.run`.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aot.cli.recipe import parse_dimension
from aot.compile.job import CompileJob
from aot.compile.layout import Layout
from aot.compile.options import cpu_capability
from aot.compile.run import ensure_headers
from aot.compile.toolchain import observe_toolchain
from aot.environment import observe_environment
from aot.pipeline import observe_profiles
from aot.schema.codec import decode, encode
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe, Regions
from benchmarks.local_build import SHARED_CACHES
from benchmarks.models import EXAMPLES
from benchmarks.starts import ROOT

LEAST_SECONDS = 0.1
WAYS = (Regions.WHOLE, Regions.AUTO)


def main() -> int:
    options = _parse()
    if options.child:
        print(json.dumps(profile_job(options.child)))
        return 0
    profiles = {str(one.name): one for one in observe_profiles(observe_environment())}
    profile = profiles.get(options.profile) or next(iter(profiles.values()))
    headers = ensure_headers(SHARED_CACHES, profile, sandbox=None)
    for model in options.models.split(","):
        for way in WAYS:
            dimensions = tuple(map(parse_dimension, options.dim))
            recipe = Recipe(mode=Mode(options.mode), regions=way, dimensions=dimensions)
            for line in lines_of(run_job_apart(model, profile, recipe, headers)):
                print(f"{model} {way}: {line}", flush=True)
    return 0


def run_job_apart(model: str, profile: Profile, recipe: Recipe, headers: Path) -> dict[str, Any]:
    """Compile `example:factory` in a process of its own. Raises CalledProcessError."""
    example, _, factory = model.partition(":")
    scratch = Path(tempfile.mkdtemp(prefix="aot-profile-"))
    layout = Layout(scratch=scratch, isolated=False, source=EXAMPLES / example, headers=headers)
    try:
        layout.prepare(observe_toolchain().compiler, march=cpu_capability(profile).level)
        job = CompileJob(
            tree=str(EXAMPLES / example),
            entry=f"{example}:{factory}",
            recipe=recipe,
            profile=profile,
            out=str(scratch / "out"),
            build=str(scratch / "build"),
            headers=str(headers),
        )
        file = scratch / "job" / "job.json"
        file.write_bytes(encode(job))
        environment = dict(layout.environment(recipe, profile))
        environment["PYTHONPATH"] = f"{ROOT}:{environment['PYTHONPATH']}"
        command = [sys.executable, "-P", "-m", "benchmarks.compile_profile", "--child", str(file)]
        return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def profile_job(file: Path) -> dict[str, Any]:
    """Do the job here; return seconds by phase, of each artifact, and of each of torch's timers with its count."""
    from torch._dynamo.utils import compilation_time_metrics

    from aot.compile.child import Progress, run_job

    progress = Progress(None)
    outcome = run_job(decode(file.read_bytes(), CompileJob, what="compile job"), progress)
    return {
        "phases": progress.seconds,
        "artifacts": [
            {"region": one.region, "export": one.export_seconds, "compile": one.compile_seconds}
            for one in outcome.report.regions
        ],
        "timers": {name: [len(found), round(sum(found), 3)] for name, found in compilation_time_metrics.items()},
    }


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    yield ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in found["phases"].items())
    for one in found["artifacts"]:
        yield f"artifact {one['region'] or 'whole'}: export {one['export']:.2f} s, compile {one['compile']:.2f} s"
    for name, (count, seconds) in sorted(found["timers"].items(), key=lambda timer: -timer[1][1]):
        if seconds >= LEAST_SECONDS:
            yield f"  {seconds:7.2f} s  {count:4} x {name}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="blocks:build24")
    parser.add_argument("--profile", default="")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
