"""A program that no package takes, under a recipe that allows the route `function` as well: submitted, built and proven
by a worker, published, loaded by a pod; and the report says why it is no package.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aot.client.connect import open_client
from aot.schema.names import Name
from aot.schema.recipe import Route
from aot.schema.state import BuildState
from aot.schema.wire.workers import Scope
from tests.commands import a_shell
from tests.integration import compiled as builds
from worker.run import Bench, Ended, run_build

pytestmark = pytest.mark.torch

PROGRAM = """
import torch
from torch import nn


@torch.library.custom_op("toys::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halved.register_fake
def _(x):
    return torch.empty_like(x)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.ops.toys.halved(torch.tanh(self.inner(x)) * 4)


def make():
    return Tiny(), (torch.randn(4, 8),)
"""

POD = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
import aot, model as source
torch.manual_seed(7)
module = source.Tiny().eval()
loaded = aot.load("tiny:v1", module, fallback="raise")
x = torch.randn(4, 8)
with torch.no_grad():
    error = float((loaded(x) - module(x)).abs().max())
    missed = None
    try:
        loaded(torch.randn(5, 8))
    except Exception as raised:
        missed = f"{type(raised).__name__}: {raised}"
print(json.dumps({"error": error, "counters": loaded.counters, "reasons": loaded.reasons, "missed": missed}))
"""


def test_what_is_no_package_goes_the_ordinary_way_as_a_function(tmp_path: Path) -> None:
    source = builds.write_source(tmp_path / "tree", PROGRAM)
    profile = builds.here()
    with a_shell(tmp_path) as shell:
        shell.service.register(profile)
        submitted = shell.aot(
            *("submit", "tiny:v1", "--source", str(source.tree), "--entry", "model:make"),
            *("--route", "package,function", "--profile", profile.name, "--json"),
        )
        assert submitted.code == 0, submitted.err
        build = submitted.json["build"]["id"]
        bench = Bench(
            name=Name("worker-1"),
            client=open_client(shell.url, shell.service.token(Scope.CLAIM)),
            profiles=(profile,),
            scratch=tmp_path / "scratch",
            shared_caches=builds.shared_headers(),
            sandbox=builds.sandbox(),
            trust_sources=frozenset({"default"}),
            stopping=threading.Event(),
        )
        assert run_build(bench) is Ended.PUBLISHED, shell.service.call("get_build", build=build).error
        view = shell.service.call("get_build", build=build)
        assert view.state is BuildState.PUBLISHED
        shown = shell.aot("show", "tiny:v1")
        assert "by route function" in shown.out and "guards of the program at each call" in shown.out, shown.out
        assert "not by     route package: " in shown.out and "toys::halved" in shown.out, shown.out
        assert shell.service.call("get_bundle", digest=view.bundle).routes == (Route.FUNCTION,)
        log = "\n".join(line.text for line in shell.service.call("get_build_log", build=build).lines)
        assert "again, for route function: " in log and "toys::halved" in log

        ended = subprocess.run(
            [sys.executable, "-c", POD, str(source.tree)],
            env={**shell.environ, "PATH": "/nonexistent"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["error"] < 1e-5 and said["reasons"] == []
    counters = said["counters"]
    # In so small a model eager may have won the proof; nothing else keeps a call from compiled code.
    assert counters["compiled"] + counters["eager_won"] >= 1 and counters["failed"] == 0
    assert said["missed"].startswith("GuardFailed: the call is outside every coverage"), said["missed"]
