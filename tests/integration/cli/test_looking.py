"""Commands that look: help, versions, lists and what they show."""

import subprocess
import sys

import pytest

from aot.schema.digest import Digest
from aot.schema.wire.builds import FailRequest
from aot.schema.wire.errors import ErrorBody
from tests.builders import a_spec
from tests.commands import COMMAND, Shell
from tests.integration.cli.shells import PROFILE

# What needs no registry


def test_help_names_every_command(shell: Shell) -> None:
    ran = shell.aot("--help")
    assert ran.code == 0 and ran.err == ""
    wanted = "up build submit wait cancel ls show pull verify push tag untag withdraw ensure explain matrix kernels"
    wanted += " inspect doctor version admin"
    assert {line.split()[0] for line in ran.lines if line.startswith("  ")} >= set(wanted.split())


def test_no_command_shows_the_help(shell: Shell) -> None:
    ran = shell.aot()
    assert ran.code == 2
    assert "Usage: aot" in ran.out + ran.err


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["nonsense"], "aot"),
        (["ls", "--nonsense"], "aot ls"),
        (["withdraw", "sha256:0"], "aot withdraw"),
        (["up", "--port", "x"], "aot up"),
        (["kernel", "build"], "aot kernel build"),
    ],
)
def test_wrong_usage_is_bad_input(shell: Shell, arguments: list[str], command: str) -> None:
    ran = shell.aot(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert f"try: {command} --help" in ran.err


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
    ran = shell.aot("doctor", "--for", "serving")
    assert ran.code == 0
    left_out = (" ", "problem", "warning", "no ")
    facts = dict(line.split(maxsplit=1) for line in ran.lines if line and not line.startswith(left_out))
    assert facts["machine"] and facts["cpu"].startswith("cpu:") and facts["python"].startswith("3.")
    assert shell.url in facts["registry"]
    report = shell.aot("doctor", "--json").json
    assert report["environment"]["node"]["machine"] == facts["machine"]


def test_doctor_names_a_registry_that_cannot_be_reached(shell: Shell) -> None:
    ran = shell.with_environ(AOT_URL="http://127.0.0.1:9", AOT_TRUSTED_KEYS=None).aot("doctor", "--for", "serving")
    assert ran.code == 5
    assert "problem (keeps it from serving): " in ran.out and "127.0.0.1:9" in ran.out
    assert "warning: AOT_TRUSTED_KEYS is not set" in ran.out


# Looking


def test_ls_shows_bundles_and_builds(shell: Shell, bundle: Digest) -> None:
    header, row = shell.aot("ls", "mini").lines
    assert header.split() == ["model", "tags", "bundle", "profile", "state", "weights", "size", "vs", "eager", "goes"]
    assert row.split()[:5] == ["default/mini", "latest,v1", bundle.short, PROFILE.name, "live"]
    [view] = shell.aot("ls", "mini", "--json").json["bundles"]
    assert view["digest"] == bundle
    [build] = shell.aot("ls", "mini", "--builds", "--json").json["builds"]
    assert (build["state"], build["bundle"]) == ("published", bundle)
    assert "published" in shell.aot("ls", "--builds", "default/mini").out


def test_ls_lists_the_builds_that_ended_without_a_bundle_and_why(shell: Shell, bundle: Digest) -> None:
    build = shell.service.submit(a_spec("dead", profile=PROFILE.name)).build.id
    claim = shell.service.claim(PROFILE.name, build=build)
    error = ErrorBody(code="backend-failed", message="the compiler crashed")
    shell.service.call("fail", FailRequest(error=error), token=claim.token, build=build)
    header, row = shell.aot("ls", "dead", "--builds", "--state", "failed").lines
    assert (header.split()[-1], row.split()[0], row.split()[-4:]) == (
        "why",
        build,
        ["backend-failed:", "the", "compiler", "crashed"],
    )
    assert [one["state"] for one in shell.aot("ls", "--builds", "--state", "published", "--json").json["builds"]] == [
        "published"
    ]
    assert "--state queued, running" in shell.aot("ls", "--builds", "--state", "dead").err
    assert shell.aot("ls", "--state", "failed").code == 2


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


def test_a_build_that_does_not_exist_is_called_a_build(shell: Shell) -> None:
    what = "0199f3c2-0000-7000-8000-000000000000"
    ran = shell.aot("show", what)
    assert (ran.code, ran.out) == (7, "")
    assert ran.err == (
        f"error: there is no build {what}, and no bundle default/{what}:latest\n"
        "  try: `aot ls --builds` lists builds, `aot ls` bundles; it may lie in a namespace you cannot see\n"
    )
    assert "no build" not in shell.aot("show", f"{what}:v1").err, "with a tag it is no build"
