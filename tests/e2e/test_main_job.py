"""The main job, with every process real: a service of its own, a model built there, and a pod that runs it.

`aot up` compiles one small model, submitted by eight clients at once; then its bundle is pulled, loaded offline by
digest where no compiler can be found, pinned by CI and looked at. One service and one build for the whole module.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commands import COMMAND, Ran, clean_environ, end
from tests.integration.compiled import EVERYTHING, shared_headers
from tests.integration.test_cli_up import an_up

pytestmark = pytest.mark.torch

POD = """
import json, sys
import torch
started_with = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
sys.path.insert(0, sys.argv[2])
from model import Everything

import aot

report = {"results": [], "misses": []}
for seed in (1, 2):
    torch.manual_seed(seed)
    module = Everything().eval().requires_grad_(False)
    for part in module.parameters():
        part.add_(0.1)
    twin = Everything().eval().requires_grad_(False)
    twin.load_state_dict(module.state_dict())
    model = aot.load(sys.argv[1], module)
    for rows in (1, 3, 8):
        x, mask = torch.randn(rows, 16), torch.rand(rows, 1)
        found, wanted = model(x, mask=mask), twin(x, mask=mask)
        torch.testing.assert_close(found, wanted)
        report["results"].append(found["rows"])
    report["counters"] = model.counters
    report["reasons"] = model.reasons
    report["outcome"] = model.outcome
    report["bundle"] = str(model.bundle)
    model(torch.randn(9, 16), mask=torch.rand(9, 1))
    report["misses"].append(model.last_miss)
    report["after"] = model.counters
found = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
report["compiler_modules"] = sorted(found - started_with)
print(json.dumps(report))
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# A small program is called often enough by two threads, where there are two cores.
THREADS = [1, 2] if len(os.sched_getaffinity(0)) > 1 else [1]
SUBMITTERS = 8


@dataclass(frozen=True)
class Job:
    """Where the service, the user's directory and the node's cache are, and what the first commands said."""

    place: Path
    environ: dict[str, str]
    submitted: list[dict[str, Any]]
    built: Ran

    def aot(self, *words: str) -> Ran:
        process = subprocess.Popen(
            [*COMMAND, *words],
            cwd=self.place,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return end(process)

    @property
    def bundle(self) -> str:
        """The digest of the one bundle."""
        (bundle,) = self.aot("ls", "--json").json["bundles"]
        return str(bundle["digest"])


def start(environ: dict[str, str], place: Path, *words: str) -> "subprocess.Popen[str]":
    model = ("tiny", "--source", str(place / "tree"), "--entry", "model:make", "--json")
    return subprocess.Popen(
        [*COMMAND, *words, *model], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    place = tmp_path_factory.mktemp("main")
    (place / "tree").mkdir()
    (place / "tree" / "model.py").write_text(EVERYTHING)
    data = place / "data"
    data.mkdir(mode=0o700)
    # The headers of torch and the compiler alone, which outlive a run of the tests.
    shared_headers().mkdir(parents=True, exist_ok=True)
    (data / "toolchain").symlink_to(shared_headers())
    with an_up(data) as up:
        environ = {**clean_environ(place), **up.exports, "GITHUB_SHA": COMMIT}
        clients = [start(environ, place, "submit") for _ in range(SUBMITTERS)]
        submitted = [end(client) for client in clients]
        assert [ran.code for ran in submitted] == [0] * SUBMITTERS, submitted
        built = end(start(environ, place, "build"), seconds=240)
        assert built.code == 0, built.err
        yield Job(place, environ, [ran.json for ran in submitted], built)


def test_eight_clients_at_once_make_one_build_and_one_bundle(job: Job) -> None:
    assert sorted(one["created"] for one in job.submitted) == [False] * (SUBMITTERS - 1) + [True]
    assert {one["build"]["id"] for one in job.submitted} == {job.submitted[0]["build"]["id"]}
    (build,) = job.aot("ls", "--builds", "--json").json["builds"]
    assert (build["state"], build["id"]) == ("published", job.submitted[0]["build"]["id"])
    assert len(job.aot("ls", "--json").json["bundles"]) == 1


def test_a_pod_without_compilers_and_network_runs_it_as_eager_does(job: Job, tmp_path: Path) -> None:
    node = tmp_path / "node"
    (pulled,) = job.aot("pull", "tiny", "--into", str(node), "--json").json
    assert pulled["bundle"] == job.bundle
    environ = {
        **clean_environ(tmp_path),
        "PATH": "/nonexistent",
        "AOT_OFFLINE": "1",
        "AOT_CACHE_DIR": str(node),
        "AOT_TRUSTED_KEYS": job.environ["AOT_TRUSTED_KEYS"],
    }
    ran = subprocess.run(
        [sys.executable, "-c", POD, f"tiny@{job.bundle}", str(job.place / "tree")],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["outcome"], report["reasons"], report["bundle"]) == ("compiled", [], job.bundle)
    assert report["results"] == [1, 3, 8, 1, 3, 8]
    counters = report["counters"]
    # On a busy machine the proof may have found eager the faster one at some size of so small a program.
    assert counters["calls"] == counters["compiled"] + counters["eager_won"] == 3
    assert counters["guard_misses"] == counters["failed"] == 0
    after = report["after"]
    assert after["guard_misses"] == 1
    assert after["eager"] == after["guard_misses"] + after["eager_won"]
    assert all("8" in miss and "9" in miss for miss in report["misses"])
    assert report["compiler_modules"] == []


def test_a_pod_that_trusts_another_key_runs_eagerly_and_says_so(job: Job, tmp_path: Path) -> None:
    other = "ed25519:" + "A" * 43 + "="
    code = (
        "import aot, torch; model = aot.load('tiny', torch.nn.Identity());"
        "print(model.outcome, model.reasons[0], float(model(torch.ones(()))))"
    )
    environ = {**clean_environ(tmp_path), "AOT_URL": job.environ["AOT_URL"], "AOT_TRUSTED_KEYS": other}
    environ["AOT_TOKEN_FILE"] = job.environ["AOT_TOKEN_FILE"]
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("eager ") and ran.stdout.endswith(" 1.0\n")
    assert "sign" in ran.stdout or "trust" in ran.stdout


def test_ci_pins_it_and_a_second_run_writes_nothing(job: Job) -> None:
    (bundle,) = job.aot("ls", "--json").json["bundles"]
    project = f'[[models]]\nname = "tiny"\nsource = "tree"\nentry = "model:make"\nprofiles = ["{bundle["profile"]}"]\n'
    (job.place / "aot.toml").write_text(project)
    lock = job.place / "aot.lock"
    first = job.aot("ensure", "--json")
    assert (first.code, first.json["outcome"], first.json["bundle"]) == (0, "present", job.bundle)
    written = (lock.read_bytes(), lock.stat().st_mtime_ns, lock.stat().st_ino)
    second = job.aot("ensure", "--json")
    assert (second.code, second.out) == (0, first.out)
    assert (lock.read_bytes(), lock.stat().st_mtime_ns, lock.stat().st_ino) == written
    assert json.loads(written[0])["entries"][0]["bundle"] == job.bundle
    assert json.loads(written[0])["trusted_keys"] == [job.environ["AOT_TRUSTED_KEYS"]]


def test_it_can_be_looked_at(job: Job) -> None:
    explained = job.aot("explain", "tiny", "--json").json
    assert [one["verdict"]["type"] for one in explained["decisions"]] == ["accepted"]
    (shown,) = job.aot("show", "tiny", "--json").json
    manifest = json.loads(shown["manifest"])
    assert manifest["qualification"]["start"]["processes"] == []
    assert shown["digest"] == job.bundle
    assert (manifest["provenance"]["commit"], manifest["provenance"]["commit_told_by"]) == (COMMIT, "ci")
    measured = [one for speed in manifest["artifacts"][0]["speeds"] for one in (speed["eager"], speed["compiled"])]
    told = [[rate["threads"] for rate in one["throughput"]] for one in measured if "throughput" in one]
    assert told and all(threads == THREADS for threads in told)  # left out where calls were too slow just then
    plain = job.aot("show", "tiny")
    assert f"from commit {COMMIT} (as CI says; nobody has looked for changes)" in plain.out
    assert "; 1 thread " in plain.out and " calls/s, eager " in plain.out
    assert plain.code == 0 and job.bundle.removeprefix("sha256:")[:12] in plain.out
    assert job.aot("show", job.submitted[0]["build"]["id"]).code == 0
    missing = job.aot("explain", "tinny")
    assert missing.code != 0 and "tinny" in missing.err
