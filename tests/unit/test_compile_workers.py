"""Inductor's compile workers are there before the first kernel is, and only where a build has use for them."""

import os
import subprocess
import sys

import pytest

from tests.builders import a_device, a_profile, a_toolchain

pytestmark = pytest.mark.torch

PROGRAM = """
import sys
from aot.compile.torch_inductor import load_compiler, start_workers
from torch._inductor.async_compile import AsyncCompile

if sys.argv[1] == "card":
    start_workers()
load_compiler()
print(AsyncCompile.process_pool.cache_info().currsize)
if sys.argv[1] == "card":
    asked = AsyncCompile._ready_future
    AsyncCompile.wait_pool_ready()
    print(asked is AsyncCompile._ready_future, AsyncCompile.use_process_pool())
"""


def told(family: str, threads: int) -> list[str]:
    environ = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, family], env=environ, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.split()


def test_workers_that_are_asked_for_early_are_those_that_the_first_kernel_finds() -> None:
    assert told("card", 2) == ["1", "True", "True"]


def test_no_worker_is_started_where_none_is_wanted() -> None:
    assert told("cpu", 2) == ["0"]


@pytest.mark.parametrize(("capability", "started"), [("cuda:sm_90", 1), ("cpu:x86-64-v3", 0)])
def test_a_build_for_a_card_starts_them_with_the_compiler(
    monkeypatch: pytest.MonkeyPatch, capability: str, started: int
) -> None:
    import torch

    from aot.compile import child, torch_inductor

    begun: list[bool] = []
    monkeypatch.setattr(torch_inductor, "start_workers", lambda: begun.append(True))
    device = {"device": a_device()} if capability.startswith("cuda") else {}
    child._import_compiler(a_profile(capability=capability, toolchain=a_toolchain(torch=torch.__version__), **device))
    assert len(begun) == started
