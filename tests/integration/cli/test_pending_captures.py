"""`aot run` where a capture has been pushed and not been proven yet."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.schema.manifest import Manifest
from aot.schema.wire.bundles import PublishReply
from tests.builders import a_profile, altered
from tests.commands import Ran, Shell, a_shell
from tests.route_builders import a_capture_artifact, a_capture_manifest, a_capture_source


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with a_shell(tmp_path) as shell:
        shell.service.register(a_profile())
        yield shell


def a_capture(*words: str) -> Manifest:
    source = a_capture_source(command=("python", "train.py", *words), requirements=())
    return a_capture_manifest(source, artifacts=(a_capture_artifact(),))


def push(shell: Shell, *words: str, tag: str = "v1") -> PublishReply:
    return shell.service.push(a_capture(*words), tags=(tag,))


def run(shell: Shell, reference: str = "trainer:v1") -> Ran:
    ran = shell.aot("run", reference, "--", "sh", "-c", "echo started; exit 3")
    assert (ran.code, ran.out) == (3, "started\n")
    return ran


def test_a_capture_that_waits_for_its_proof_is_told_with_its_build(shell: Shell) -> None:
    reply = push(shell)
    told = run(shell).err
    since = r"pending since \d{4}-\d\d-\d\d \d\d:\d\d UTC"
    line = rf"aot: {reply.bundle.short} for cpu-v3 is {since}: its proof, build {reply.build}, is queued"
    assert re.search(line, told), told
    assert (
        f"the command starts without it, and compiles; a start after its proof restores it: `aot wait {reply.build}`"
        in told
    )
    assert told.index("nothing restored") < told.index("pending since")
    shell.service.claim("cpu-v3", build=reply.build)
    assert f"build {reply.build}, is running\n" in run(shell).err
    # By its digest as well: nobody may load it before its proof.
    assert f"build {reply.build}, is running\n" in run(shell, f"trainer@{reply.bundle}").err


def test_a_capture_under_another_tag_is_not_told_of(shell: Shell) -> None:
    other = push(shell, "other", tag="v2")
    assert "pending" not in run(shell).err
    mine = push(shell, "mine")
    told = run(shell).err
    assert mine.bundle.short in told and other.bundle.short not in told


def test_nothing_is_told_once_it_is_live(shell: Shell) -> None:
    push(shell)
    claim = shell.service.claim("cpu-v3")
    manifest = a_capture()
    shell.service.publish(claim, altered(manifest, qualification=altered(manifest.qualification, seconds=4.0)))
    assert "pending" not in run(shell).err


def test_a_registry_that_is_away_is_not_asked_once_more(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    push(shell)
    assert "pending" not in run(shell.with_environ(AOT_OFFLINE="1")).err
    away = shell.with_environ(AOT_URL="http://127.0.0.1:9", AOT_TIMEOUT="0.2")
    assert "pending" not in run(away).err
