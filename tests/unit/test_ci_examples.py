"""The jobs of examples/ci: YAML of the shape that their service reads, commands that parse, secrets by reference."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aot.schema.wire.workers import Scope
from tests.unit.test_deploy_docs import variables_read
from tests.unit.test_docs import command_of

ROOT = Path(__file__).parents[2]
GITHUB, GITLAB = (ROOT / "examples/ci" / name for name in ("github.yml", "gitlab.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Keys of one job (GitHub: "Workflow syntax"; GitLab: "CI/CD YAML syntax reference") that the examples may use.
GITHUB_JOB = {"if", "runs-on", "timeout-minutes", "steps", "env", "permissions"}
GITHUB_STEP = {"if", "name", "uses", "with", "run", "env"}
GITLAB_JOB = {"image", "rules", "interruptible", "timeout", "retry", "script", "artifacts", "variables"}


def read(path: Path) -> dict[str, Any]:
    # GitHub's `on` is true to YAML 1.1.
    return {"on" if name is True else name: value for name, value in yaml.safe_load(path.read_text()).items()}


def scripts(path: Path) -> list[str]:
    found = read(path)
    if path == GITHUB:
        return [step["run"] for job in found["jobs"].values() for step in job["steps"] if "run" in step]
    return [line for job in found.values() for line in job["script"]]


def commands(path: Path, program: str) -> Iterator[list[str]]:
    for line in "\n".join(scripts(path)).splitlines():
        words = shlex.split(line)
        if words[:1] == [program]:
            yield words[1:]


def test_the_workflow_has_the_shape_that_github_reads() -> None:
    workflow = read(GITHUB)
    assert set(workflow) == {"name", "on", "permissions", "concurrency", "jobs"}
    assert set(workflow["on"]) == {"push", "pull_request"} and workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert set(job) <= GITHUB_JOB and {"runs-on", "steps", "timeout-minutes"} <= set(job)
        for step in job["steps"]:
            assert set(step) <= GITHUB_STEP and ("run" in step) != ("uses" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1"))


def test_the_job_has_the_shape_that_gitlab_reads() -> None:
    for job in read(GITLAB).values():
        assert set(job) <= GITLAB_JOB and {"image", "script"} <= set(job)
        assert all(isinstance(line, str) for line in job["script"])
        assert re.fullmatch(r"python:\d+\.\d+", job["image"])


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=lambda path: path.stem)
def test_what_a_job_runs_exists(path: Path) -> None:
    [words] = commands(path, "aot")
    command, rest = command_of(words)
    given = command.make_context("aot", rest).params
    assert command.name == "ensure" and {Path("aot.toml"), Path("aot.lock")} <= set(map(Path, map(str, given.values())))
    [installed] = commands(path, "pip")
    assert installed[-1] == f"{PROJECT['name']}=={PROJECT['version']}"


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=lambda path: path.stem)
def test_a_lock_passes_only_as_it_was_committed(path: Path, tmp_path: Path) -> None:
    script = "\n".join(shlex.join(["git", *words]) for words in commands(path, "git"))

    def passes() -> bool:
        return subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, check=False).returncode == 0

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    assert not passes(), "there is no repository"
    git("init", "--quiet")
    lock, ignored = tmp_path / "aot.lock", tmp_path / ".gitignore"
    lock.write_text("{}\n")
    assert not passes(), "nobody has committed it"
    ignored.write_text("aot.lock\n")
    assert not passes(), "nobody ever will"
    ignored.unlink()
    git("add", "aot.lock")
    git("commit", "--quiet", "-m", "lock")
    assert passes()
    lock.write_text('{"changed": true}\n')
    assert not passes()


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=lambda path: path.stem)
def test_a_job_names_variables_that_are_read_and_holds_no_secret(path: Path) -> None:
    text = path.read_text()
    named = set(re.findall(r"\bAOT_[A-Z_]+\b", text))
    assert named == {"AOT_URL", "AOT_TRUSTED_KEYS", "AOT_TOKEN"} and named <= variables_read()
    assert not re.search(r"aot_[A-Za-z0-9_-]{20,}", text)
    [scopes] = re.findall(r"scopes (\w+) and (\w+)", text)
    assert {Scope(name) for name in scopes} == {Scope.SUBMIT, Scope.READ}


def test_the_secret_reaches_one_step_and_no_fork() -> None:
    [job] = read(GITHUB)["jobs"].values()
    holding = [step for step in job["steps"] if "secrets." in str(step)]
    assert [step["env"]["AOT_TOKEN"] for step in holding] == ["${{ secrets.AOT_TOKEN }}"]
    assert "fork" in job["if"] and job["if"].startswith("${{ !")


def test_a_service_that_is_away_is_the_one_exit_that_is_tried_again() -> None:
    from aot.cli.exits import exit_code_of
    from aot.errors import StorageUnavailable

    [job] = read(GITLAB).values()
    assert job["retry"]["exit_codes"] == [exit_code_of(StorageUnavailable("away", hint=""))]
