"""Commands that build: submit, follow, cancel."""

import re
from pathlib import Path

import pytest

from aot.schema.recipe import Randomness, Recipe
from aot.schema.spec import Commit, CommitTeller, Limits
from aot.schema.state import BuildState
from aot.schema.wire.builds import CancelRequest, FailRequest, ProgressRequest
from aot.schema.wire.errors import ErrorBody
from tests.builders import a_spec
from tests.commands import Shell, end, interrupt
from tests.fake_backend import a_packed_source
from tests.integration.cli.shells import PROFILE


def build_arguments(tree: Path, name: str) -> tuple[str, ...]:
    return (name, "--source", str(tree), "--entry", "model:make", "--profile", PROFILE.name)


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

    assert options("build") - options("submit") == {"--here", "--from", "--as-bundle", "--log"}
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
