"""Inductor's compile workers are there before the first kernel is, and only where a build has use for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aot.compile.job import CompileJob
from aot.compile.program import Program
from aot.errors import InvalidSpec
from tests.builders import a_device, a_profile, a_toolchain

pytestmark = pytest.mark.torch

CPU = "cpu:x86-64-v3"
PROGRAM = """
import os
from functools import partial
from aot.compile.torch_inductor import load_compiler, start_workers
from torch._inductor import async_compile
from torch._inductor.async_compile import AsyncCompile

start_workers()
load_compiler()
begun, asked = AsyncCompile.process_pool(), AsyncCompile._ready_future
start_workers()
AsyncCompile.wait_pool_ready()
print(begun is AsyncCompile.process_pool(), asked is AsyncCompile._ready_future, AsyncCompile.use_process_pool())
os.environ["TRITON_F32_DEFAULT"] = "ieee"
start_workers()
AsyncCompile.wait_pool_ready()
later = AsyncCompile.process_pool()
print(begun is later, later.submit(partial(os.getenv, "TRITON_F32_DEFAULT")).result())

class Pools(tuple):
    def __iter__(self):
        print("waited for")
        return super().__iter__()

async_compile._pool_set = Pools()  # what torch goes through when a process ends
"""


def test_workers_that_are_asked_for_early_are_those_that_the_first_kernel_finds() -> None:
    """Where a source has changed what Triton reads, they are others, that have it too. Nobody waits for their end."""
    environ = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.split() == ["True", "True", "True", "False", "ieee"]


@pytest.mark.parametrize(("capability", "expected"), [("cuda:sm_90", ["start", "open", "start"]), (CPU, ["open"])])
def test_a_build_for_a_card_starts_them_first_and_looks_again_when_its_source_is_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capability: str, expected: list[str]
) -> None:
    import torch

    from aot.compile import card, child, torch_inductor

    seen: list[str] = []

    def open_one(job: CompileJob) -> Program:
        seen.append("open")
        return Program(module=torch.nn.Linear(2, 2), examples=())

    def stop(job: CompileJob) -> str:
        raise InvalidSpec("far enough", hint="")

    monkeypatch.setattr(torch_inductor, "start_workers", lambda: seen.append("start"))
    monkeypatch.setattr(card, "check_card", lambda profile: None)
    monkeypatch.setattr(child, "open_job", open_one)
    monkeypatch.setattr(child, "place_program", lambda program, device: program)
    monkeypatch.setattr(child, "prepare_compiler", stop)
    device = {} if capability == CPU else {"device": a_device()}
    profile = a_profile(capability=capability, toolchain=a_toolchain(torch=str(torch.__version__)), **device)
    job = CompileJob(profile=profile, out=str(tmp_path), build=str(tmp_path))
    with pytest.raises(InvalidSpec, match="far enough"):
        child.run_job(job, child.Progress(None))
    assert seen == expected
