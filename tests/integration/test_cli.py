"""Every command of `aot` as a process: stdout is data, stderr is talk, and the exit code is part of the contract."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aot.cli.pod import Report
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.recipe import Randomness, Recipe
from aot.schema.spec import Commit, CommitTeller, Limits
from aot.schema.state import BuildState
from aot.schema.wire.builds import CancelRequest, FailRequest, ProgressRequest
from aot.schema.wire.bundles import WithdrawRequest
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Scope
from aot.trust import SigningKey
from tests.builders import a_manifest, a_node, a_profile, a_spec, an_environment
from tests.commands import COMMAND, Shell, a_shell, end, interrupt
from tests.fake_backend import a_packed_source

# What every x86-64 machine can be.
PROFILE = a_profile("cpu-base", capability="cpu:x86-64")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    place = tmp_path_factory.mktemp("shell")
    with a_shell(place) as shell:
        shell.service.register(PROFILE)
        yield shell


@pytest.fixture(scope="module")
def bundle(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Digest:
    """default/mini:latest and :v1."""
    spec = a_spec(profile=PROFILE.name, source=a_packed_source(tmp_path_factory.mktemp("source")))
    return shell.service.published(spec, tags=("latest", "v1")).bundle


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host file on which the bundle fits."""
    path = tmp_path / "host.json"
    path.write_bytes(encode(Report(environment=an_environment(), problems=())))
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "src"
    tree.mkdir()
    (tree / "model.py").write_text(f"def make(): ...  # {tmp_path.name}\n")
    return tree


def build_arguments(tree: Path, name: str) -> tuple[str, ...]:
    return (name, "--source", str(tree), "--entry", "model:make", "--profile", PROFILE.name)


# What needs no registry


def test_help_names_every_command(shell: Shell) -> None:
    ran = shell.aot("--help")
    assert ran.code == 0 and ran.err == ""
    wanted = "up build submit wait cancel ls show pull verify push tag withdraw ensure explain matrix kernels inspect"
    wanted += " doctor version"
    assert {line.split()[0] for line in ran.lines if line.startswith("  ")} >= set(wanted.split())


def test_no_command_shows_the_help(shell: Shell) -> None:
    ran = shell.aot()
    assert ran.code == 2
    assert "Usage: aot" in ran.out + ran.err


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["ls", "--nonsense"], ["withdraw", "sha256:0"], ["up", "--port", "x"]]
)
def test_wrong_usage_is_bad_input(shell: Shell, arguments: list[str]) -> None:
    ran = shell.aot(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert "try: aot --help" in ran.err


def test_the_version_is_told(shell: Shell) -> None:
    assert shell.aot("version").out == "0.1.0\n"
    assert shell.aot("version", "--json").json == {"version": "0.1.0"}


@pytest.mark.parametrize("command", [["ls"], ["show", "mini"], ["push", "."], ["cancel", "x"], ["wait", "x"]])
def test_without_an_address_the_next_step_is_named(shell: Shell, command: list[str]) -> None:
    ran = shell.with_environ(AOT_URL=None).aot(*command)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == ("error: AOT_URL is not set\n  try: start a registry with `aot up`; it prints the lines to set\n")


def test_a_wrong_variable_is_named(shell: Shell) -> None:
    ran = shell.with_environ(AOT_TIMEOUT="soon").aot("ls")
    assert (ran.code, ran.out) == (2, "")
    assert "AOT_TIMEOUT is 'soon'" in ran.err


def test_commands_of_ci_need_no_torch(shell: Shell) -> None:
    modules = "aot.cli.ensure, aot.cli.builds, aot.cli.pod, aot.cli.directories"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=dict(shell.environ), capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_doctor_says_what_this_host_is(shell: Shell) -> None:
    ran = shell.aot("doctor")
    assert ran.code == 0
    facts = dict(line.split(maxsplit=1) for line in ran.lines if line and not line.startswith((" ", "problem", "no ")))
    assert facts["machine"] and facts["cpu"].startswith("cpu:") and facts["python"].startswith("3.")
    assert shell.url in facts["registry"]
    report = shell.aot("doctor", "--json").json
    assert report["environment"]["node"]["machine"] == facts["machine"]


def test_doctor_names_a_registry_that_cannot_be_reached(shell: Shell) -> None:
    ran = shell.with_environ(AOT_URL="http://127.0.0.1:9", AOT_TRUSTED_KEYS=None).aot("doctor")
    assert ran.code == 0
    assert "problem: " in ran.out and "127.0.0.1:9" in ran.out
    assert "problem: AOT_TRUSTED_KEYS is not set" in ran.out


# Looking


def test_ls_shows_bundles_and_builds(shell: Shell, bundle: Digest) -> None:
    header, row = shell.aot("ls", "mini").lines
    assert header.split() == ["model", "tags", "bundle", "profile", "state", "weights", "size", "vs", "eager"]
    assert row.split()[:5] == ["default/mini", "latest,v1", bundle.short, PROFILE.name, "live"]
    [view] = shell.aot("ls", "mini", "--json").json["bundles"]
    assert view["digest"] == bundle
    [build] = shell.aot("ls", "mini", "--builds", "--json").json["builds"]
    assert (build["state"], build["bundle"]) == ("published", bundle)
    assert "published" in shell.aot("ls", "--builds", "default/mini").out


def test_ls_narrows_by_tag_only_where_one_is_given(shell: Shell, bundle: Digest) -> None:
    assert len(shell.aot("ls", "mini:v1").lines) == 2
    assert shell.aot("ls", "mini:nothing").lines == []
    assert shell.aot("ls", f"mini@{bundle}").code == 2


def test_ls_says_where_it_goes_on(shell: Shell, bundle: Digest) -> None:
    shell.service.published(a_spec("another", profile=PROFILE.name))
    first = shell.aot("ls", "--limit", "1")
    assert (len(first.lines), "there is more: --after '" in first.err) == (2, True)
    after = first.err.partition("--after '")[2].partition("'")[0]
    assert shell.aot("ls", "--limit", "1", "--after", after).lines[1] != first.lines[1]
    assert shell.aot("ls", "--limit", "1", "--json").json["next"] == after
    assert shell.aot("ls", "--limit", "0").code == 2


def test_a_reader_that_leaves_early_is_no_error(shell: Shell, bundle: Digest) -> None:
    command = f"set -o pipefail; {' '.join(COMMAND)} ls | true"
    done = subprocess.run(["bash", "-c", command], env=dict(shell.environ), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    command = f"set -o pipefail; {' '.join(COMMAND)} ls | head -1"
    done = subprocess.run(["bash", "-c", command], env=dict(shell.environ), capture_output=True, text=True)
    assert done.stdout.startswith("model")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_behind_stdout_is_told(shell: Shell, bundle: Digest) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "ls"], env=dict(shell.environ), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 5
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_show_takes_a_build_a_reference_or_a_digest(shell: Shell, bundle: Digest) -> None:
    [build] = shell.aot("ls", "mini", "--builds", "--json").json["builds"]
    shown = shell.aot("show", build["id"])
    assert f"bundle    {bundle}" in shown.lines
    assert shell.aot("show", build["id"], "--json").json["bundle"] == bundle
    for what in ("mini", "default/mini:v1", f"mini@{bundle}", bundle):
        shown = shell.aot("show", what)
        assert shown.lines[0] == f"bundle     {bundle}", shown.err
        assert "tags       latest, v1" in shown.lines
        [signed] = shell.aot("show", what, "--json").json
        assert signed["digest"] == bundle
    lines = shell.aot("show", "mini").out
    assert "any weights of this architecture" in lines and "numerics" in lines and "start" in lines


def test_what_does_not_exist_is_refused(shell: Shell) -> None:
    for what in ("nothing", "team/nothing:v1", f"mini@{Digest.of(b'no')}", Digest.of(b"no")):
        ran = shell.aot("show", what)
        assert (ran.code, ran.out) == (7, ""), what
        assert ran.err.startswith("error: there is no ") and "  try: " in ran.err


# Building


def test_submit_prints_the_build_and_talks_beside_it(shell: Shell, tree: Path) -> None:
    ran = shell.aot("submit", *build_arguments(tree, "submitted:v3"), "--dim", "batch=1..8", "--tag", "also")
    assert ran.code == 0
    view = shell.service.call("get_build", build=ran.out.strip())
    assert (view.state, view.tags) == (BuildState.QUEUED, ("v3", "also"))
    assert ran.err.startswith(f"{view.id} queued")
    again = shell.aot("submit", *build_arguments(tree, "submitted:v3"), "--dim", "batch=1..8", "--json")
    assert (again.json["build"]["id"], again.json["created"]) == (view.id, False)
    cancelled = shell.aot("cancel", view.id, "--reason", "a test", "--json")
    assert cancelled.json["state"] == "cancelled"
    waited = shell.aot("wait", view.id)
    assert (waited.code, waited.out) == (3, "")
    assert "was cancelled" in waited.err


def test_every_part_of_a_recipe_can_be_asked_for(shell: Shell, tree: Path) -> None:
    wanted = ("--dynamic", "--no-fullgraph", "--random", "unchecked", "--env", "SIZE=small", "--limit", "processes=64")
    ran = shell.aot("submit", *build_arguments(tree, "asked"), *wanted)
    spec = shell.service.claim(PROFILE.name, build=ran.out.strip()).spec
    assert spec.recipe == Recipe(
        dynamic=True, fullgraph=False, random=Randomness.UNCHECKED, environment={"SIZE": "small"}
    )
    assert spec.limits == Limits(processes=64)


def test_submit_and_build_take_the_same_options(shell: Shell) -> None:
    def options(command: str) -> set[str]:
        return set(re.findall(r"--[a-z][a-z-]*", shell.aot(command, "--help").out))

    assert options("build") - options("submit") == {"--here", "--as-bundle", "--log"}
    assert options("submit") - options("build") == set()


def test_a_build_carries_the_commit_of_its_source(shell: Shell, tree: Path) -> None:
    sha = "0123456789abcdef0123456789abcdef01234567"
    ran = shell.with_environ(GITHUB_SHA=sha).aot("submit", *build_arguments(tree, "committed"))
    claim = shell.service.claim(PROFILE.name, build=ran.out.strip())
    assert claim.spec.commit == Commit(revision=sha, told_by=CommitTeller.CI)


@pytest.mark.parametrize("command", ["submit", "build"])
def test_a_recipe_that_no_worker_can_follow_is_bad_input_and_nothing_is_asked(
    shell: Shell, tree: Path, command: str
) -> None:
    away = shell.with_environ(AOT_URL="http://127.0.0.1:9")
    ran = away.aot(command, *build_arguments(tree, "impossible"), "--option", "trace.debug_dir=traces")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: option trace.debug_dir cannot be set: ")


def test_build_follows_to_the_end_with_progress_on_stderr(shell: Shell, tree: Path) -> None:
    process = shell.start("build", *build_arguments(tree, "followed"))
    claim = shell.claim(process, PROFILE.name)
    reply = shell.service.publish(claim)
    ran = end(process)
    assert ran.code == 0
    assert f"bundle    {reply.bundle}" in ran.lines
    assert ran.err.splitlines()[-1] == f"{claim.build} published"
    again = shell.aot("build", *build_arguments(tree, "followed"), "--json")
    assert (again.code, again.json["bundle"]) == (0, reply.bundle), "and the same again is there at once"
    refused = shell.aot("cancel", claim.build)
    assert (refused.code, refused.err.startswith("error: ")) == (7, True)


def test_a_failed_build_ends_with_its_workers_words(shell: Shell, tree: Path) -> None:
    process = shell.start("build", *build_arguments(tree, "failing"))
    claim = shell.claim(process, PROFILE.name)
    error = ErrorBody(
        code="source-not-exportable",
        message="aten.nonzero has a size that depends on values",
        hint="mark the region as eager",
        details={"log": "line 1\n\x1b[31mline 2"},
    )
    shell.service.call("fail", FailRequest(error=error), token=claim.token, build=claim.build)
    ran = end(process)
    assert (ran.code, ran.out) == (3, "")
    assert "failed: aten.nonzero has a size that depends on values" in ran.err
    assert "    line 1\n" in ran.err and "try: mark the region as eager" in ran.err
    assert "\x1b" not in ran.err, "a log does not steer the terminal"
    assert shell.aot("wait", claim.build).code == 3
    shown = shell.aot("show", claim.build)
    assert (shown.code, "error     source-not-exportable" in shown.out) == (0, True)


def test_show_ends_with_the_end_of_a_long_log(shell: Shell, tmp_path: Path) -> None:
    spec = a_spec(name="talkative", profile=PROFILE.name, source=a_packed_source(tmp_path))
    build = shell.service.submit(spec).build.id
    claim = shell.service.claim(PROFILE.name, build=build)
    said = [f"line {number}" for number in range(1, 1204)]
    for begin in range(0, len(said), 400):
        request = ProgressRequest(lines=tuple(said[begin : begin + 400]))
        shell.service.call("report_progress", request, token=claim.token, build=build)
    every = [f"  | {line}" for line in said]
    assert shell.aot("show", build).err.splitlines() == [
        "  (1003 earlier lines: --whole-log shows them)",
        *every[-200:],
    ]
    assert shell.aot("show", build, "--whole-log").err.splitlines() == every
    shell.service.call("cancel", CancelRequest(reason="seen"), build=build)


def test_ctrl_c_leaves_the_build_and_says_how_to_go_on(shell: Shell, tree: Path) -> None:
    process = shell.start("build", *build_arguments(tree, "interrupted"))
    claim = shell.claim(process, PROFILE.name)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(claim.build)
    ran = interrupt(process)
    assert (ran.code, ran.out) == (130, "")
    assert f"build {claim.build} goes on; `aot wait {claim.build}` follows it" in ran.err
    assert ran.err.endswith("interrupted\n")
    assert shell.service.call("get_build", build=claim.build).state is BuildState.RUNNING
    shell.service.publish(claim)
    assert shell.aot("wait", claim.build).code == 0


def test_wait_gives_up_when_told_to(shell: Shell, tree: Path) -> None:
    build = shell.aot("submit", *build_arguments(tree, "slow")).out.strip()
    ran = shell.aot("wait", build, "--timeout", "0.3")
    assert (ran.code, ran.out) == (5, ""), "it goes on: nothing has failed"
    assert "is still queued" in ran.err
    assert f"`aot wait {build}` follows it on" in ran.err
    shell.aot("cancel", build)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--source", "nowhere"), "nowhere does not exist"),
        (("--entry", "model"), "wanted an entry module:function"),
        (("--profile", "h100"), "h100"),
        (("--mode", "fastest"), "fastest"),
        (("--dim", "batch"), "wanted a dimension"),
        (("--option", "x"), "wanted an inductor option"),
        (("--as-bundle", "out"), "--as-bundle belongs to --here"),
        (("--tag", "a b"), "wanted a tag"),
    ],
)
def test_a_wrong_submission_is_told_before_it_is_sent(
    shell: Shell, tree: Path, change: tuple[str, str], message: str
) -> None:
    ran = shell.aot("build", *build_arguments(tree, "wrong"), *change)
    assert ran.code in (2, 7) and ran.out == ""
    assert message in ran.err and "  try: " in ran.err
    assert shell.aot("ls", "wrong", "--builds").lines == []


def test_the_profile_is_chosen_or_comes_from_the_environment(shell: Shell, tree: Path) -> None:
    arguments = build_arguments(tree, "chosen")[:-2]
    reply = shell.aot("submit", *arguments, "--json").json
    assert reply["build"]["profile"] == PROFILE.name
    shell.aot("cancel", reply["build"]["id"])
    ran = shell.with_environ(AOT_PROFILE="another").aot("submit", *arguments)
    assert (ran.code, "another" in ran.err) == (7, True)


# Tags and withdrawal


def test_a_tag_is_moved_and_a_bundle_withdrawn(shell: Shell) -> None:
    first = shell.service.published(a_spec("moving", profile=PROFILE.name), tags=("latest",)).bundle
    moved = shell.aot("tag", "moving:stable", first)
    assert moved.out == f"default/moving:stable -> {first} ({PROFILE.name})\n"
    assert shell.aot("tag", "moving:stable", first, "--json").json["bundle"] == first
    assert shell.aot("tag", f"moving@{first}", first).code == 2
    assert shell.aot("tag", "moving", first).code == 2
    assert shell.aot("tag", "moving:x", "sha256:0").code == 2
    ran = shell.aot("withdraw", first, "--reason", "wrong on batch 1")
    assert (ran.code, ran.out) == (0, f"{first} withdrawn: wrong on batch 1\n")
    pulled = shell.aot("pull", "moving:stable")
    assert (pulled.code, "wrong on batch 1" in pulled.err) == (7, True)
    shown = shell.aot("show", first)
    assert (shown.code, "state      withdrawn: wrong on batch 1" in shown.lines) == (0, True)


# The node


def test_pull_prints_what_is_pinned_now(shell: Shell, bundle: Digest, host: Path) -> None:
    ran = shell.aot("pull", "mini", "--host", str(host))
    assert (ran.code, ran.out, ran.err) == (0, f"default/mini@{bundle}\n", "")
    [pulled] = shell.aot("pull", "mini", "--host", str(host), "--json").json
    assert (pulled["bundle"], pulled["reference"]) == (bundle, "default/mini:latest")
    here = shell.aot("pull", "mini")
    assert "undecided: load decides" in here.out


def test_pull_and_explain_say_why_nothing_fits(shell: Shell, bundle: Digest, host: Path) -> None:
    poor = an_environment(node=a_node(machine="aarch64"))
    host.write_bytes(encode(Report(environment=poor, problems=())))
    ran = shell.aot("pull", "mini", "--host", str(host))
    assert (ran.code, ran.out) == (4, "default/mini:latest: nothing fits this host\n")
    assert "aarch64" in ran.err
    ran = shell.aot("explain", "mini", "--host", str(host))
    assert ran.code == 4
    assert "rejected" in ran.out and "aarch64" in ran.out
    assert "chosen: none, the model runs eagerly" in ran.lines


def test_explain_shows_every_artifact(shell: Shell, bundle: Digest, host: Path) -> None:
    ran = shell.aot("explain", "mini", "--host", str(host))
    assert ran.code == 0
    assert ran.lines[0].split() == ["bundle", "profile", "weights", "region", "coverage", "verdict", "why"]
    assert ran.lines[1].split() == [bundle.short, "cpu-base", "any", "weights", "whole", "batch", "1..32", "fits"]
    assert ran.lines[-1] == f"chosen: {bundle}"
    assert shell.aot("explain", "mini", "--host", str(host), "--json").json["bundle"] == bundle


def test_a_node_works_on_when_the_registry_is_away(shell: Shell, bundle: Digest, host: Path, tmp_path: Path) -> None:
    warm = shell.with_environ(AOT_CACHE_DIR=str(tmp_path / "warm"))
    assert warm.aot("pull", "mini", "--host", str(host)).code == 0
    away = warm.with_environ(AOT_URL="http://127.0.0.1:9")
    ran = away.aot("pull", "mini", "--host", str(host))
    assert (ran.code, ran.out) == (0, f"default/mini@{bundle} (stale: the registry could not be asked)\n")
    cold = away.with_environ(AOT_CACHE_DIR=str(tmp_path / "cold")).aot("pull", "mini", "--host", str(host))
    assert (cold.code, cold.out) == (5, "")
    assert "127.0.0.1:9" in cold.err and "  try: " in cold.err


@pytest.mark.parametrize(
    ("variables", "code", "message"),
    [
        ({"AOT_TRUSTED_KEYS": str(SigningKey.generate().public)}, 6, "signed by"),
        ({"AOT_TRUSTED_KEYS": None}, 6, "no key is trusted"),
        ({"AOT_TRUSTED_KEYS": "ed25519:short"}, 2, "AOT_TRUSTED_KEYS"),
        ({"AOT_TOKEN": "wrong"}, 7, "token"),
        ({"AOT_TOKEN": None}, 7, "token"),
        ({"AOT_URL": "http://127.0.0.1:9"}, 5, "127.0.0.1:9"),
        ({"AOT_CACHE_DIR": "/proc/nowhere"}, 2, "/proc/nowhere"),
    ],
)
def test_each_family_of_errors_has_its_exit_code(
    shell: Shell, bundle: Digest, tmp_path: Path, variables: dict[str, str | None], code: int, message: str
) -> None:
    place: dict[str, Any] = {"AOT_CACHE_DIR": str(tmp_path / "fresh"), **variables}
    ran = shell.with_environ(**place).aot("pull", "mini")
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert ran.err.startswith("error: ") and message in ran.err and "  try: " in ran.err


def test_a_token_without_the_right_is_refused(shell: Shell, bundle: Digest) -> None:
    reader = shell.with_environ(AOT_TOKEN=shell.service.token(Scope.READ))
    assert reader.aot("ls").code == 0
    ran = reader.aot("withdraw", bundle, "--reason", "no")
    assert (ran.code, ran.out) == (7, "")


def test_pull_by_a_lock(shell: Shell, bundle: Digest, host: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    lock = project / "aot.lock"
    ran = shell.aot("pull", "--lock", str(lock))
    assert (ran.code, "cannot be read" in ran.err) == (2, True)
    lock.write_text("{}")
    ran = shell.aot("pull", "--lock", str(lock))
    assert (ran.code, "lock file" in ran.err) == (2, True)
    assert shell.aot("pull").code == 2


# The CI step


def write_project(tree: Path, name: str) -> Path:
    project = tree / "aot.toml"
    project.write_text(
        f'[[models]]\nname = "{name}"\nentry = "model:make"\nprofiles = ["{PROFILE.name}"]\ntags = ["latest"]\n'
    )
    return project


def test_ensure_builds_locks_and_is_idempotent(shell: Shell, tree: Path, host: Path) -> None:
    write_project(tree, "ensured")
    process = shell.start("ensure", cwd=tree)
    reply = shell.service.publish(shell.claim(process, PROFILE.name))
    ran = end(process)
    assert ran.code == 0
    assert ran.out == f"built\tdefault/ensured:latest\t{PROFILE.name}\t{reply.bundle}\tany weights\n"
    lock = tree / "aot.lock"
    before = (lock.stat().st_ino, lock.stat().st_mtime_ns)
    again = shell.aot("ensure", "-f", "aot.toml", "--lock", "aot.lock", "--json", cwd=tree)
    assert (again.code, again.err) == (0, "")
    assert again.json["outcome"] == "present" and again.json["bundle"] == reply.bundle
    assert (lock.stat().st_ino, lock.stat().st_mtime_ns) == before
    pulled = shell.with_environ(AOT_TRUSTED_KEYS=None).aot("pull", "--lock", str(lock), "--host", str(host))
    assert (pulled.code, pulled.out) == (0, f"default/ensured@{reply.bundle}\n")
    without_keys = shell.with_environ(AOT_TRUSTED_KEYS=None).aot("ensure", cwd=tree)
    assert (without_keys.code, without_keys.out.split()[0]) == (0, "present"), "the lock pins the keys"


def test_ensure_by_its_family_of_errors(shell: Shell, tree: Path) -> None:
    assert shell.aot("ensure", cwd=tree).code == 2, "there is no aot.toml"
    project = write_project(tree, "ensured-not")
    ran = shell.with_environ(AOT_TRUSTED_KEYS=None).aot("ensure", cwd=tree)
    assert (ran.code, "AOT_TRUSTED_KEYS is not set" in ran.err) == (2, True)
    ran = shell.with_environ(AOT_URL="http://127.0.0.1:9").aot("ensure", cwd=tree)
    assert (ran.code, ran.out) == (5, "")
    ran = shell.aot("ensure", "--lock", "nowhere/aot.lock", cwd=tree)
    assert (ran.code, "nowhere/aot.lock cannot be written" in ran.err) == (2, True)
    process = shell.start("ensure", cwd=tree)
    claim = shell.claim(process, PROFILE.name)
    error = ErrorBody(code="backend-failed", message="the compiler said no")
    shell.service.call("fail", FailRequest(error=error), token=claim.token, build=claim.build)
    ran = end(process)
    assert (ran.code, ran.out) == (3, "")
    assert "the compiler said no" in ran.err
    project.write_text("models = 3")
    ran = shell.aot("ensure", cwd=tree)
    assert (ran.code, "aot.toml" in ran.err) == (2, True)
    assert sorted(path.name for path in tree.iterdir()) == ["aot.toml", "model.py"]


def test_ctrl_c_during_ensure_leaves_no_file(shell: Shell, tree: Path) -> None:
    write_project(tree, "ensured-later")
    process = shell.start("ensure", cwd=tree)
    claim = shell.claim(process, PROFILE.name)
    ran = interrupt(process)
    assert (ran.code, ran.out) == (130, "")
    assert sorted(path.name for path in tree.iterdir()) == ["aot.toml", "model.py"]
    reply = shell.service.publish(claim)
    ran = shell.aot("ensure", cwd=tree)
    assert ran.out == f"present\tdefault/ensured-later:latest\t{PROFILE.name}\t{reply.bundle}\tany weights\n"


def test_a_cancelled_job_leaves_no_temporary_directory(shell: Shell, tree: Path, tmp_path: Path) -> None:
    write_project(tree, "ensured-cancelled")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = shell.with_environ(TMPDIR=str(scratch)).start("ensure", cwd=tree)
    claim = shell.claim(process, PROFILE.name)
    assert [path.name.startswith("aot-ensure-") for path in scratch.iterdir()] == [True]
    process.send_signal(signal.SIGTERM)
    ran = end(process)
    assert (ran.code, ran.out, list(scratch.iterdir())) == (143, "", [])
    shell.service.publish(claim)


def test_a_withdrawn_bundle_is_built_again_by_ensure(shell: Shell, tree: Path) -> None:
    write_project(tree, "ensured-again")
    process = shell.start("ensure", cwd=tree)
    first = shell.service.publish(shell.claim(process, PROFILE.name)).bundle
    assert end(process).code == 0
    shell.service.call("withdraw", WithdrawRequest(reason="a test"), digest=first)
    process = shell.start("ensure", cwd=tree)
    claim = shell.claim(process, PROFILE.name)
    manifest = a_manifest(claim.spec, profile=claim.profile, canaries=())
    second = shell.service.publish(claim, manifest).bundle
    ran = end(process)
    assert (ran.code, second in (tree / "aot.lock").read_text()) == (0, True)
    assert json.loads((tree / "aot.lock").read_text())["entries"][0]["bundle"] == second
