"""An exported program through the whole service: a `.pt2` file submitted, built, proven, pulled and run in a pod.

One service and one build for the whole module. In the pod the live module is the user's class with other weights, of
which one lies beside its own transpose.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commands import COMMAND, Ran, clean_environ, end
from tests.integration.compiled import shared_headers
from tests.integration.test_cli_up import an_up

pytestmark = pytest.mark.torch

MODEL = """
import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.gain = torch.linspace(0.5, 2.0, width)
        self.blocks = nn.ModuleList(Mix(width) for _ in range(2))
        self.head = nn.Linear(width, 4)
        self.turn = nn.Linear(width, width, bias=False)
        self.register_buffer("same", self.turn.weight.detach())
        self.register_buffer("turned", self.turn.weight.detach().t())

    def forward(self, x):
        x = x * self.gain + self.turn(x) @ self.turned @ self.same
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Other(Net):
    pass
"""
EXPORT = """
import sys
import torch
from model import Net

torch.manual_seed(0)
batch = torch.export.Dim("batch", min=2, max=32)
program = torch.export.export(Net().eval(), (torch.randn(4, 16),), dynamic_shapes={"x": {0: batch}})
torch.export.save(program, sys.argv[1])
"""
POD = """
import json, sys
import torch
import aot
from model import Net, Other

started_with = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}


def another_epsilon():
    module = Net()
    for block in module.blocks:
        block.norm.eps = 0.5
    return module


def another_constant():
    module = Net()
    module.gain = module.gain * 2
    return module


def one_layer_more():
    module = Net()
    module.blocks.append(module.blocks[0])
    return module


told = {}
for make in (Net, Other, another_epsilon, another_constant, one_layer_more):
    torch.manual_seed(7)
    module = make().eval().requires_grad_(False)
    model = aot.load("net", module)
    errors = []
    for rows in (2, 5, 32):
        x = torch.randn(rows, 16)
        errors.append(float((model(x) - module(x)).abs().max()))
    told[make.__name__] = {
        "outcome": model.outcome, "reasons": model.reasons, "error": max(errors), "counters": model.counters
    }
    if make is Net:
        found = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
        told["compiler_modules"] = sorted(found - started_with)
        told["fallback"] = float((model(torch.ones(33, 16)) - module(torch.ones(33, 16))).abs().max())
        told["miss"] = model.last_miss
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Service:
    """The service, and the directory of the user with `model.py` and `net.pt2`."""

    place: Path
    environ: dict[str, str]
    built: Ran

    def aot(self, *words: str, seconds: float = 60.0) -> Ran:
        return run(self.place, self.environ, *COMMAND, *words, seconds=seconds)

    def python(self, code: str, *words: str, **variables: str) -> Any:
        ran = run(self.place, {**self.environ, **variables}, sys.executable, "-c", code, *words, seconds=120)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)


def run(place: Path, environ: dict[str, str], *words: str, seconds: float) -> Ran:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return end(subprocess.Popen(words, cwd=place, env=environ, text=True, **pipes), seconds=seconds)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    place = tmp_path_factory.mktemp("exported")
    (place / "model.py").write_text(MODEL)
    data = place / "data"
    data.mkdir(mode=0o700)
    # The headers of torch and the compiler alone, which outlive a run of the tests.
    shared_headers().mkdir(parents=True, exist_ok=True)
    (data / "toolchain").symlink_to(shared_headers())
    with an_up(data) as up:
        environ = {**clean_environ(place), **up.exports}
        environ["PYTHONPATH"] += f":{place}"
        exported = run(place, environ, sys.executable, "-c", EXPORT, "net.pt2", seconds=120)
        assert exported.code == 0, exported.err
        built = run(place, environ, *COMMAND, "build", "net", "--source", "net.pt2", "--json", seconds=400)
        assert built.code == 0, built.err
        yield Service(place, environ, built)


@pytest.fixture(scope="module")
def pod(service: Service) -> Any:
    """What a pod says that has no compiler and no model but its own classes."""
    return service.python(POD, PATH="/nonexistent")


def test_it_is_built_and_published_and_torch_says_nothing_on_the_way(service: Service) -> None:
    assert service.built.json["state"] == "published"
    assert "Warning" not in service.built.err
    (bundle,) = service.aot("ls", "--json").json["bundles"]
    assert (bundle["digest"], bundle["frozen"]) == (service.built.json["bundle"], False)


def test_no_weight_leaves_the_user(service: Service) -> None:
    (shown,) = service.aot("show", "net", "--json").json
    source = json.loads(shown["manifest"])["spec"]["source"]
    assert source["type"] == "program"
    assert source["program"]["size_bytes"] < (service.place / "net.pt2").stat().st_size


def test_what_the_program_is_stands_in_the_manifest(service: Service) -> None:
    (shown,) = service.aot("show", "net", "--json").json
    factors = {one["name"]: one["text"] for one in json.loads(shown["manifest"])["fingerprint"]["factors"]}
    assert json.loads(factors["module:blocks.*"]) == {"blocks.0": "model.Mix", "blocks.1": "model.Mix"}
    assert "constants:gain" in factors and "graph" in factors


def test_the_users_module_with_other_weights_runs_compiled(pod: Any) -> None:
    told = pod["Net"]
    assert (told["outcome"], told["reasons"]) == ("compiled", [])
    counters = told["counters"]
    # Where the proof found eager the faster one, on a machine busy with other tests, eager runs.
    assert (counters["compiled"] + counters["eager_won"], counters["guard_misses"], counters["failed"]) == (3, 0, 0)
    assert counters["compiled"] >= 1
    assert told["error"] < 1e-5
    assert pod["compiler_modules"] == []
    assert pod["fallback"] == 0.0 and "33" in pod["miss"] and "32" in pod["miss"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("Other", "the module itself was model.Net, is model.Other"),
        ("another_constant", "the tensor gain, which the program holds as a constant, has other values"),
        ("one_layer_more", "module blocks.2 was not there: model.Mix"),
        ("another_epsilon", "its first call gave other results: output 0"),
    ],
)
def test_a_module_that_is_not_the_program_runs_eagerly_and_says_why(pod: Any, wrong: str, reason: str) -> None:
    told = pod[wrong]
    assert (told["outcome"], told["error"]) == ("eager", 0.0)
    assert (told["counters"]["compiled"], told["counters"]["eager"]) == (0, 3)
    assert reason in told["reasons"][0]


def test_ci_pins_it_by_the_same_file(service: Service) -> None:
    (bundle,) = service.aot("ls", "--json").json["bundles"]
    project = f'[[models]]\nname = "net"\nprogram = "net.pt2"\nprofiles = ["{bundle["profile"]}"]\n'
    (service.place / "aot.toml").write_text(project)
    first = service.aot("ensure", "--json")
    assert (first.code, first.json["outcome"], first.json["bundle"]) == (0, "present", bundle["digest"]), first.err
    written = (service.place / "aot.lock").stat().st_mtime_ns
    assert service.aot("ensure", "--json").out == first.out
    assert (service.place / "aot.lock").stat().st_mtime_ns == written
    explained = service.aot("explain", "net", "--lock", "aot.lock", "--json").json
    assert [one["verdict"]["type"] for one in explained["decisions"]] == ["accepted"]


def test_a_file_that_is_no_program_is_refused_before_anything_is_sent(service: Service) -> None:
    (service.place / "broken.pt2").write_bytes(b"PK not a program")
    ran = service.aot("build", "broken", "--source", "broken.pt2")
    assert (ran.code, ran.out) == (2, "")
    assert "broken.pt2 is no exported program" in ran.err and "torch.export.save" in ran.err


def test_the_file_is_known_again_when_the_bundle_is_pushed_with_it(service: Service, tmp_path: Path) -> None:
    carried = tmp_path / "bundle"
    assert service.aot("pull", "net", "--as-bundle", str(carried)).code == 0
    ran = service.aot("push", str(carried), "--source", "net.pt2")
    assert (ran.code, "live already" in ran.out) == (0, True), ran.err
    ran = service.aot("push", str(carried), "--source", "model.py")
    assert (ran.code, "model.py is no exported program" in ran.err) == (2, True)
