"""AMX on a host that has it: a worker's build, and the proof of a bundle that a host without AMX has pushed."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aot.environment import observe_node
from aot.schema.capability import Capability
from aot.schema.environment import host_cpu
from aot.schema.profile import AMX
from tests.commands import COMMAND, clean_environ, end
from tests.integration.compiled import shared_headers
from tests.integration.test_cli_up import an_up

CPU = host_cpu(observe_node())
PROFILE = "cpu-x86-64-v4-amx"

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(CPU is None or not CPU.runs(AMX), reason="needs a host with AMX"),
]

SOURCE = """
import torch


def make():
    module = torch.nn.Linear(64, 64).to(torch.bfloat16)
    return {"module": module, "args": (torch.randn(32, 64, dtype=torch.bfloat16),)}
"""
# The command line on a host that sees all of its CPU but AMX. What it starts to compile is not changed by it.
WITHOUT_AMX = """
import sys
from aot.pipeline import cross
from aot.schema.capability import Capability
cross.host_cpu = lambda node: Capability("cpu:x86-64-v4")
from aot.cli.__main__ import main
sys.exit(main())
"""
POD = """
import json, sys
import torch
from safetensors.torch import load_file

import aot

module = torch.nn.Linear(64, 64).to(torch.bfloat16).eval().requires_grad_(False)
module.load_state_dict(load_file(sys.argv[2]))
model = aot.load(sys.argv[1], module)
x = torch.randn(32, 64, dtype=torch.bfloat16)
torch.testing.assert_close(model(x), module(x), rtol=0.02, atol=0.02)
print(json.dumps({"outcome": model.outcome, "reasons": list(model.reasons), "counters": model.counters}))
"""


@dataclass(frozen=True)
class Service:
    """A service with a worker on this host's CPU, and what a client of it has."""

    place: Path
    environ: dict[str, str]

    def build(self, name: str, *extra: str, command: tuple[str, ...] = COMMAND) -> None:
        words = ("build", f"{name}:prod", "--source", str(self.place / "tree"), "--entry", "model:make")
        recipe = ("--freeze", "--weights", str(self.weights), "--option", "max_autotune_gemm_backends=CPP")
        argv = [*command, *words, *recipe, "--profile", PROFILE, *extra]
        process = subprocess.Popen(argv, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ran = end(process, seconds=400)
        # Whoever pushes is told that it is pending, unless the worker was quicker.
        assert ran.code == 0 or (command != COMMAND and "is pending, not run" in ran.err), ran.err

    @property
    def weights(self) -> Path:
        return self.place / "weights.safetensors"

    def show(self, reference: str) -> dict[str, Any] | None:
        """The manifest of the one bundle of `reference`; None while there is none that lives."""
        argv = [*COMMAND, "show", reference, "--json"]
        shown = subprocess.run(argv, env=self.environ, capture_output=True, text=True)
        if shown.returncode:
            return None
        (one,) = json.loads(shown.stdout)
        return json.loads(one["manifest"])

    def run_in_a_pod(self, reference: str) -> dict[str, Any]:
        argv = [sys.executable, "-c", POD, reference, str(self.weights)]
        ran = subprocess.run(argv, env=self.environ, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    import torch
    from safetensors.torch import save_file

    place = tmp_path_factory.mktemp("amx")
    (place / "tree").mkdir()
    (place / "tree" / "model.py").write_text(SOURCE)
    save_file(dict(torch.nn.Linear(64, 64).to(torch.bfloat16).state_dict()), str(place / "weights.safetensors"))
    data = place / "data"
    data.mkdir(mode=0o700)
    shared_headers().mkdir(parents=True, exist_ok=True)
    (data / "toolchain").symlink_to(shared_headers())
    # A card of this host would take the worker for itself.
    with an_up(data, CUDA_VISIBLE_DEVICES="") as up:
        yield Service(place, {**clean_environ(place, CUDA_VISIBLE_DEVICES=""), **up.exports})


def check_manifest(manifest: dict[str, Any]) -> None:
    [artifact] = manifest["artifacts"]
    assert artifact["facts"]["isa_used"] == "x86-64-v4+amx_bf16+amx_tile"
    proof = manifest["qualification"]
    assert AMX.runs(Capability(artifact["capability"]))
    assert Capability(proof["host_cpu"]).runs(AMX)
    # This CPU may have more than the target has, and then nothing emulates one of exactly that.
    assert proof.get("not_run", "no emulator").startswith("no emulator") and proof.get("emulation") is None
    assert proof["start"]["processes"] == []
    assert all(one.get("agrees", True) for one in proof["agreements"])


def test_a_worker_with_amx_compiles_proves_and_a_pod_runs_it(service: Service) -> None:
    service.build("native")
    manifest = service.show("native:prod")
    assert manifest is not None
    check_manifest(manifest)
    report = service.run_in_a_pod("native:prod")
    assert (report["outcome"], report["reasons"]) == ("compiled", [])
    assert report["counters"]["compiled"] + report["counters"]["eager_won"] == report["counters"]["calls"] == 1


def test_a_worker_with_amx_proves_what_a_host_without_it_has_pushed(service: Service) -> None:
    service.build("foreign", "--here", command=(sys.executable, "-c", WITHOUT_AMX))
    ending = time.monotonic() + 200
    while (manifest := service.show("foreign:prod")) is None:
        assert time.monotonic() < ending, "no worker has proven it"
        time.sleep(0.5)
    check_manifest(manifest)
    assert service.run_in_a_pod("foreign:prod")["outcome"] == "compiled"
