"""Parallel loops on a CPU: right with more threads than were planned, and a check that fails in them is an error."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from aot.compile.options import PLANNED_THREADS
from aot.compile.run import Compiled
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
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, 768)
        self.register_buffer("scale", torch.arange(64.0))
        self.register_buffer("shift", torch.arange(9.0))

    def forward(self, tokens, position, one):
        x = self.table(tokens) * self.scale[position]
        query, key, value = x.view(4, 256, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        return flex_attention(query, key, value, score_mod=causal), x.relu().exp(), self.shift[one] * 3


def make():
    tokens = torch.arange(1024).remainder(300).view(4, 256)
    return {"module": Net(), "args": (tokens, torch.tensor(1), torch.tensor([5]))}
"""
RUN = """
import sys
import torch
from pathlib import Path
from aot.errors import RunFailed
from aot.runtime.container import Container

torch.set_num_threads(int(sys.argv[1]))
tokens, wanted, constants = torch.load(sys.argv[2])
container = Container.open(Path(sys.argv[3]), device="cpu")
container.bind(constants)
for token, position, one in ((10, 1, 5), (300, 1, 5), (10, 64, 5), (10, -65, 5), (10, 1, 9), (10, 1, 5)):
    tokens[3, 200] = token
    try:
        found = container.run((tokens, torch.tensor(position), torch.tensor([one])))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)
        print("agrees")
    except RunFailed as error:
        print(error.message.splitlines()[0])
"""


@cache
def built() -> tuple[Compiled, builds.Source]:
    place = builds.scratch_directory("loops")
    source = builds.write_source(place / "tree", SOURCE)
    return builds.build(source, place / "scratch", shared=builds.shared_headers()), source


@pytest.mark.parametrize("threads", [1, 4 * PLANNED_THREADS])
def test_any_number_of_threads_gives_what_eager_gives_and_an_index_beyond_its_table_an_error(
    tmp_path: Path, threads: int
) -> None:
    compiled, source = built()
    program = builds.open_module(source, seed=3)
    tokens = torch.arange(1024).remainder(300).view(4, 256)
    tokens[3, 200] = 10
    with torch.no_grad():
        wanted = program.module(tokens, torch.tensor(1), torch.tensor([5]))
    constants = dict(builds.constants_for(compiled, compiled.artifacts[0], program.module))
    torch.save((tokens, wanted, constants), tmp_path / "wanted.pt")
    # A process of its own: with a buffer too few the heap ends it, and an exception that leaves a loop does.
    command = [sys.executable, "-c", RUN, str(threads), str(tmp_path / "wanted.pt"), str(builds.library_of(compiled))]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    first, *failed, last = ran.stdout.splitlines()
    assert (first, last) == ("agrees", "agrees")
    told = [line.removeprefix("the compiled program failed: ") for line in failed]
    assert [line.startswith(("index out of bounds: 0 <= ", "Expected u0 ")) for line in told] == [True] * 4, told
