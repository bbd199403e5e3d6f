"""Tags, withdrawal, and what a node does."""

from pathlib import Path
from typing import Any

import pytest

from aot.cli.doctor import Report
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.wire.workers import Scope
from aot.trust import SigningKey
from tests.builders import a_node, a_spec, an_environment
from tests.commands import Shell
from tests.integration.cli.shells import PROFILE

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
    host.write_bytes(encode(Report(environment=poor, problems=(), exit_code=0)))
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
