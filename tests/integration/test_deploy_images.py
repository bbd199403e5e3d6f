"""The images' Dockerfile: hadolint's rules, and what each target holds. Nothing is built: that needs a registry."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.serving import listening

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"
TARGETS = ("client", "server", "worker-cpu", "worker-cuda")
WORKERS = ("worker-cpu", "worker-cuda")


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    lines: tuple[str, ...]

    def values(self, instruction: str) -> list[str]:
        return [line.split(None, 1)[1] for line in self.lines if line.split(None, 1)[0] == instruction]


def stages() -> dict[str, Stage]:
    """Every stage by its name, its instructions with continuation lines joined."""
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found: dict[str, Stage] = {}
    for line in lines:
        if start := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            found[start[2]] = Stage(start[2], start[1], ())
        elif found:
            last = found[list(found)[-1]]
            found[last.name] = Stage(last.name, last.base, (*last.lines, line))
    return found


def lineage(name: str) -> list[Stage]:
    """The stage and those that it is built upon: what its image holds."""
    known = stages()
    found = [known[name]]
    while found[-1].base in known:
        found.append(known[found[-1].base])
    return found


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    command = [HADOLINT, "--no-color", "--config", DEPLOY / "hadolint.yaml", path]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_hadolint_finds_nothing() -> None:
    done = lint(DEPLOY / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("FROM python:latest AS client", "DL3007"),
        ("FROM python AS client", "DL3006"),
        ("FROM python:3.11 AS client\nRUN apt-get update && apt-get install -y --no-install-recommends g++", "DL3009"),
        ("FROM python:3.11 AS client\nUSER root", "DL3002"),
    ],
)
def test_hadolint_stops_what_matters(tmp_path: Path, line: str, rule: str) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(f"{line}\n")
    done = lint(path)
    assert done.returncode != 0
    assert rule in done.stdout


def test_the_four_images_run_as_a_user_by_number() -> None:
    for target in TARGETS:
        users = [user for stage in lineage(target) for user in stage.values("USER")]
        assert users[:1] == ["10001:10001"], target


def test_bases_are_pinned_to_a_patch_release() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    pins = dict(re.findall(r"^ARG (PYTHON|CUDA)=(\S+)$", text, re.M))
    assert set(pins) == {"PYTHON", "CUDA"}
    assert [pin for pin in pins.values() if not re.match(r"\d+\.\d+\.\d+-", pin)] == []
    outside = {stage.base for stage in stages().values()} - set(stages())
    assert outside == {"python:${PYTHON}", "nvidia/cuda:${CUDA}"}


def test_client_and_server_hold_no_build_tools_and_workers_hold_all() -> None:
    for target in TARGETS:
        installed = " ".join(run for stage in lineage(target) for run in stage.values("RUN"))
        if target in WORKERS:
            assert {"bubblewrap", "g++", "qemu-user"} < set(installed.split())
            assert "rm -rf /var/lib/apt/lists/*" in installed
        else:
            assert "apt-get" not in installed
            assert "pip install" not in installed, "packages are installed in a build stage"


def test_a_worker_holds_nothing_of_the_server_and_the_client_neither() -> None:
    for target in ("client", *WORKERS):
        copied = " ".join(copy for stage in lineage(target) for copy in stage.values("COPY"))
        assert not re.search(r"registry|migrations", copied)


def test_whatever_is_copied_exists_and_is_sent_to_the_build() -> None:
    allowed = {
        line.removeprefix("!")
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        source.removeprefix("./")
        for stage in stages().values()
        for copy in stage.values("COPY")
        if not copy.startswith("--from")
        for source in copy.split()[:-1]
    }
    assert copied == allowed
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert "*" in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines(), "all else stays out"


def test_every_other_stage_that_is_copied_from_exists() -> None:
    sources = {
        match[1]
        for stage in stages().values()
        for copy in stage.values("COPY")
        if (match := re.match(r"--from=(\S+)", copy))
    }
    assert sources <= set(stages())
    assert {"build-client", "build-server", "build-worker-cpu", "build-worker-cuda", "cuda"} == sources


def probe(data_dir: Path, port: int) -> subprocess.CompletedProcess[str]:
    environ = {"AOT_DATA_DIR": str(data_dir), "AOT_PORT": str(port)}
    command = [sys.executable, "-I", str(DEPLOY / "probe.py")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)


def test_the_probe_follows_a_real_registry(tmp_path: Path) -> None:
    with listening() as (_, url):
        port = int(url.rpartition(":")[2])
    assert probe(tmp_path, port).returncode == 1, "no token and nothing listens"
    environ = {"PATH": os.environ["PATH"], "AOT_DATA_DIR": str(tmp_path), "AOT_PORT": str(port)}
    server = subprocess.Popen([sys.executable, "-m", "registry", "serve"], cwd=ROOT, env=environ)
    try:
        for _ in range(300):
            if (done := probe(tmp_path, port)).returncode == 0:
                break
            assert server.poll() is None
            time.sleep(0.1)
        assert (done.returncode, done.stdout) == (0, "")
        (tmp_path / "probe-token").write_text("aot_unknown\n")
        done = probe(tmp_path, port)
        assert (done.returncode, done.stdout[:15]) == (1, "not ready: 401 ")
        assert "aot_unknown" not in done.stdout
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
