"""One submission for three CPU levels: three proven bundles under one tag, and each pod loads the best of its CPU.

A pod of another level is this host with that level's /proc/cpuinfo (bubblewrap shows it), on an emulated CPU of exactly
that level, where an instruction above it would end the process.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from aot.emulator import Emulator, find_emulator
from aot.environment import observe_node
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.capability import Capability
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.report import Agreement
from aot.schema.targets import level_features
from tests.commands import COMMAND, clean_environ, end
from tests.integration.compiled import STATELESS, shared_headers
from tests.integration.test_cli_up import an_up

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
MODELS = {"x86-64-v2": "Nehalem (emulated)", "x86-64-v3": "Haswell-noTSX (emulated)"}
# Kept for pods to compare with; numbers of this host, not of an emulated CPU.
CANARIES = {("seeded", "canary", 2), ("seeded", "canary", 8)}
VECTOR_BITS = {"x86-64-v2": "128", "x86-64-v3": "256", "x86-64-v4": "512"}
SANDBOX = find_sandbox()
EMULATORS = {level: find_emulator(Capability(f"cpu:{level}")) for level in LEVELS}

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(observe_node().cpu != "cpu:x86-64-v4", reason="needs a host of x86-64-v4"),
    pytest.mark.skipif(not isinstance(SANDBOX, Bubblewrap), reason="needs bubblewrap"),
    pytest.mark.skipif(not isinstance(EMULATORS["x86-64-v3"], Emulator), reason="needs qemu-user"),
]

POD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from model import make

import aot

torch.manual_seed(5)
module = make()["module"].eval().requires_grad_(False)
model = aot.load("tiny:prod", module)
for rows in (2, 3, 8):
    x = torch.randn(rows, 16)
    torch.testing.assert_close(model(x), module(x))
print(json.dumps({
    "outcome": model.outcome, "reasons": list(model.reasons), "bundle": str(model.bundle),
    "counters": model.counters, "torch": torch.backends.cpu.get_cpu_capability(),
}))
"""


@dataclass(frozen=True)
class Fleet:
    """The service's variables, and the manifest and digest of each level."""

    place: Path
    environ: dict[str, str]
    digests: dict[str, str]
    manifests: dict[str, Manifest]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    place = tmp_path_factory.mktemp("fleet")
    (place / "tree").mkdir()
    (place / "tree" / "model.py").write_text(STATELESS)
    data = place / "data"
    data.mkdir(mode=0o700)
    shared_headers().mkdir(parents=True, exist_ok=True)
    (data / "toolchain").symlink_to(shared_headers())
    with an_up(data) as up:
        environ = {**clean_environ(place), **up.exports}
        words = ("build", "tiny:prod", "--source", str(place / "tree"), "--entry", "model:make")
        built = subprocess.Popen(
            [*COMMAND, *words, "--profile", "cpu-x86-64-v2,v3,v4"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ran = end(built, seconds=500)
        assert ran.code == 0, ran.err
        rows = [line.split("\t") for line in ran.lines]
        assert [row[:3] for row in rows] == [["published", "default/tiny", f"cpu-{level}"] for level in LEVELS]
        digests = {level: row[3] for level, row in zip(LEVELS, rows, strict=True)}
        yield Fleet(place, environ, digests, dict(_manifests(environ, digests)))


def _manifests(environ: dict[str, str], digests: dict[str, str]) -> Iterator[tuple[str, Manifest]]:
    command = [*COMMAND, "show", "tiny:prod", "--json"]
    shown = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    by_digest = {one["digest"]: decode_manifest(one["manifest"].encode()) for one in json.loads(shown.stdout)}
    assert set(by_digest) == set(digests.values()), "one tag stands for one bundle of each profile"
    for level, digest in digests.items():
        yield level, by_digest[digest]


@pytest.mark.parametrize("level", LEVELS)
def test_the_code_is_of_its_level_and_no_higher(fleet: Fleet, level: str) -> None:
    facts = fleet.manifests[level].artifacts[0].facts
    assert (facts["march"], facts["isa_used"], facts["vector_bits"]) == (level, level, VECTOR_BITS[level])


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_below_the_hosts_is_proven_on_an_emulated_cpu(fleet: Fleet, level: str) -> None:
    proof = fleet.manifests[level].qualification
    assert (proof.host_cpu, proof.not_run) == ("cpu:x86-64-v4", "")
    emulation = proof.emulation
    if level == "x86-64-v4":
        assert emulation is None
        return
    assert emulation is not None
    assert (emulation.cpu, emulation.model) == (f"cpu:{level}", MODELS[level])
    assert emulation.emulator.startswith("qemu-x86_64 ")
    # The counting of processes works through the emulator, and finds none.
    assert (emulation.start.processes, emulation.start.counted_by) == ((), "ptrace")
    assert emulation.start.compiler_modules == ()
    assert points_of(emulation.agreements) == points_of(proof.agreements) - CANARIES
    assert all(agreement.agrees for agreement in emulation.agreements)
    # Speed is the host's, and nothing was left out for want of it there.
    assert all(artifact.speeds for artifact in fleet.manifests[level].artifacts)
    assert emulation.left_out == ()


def points_of(agreements: Sequence[Agreement]) -> set[tuple[str, str, int]]:
    return {(one.weights, one.variant, one.point["batch"]) for one in agreements}


@pytest.mark.parametrize("level", LEVELS)
def test_a_pod_of_each_level_loads_its_own_and_agrees_with_eager(fleet: Fleet, tmp_path: Path, level: str) -> None:
    emulator = EMULATORS[level]  # none is for the highest level, which is this host's own
    argv = [sys.executable, "-c", POD, str(fleet.place / "tree")]
    wrapped = emulator.wrap(argv) if isinstance(emulator, Emulator) else argv
    variables = ("AOT_URL", "AOT_TOKEN_FILE", "AOT_TRUSTED_KEYS")
    environ = {**clean_environ(tmp_path), **{name: fleet.environ[name] for name in variables}}
    environ.pop("OPENBLAS_CORETYPE", None)  # a variable of the machine's, which speaks of its own CPU
    ran = subprocess.run(on_level(level, wrapped, tmp_path), env=environ, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    counters = report["counters"]
    assert (report["outcome"], report["reasons"]) == ("compiled", [])
    # On a busy machine eager may have won at one of the sizes; no call is lost to a guard.
    assert counters["compiled"] + counters["eager_won"] == counters["calls"] == 3
    assert counters["compiled"] >= 1 and counters["guard_misses"] == 0
    assert report["bundle"] == fleet.digests[level]
    if isinstance(emulator, Emulator):
        assert report["torch"] == {"x86-64-v2": "DEFAULT", "x86-64-v3": "AVX2"}[level]


def on_level(level: str, argv: list[str], place: Path) -> list[str]:
    """Return the command that runs `argv` where /proc/cpuinfo has the features of `level` alone."""
    shown = place / "cpuinfo"
    flags = " ".join(sorted(level_features(level) or ()))
    own = Path("/proc/cpuinfo").read_text()
    shown.write_text(re.sub(r"^(flags\s*:).*$", rf"\1 {flags}", own, flags=re.MULTILINE))
    assert isinstance(SANDBOX, Bubblewrap)
    view = ["--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--ro-bind", str(shown), "/proc/cpuinfo"]
    return [str(SANDBOX.program), *view, "--", *argv]
