"""Attention with a score of one's own on a CPU: it is opened, built, and right with more threads than were planned."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aot.compile.options import PLANNED_THREADS
from tests.commands import ROOT
from tests.integration import compiled as builds

pytestmark = pytest.mark.torch

SOURCE = """
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention


def causal(score, batch, head, query, key):
    return torch.where(query >= key, score, -float("inf"))


class Net(nn.Module):
    def forward(self, x):
        query, key, value = x.view(4, 256, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        return flex_attention(query, key, value, score_mod=causal)


def make():
    return {"module": Net(), "args": (torch.randn(4, 256, 768),)}
"""
RUN = """
import sys
import torch
from pathlib import Path
from aot.runtime.container import Container

torch.set_num_threads(int(sys.argv[1]))
x, wanted, constants = torch.load(sys.argv[2])
container = Container.open(Path(sys.argv[3]), device="cpu")
container.bind(constants)
for _ in range(3):
    torch.testing.assert_close(container.run((x,))[0], wanted)
print("agrees")
"""


def test_any_number_of_threads_gives_what_eager_gives(tmp_path: Path) -> None:
    source = builds.write_source(tmp_path / "tree", SOURCE)
    compiled = builds.build(source, tmp_path / "scratch", shared=builds.shared_headers())
    program = builds.open_module(source, seed=3)
    x = torch.randn(4, 256, 768)
    with torch.no_grad():
        wanted = program.module(x)
    constants = dict(builds.constants_for(compiled, compiled.artifacts[0], program.module))
    torch.save((x, wanted, constants), tmp_path / "wanted.pt")
    # A process of its own: with one buffer too few, what ends it is the heap.
    for threads in (1, 4 * PLANNED_THREADS):
        command = [
            sys.executable,
            "-c",
            RUN,
            str(threads),
            str(tmp_path / "wanted.pt"),
            str(builds.library_of(compiled)),
        ]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (ran.returncode, ran.stdout) == (0, "agrees\n"), ran.stderr[-2000:]
