"""The CI step: `aot ensure`."""

import json
import signal
from pathlib import Path

from aot.schema.wire.builds import FailRequest
from aot.schema.wire.bundles import WithdrawRequest
from aot.schema.wire.errors import ErrorBody
from tests.builders import a_manifest
from tests.commands import Shell, end, interrupt
from tests.integration.cli.shells import PROFILE


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


def test_json_is_one_document_for_each_target_as_it_ends(shell: Shell, tree: Path) -> None:
    project = write_project(tree, "ensured-first")
    project.write_text(project.read_text() + project.read_text().replace("ensured-first", "ensured-second"))
    process = shell.start("ensure", "--json", cwd=tree)
    claims = {claim.spec.name: claim for claim in (shell.claim(process, PROFILE.name) for _ in range(2))}
    bundle = shell.service.publish(claims["ensured-first"]).bundle
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())  # while the other one is still being built
    assert (first["outcome"], first["reference"]) == ("built", "default/ensured-first:latest")
    assert (first["profile"], first["bundle"]) == (PROFILE.name, bundle)
    error = ErrorBody(code="backend-failed", message="the compiler said no")
    second = claims["ensured-second"]
    shell.service.call("fail", FailRequest(error=error), token=second.token, build=second.build)
    ran = end(process)
    missed = json.loads(ran.out)
    assert (ran.code, missed["outcome"], missed["bundle"]) == (3, "missed", None)
    assert missed["reference"] == "default/ensured-second:latest" and "said no" in missed["error"]["message"]


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
    missed = f"missed\tdefault/ensured-not:latest\t{PROFILE.name}\t-\tany weights\n"
    assert (ran.code, ran.out) == (3, missed)
    assert ran.err.count("the compiler said no") == 1
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
