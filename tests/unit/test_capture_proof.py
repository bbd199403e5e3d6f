"""The proof of captured caches: a worker runs the command itself, and what it wrote is what goes live."""

import sys
from pathlib import Path

import pytest

from aot.capture import again as proving
from aot.capture.again import recapture
from aot.capture.pins import effective_environment
from aot.capture.publish import Making, stage
from aot.capture.union import Base
from aot.config import whole_environ
from aot.environment import observe_environment
from aot.errors import InvalidInput, InvalidProfile, InvalidSpec, QualificationFailed
from aot.keys import changes_between, factors_of
from aot.pipeline.build import Staged
from aot.pipeline.profiles import observe_profiles
from aot.proof import faults_of
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.names import Reference
from registry.services.requests import check_spec
from tests.builders import a_profile, altered

PROGRAM = """
import os, pathlib, sys
place = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "fxgraph/ab"
for name in {names}:
    path = place / name / "one"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.read_bytes()
    else:
        path.write_text({text})
"""


def a_tree(place: Path, *, names: str = "('key',)", text: str = "'made here'") -> Path:
    place.mkdir()
    (place / "program.py").write_text(PROGRAM.format(names=names, text=text))
    return place


def a_capture(tmp_path: Path, tree: Path, *, source: Path | None) -> Staged:
    environ = whole_environ()
    effective = effective_environment(observe_environment(), environ)
    profile = observe_profiles(observe_environment())[0]
    program = ("python3", "-S", str(tree / "program.py"))
    making = Making(Reference.parse("default/toy:v1"), program, profile, effective, environ, "me", tmp_path / "capture")
    return stage(making, source=source, again=False)[0]


def again(pushed: Manifest, tree: Path | None, scratch: Path, *, bases: tuple[Base, ...] = ()) -> Manifest:
    return recapture(
        pushed,
        tree,
        scratch=scratch,
        sandbox=None,
        devices=(),
        builder="worker-1",
        bases=bases,
        on_event=lambda event: None,
        should_stop=lambda: None,
    ).manifest


def test_a_pushed_capture_is_unproven_and_the_workers_own_is_proven(tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree")
    pushed = a_capture(tmp_path, tree, source=tree).manifest
    check_spec(pushed.spec)
    assert any("no worker has run the command" in fault for fault in faults_of(pushed))
    # What the pusher's entries hold is nothing to the worker: it has other ones.
    (tree / "program.py").write_text(PROGRAM.format(names="('key',)", text="'made by the worker'"))
    proven = again(pushed, tree, tmp_path / "worker")
    assert faults_of(proven) == ()
    assert proven.artifacts[0].files != pushed.artifacts[0].files
    assert (proven.spec, proven.build_key) == (pushed.spec, pushed.build_key)
    assert proven.provenance.builder == "me, captured again by worker-1"


def test_a_union_that_another_process_was_first_with_ends_as_that(tmp_path: Path) -> None:
    """Pods that start at once compile the same graph, and each pushes it."""
    tree = a_tree(tmp_path / "tree")
    pushed = a_capture(tmp_path, tree, source=tree)
    [artifact] = pushed.manifest.artifacts
    live = Base(Digest.of(b"live"), artifact, pushed.paths)
    with pytest.raises(QualificationFailed) as raised:
        again(pushed.manifest, tree, tmp_path / "worker", bases=(live,))
    assert raised.value.message == "there is nothing to add: every graph that python3 compiles here is live already"


def test_a_command_that_compiles_anew_at_every_start_is_not_proven(tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree", names="('key', str(os.getpid()))")
    pushed = a_capture(tmp_path, tree, source=tree).manifest
    with pytest.raises(QualificationFailed, match="second run of the command compiled 1 graphs again"):
        again(pushed, tree, tmp_path / "worker")


def test_a_command_that_fails_on_the_worker_is_told_with_what_it_said(tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree")
    pushed = a_capture(tmp_path, tree, source=tree).manifest
    (tree / "program.py").write_text("raise SystemExit('no such thing here')")
    with pytest.raises(QualificationFailed, match="ended with 1") as raised:
        again(pushed, tree, tmp_path / "worker")
    assert "no such thing here" in str(raised.value.details["failures"])


def test_a_command_beyond_a_limit_is_told_which(tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree")
    pushed = a_capture(tmp_path, tree, source=tree).manifest
    few = altered(pushed.spec, limits=altered(pushed.spec.limits, disk_bytes=1 << 20))
    (tree / "program.py").write_text(
        "import os, sys\nopen(os.environ['HOME'] + '/f', 'wb').write(b'1' * (8 << 20))\nsys.exit('wrote')"
    )
    with pytest.raises(QualificationFailed, match="python3 was ended: too much disk") as raised:
        again(altered(pushed, spec=few), tree, tmp_path / "worker")
    assert "wrote" in str(raised.value.details["failures"])


def test_a_capture_without_a_tree_is_nothing_to_push(tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree")
    pushed = a_capture(tmp_path, tree, source=None).manifest
    with pytest.raises(InvalidSpec, match="the tree that it runs in"):
        check_spec(pushed.spec)
    with pytest.raises(QualificationFailed, match="no tree"):
        again(pushed, None, tmp_path / "worker")


def test_the_key_of_a_capture_names_what_differs(tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree")
    manifest = a_capture(tmp_path, tree, source=tree).manifest
    source = altered(manifest.spec.source, command=("python3", "other.py"))
    other = altered(manifest.spec, source=source, recipe=altered(manifest.spec.recipe, environment={"CXX": "clang++"}))
    names = {change.name for change in changes_between(manifest.factors, factors_of(other, manifest.profile))}
    assert names >= {"command", "environment:CXX"}


def test_a_capture_for_the_profile_of_another_level_is_refused(tmp_path: Path) -> None:
    environ = whole_environ()
    effective = effective_environment(observe_environment(), environ)
    other = a_profile(capability="cpu:x86-64-v2")
    making = Making(Reference.parse("default/toy:v1"), ("true",), other, effective, environ, "me", tmp_path / "none")
    with pytest.raises(InvalidProfile, match="x86-64-v2"):
        stage(making, source=None)


def test_a_second_run_that_looks_into_no_cache_is_not_proven(tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree")
    pushed = a_capture(tmp_path, tree, source=tree).manifest
    program = (tree / "program.py").read_text().replace("path.read_bytes()", "pass")
    (tree / "program.py").write_text(program)
    with pytest.raises(QualificationFailed, match="found 0 of 1 graphs"):
        again(pushed, tree, tmp_path / "worker")


def test_a_proof_that_could_not_be_watched_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = a_tree(tmp_path / "tree")
    pushed = a_capture(tmp_path, tree, source=tree).manifest
    monkeypatch.setattr("aot.capture.capture.OpenWatch.finish", lambda self: None)
    with pytest.raises(QualificationFailed, match="found an unknown number of 1 graphs"):
        again(pushed, tree, tmp_path / "worker")


@pytest.mark.parametrize("variable", ["HOME", "TMPDIR"])
def test_each_run_of_a_proof_has_places_of_its_own(tmp_path: Path, variable: str) -> None:
    tree = a_tree(tmp_path / "tree")
    pushed = a_capture(tmp_path, tree, source=tree).manifest
    left = f"left = pathlib.Path(os.environ[{variable!r}], 'left')\nassert not left.exists()\nleft.write_text('x')\n"
    with (tree / "program.py").open("a") as file:
        file.write(left)
    assert faults_of(again(pushed, tree, tmp_path / "worker")) == ()


def test_a_program_is_the_one_that_was_named_or_none(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    for place in (tree / "bin" / "true", tmp_path / "outside"):
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
    environ = {"PATH": "/usr/bin:/bin"}
    for name in ("python", "python3", "python3.11", "/elsewhere/bin/python3"):
        assert proving._program(name, environ, tree) == sys.executable
    assert proving._program("./bin/true", environ, tree) == str(tree / "bin" / "true")
    assert proving._program("bin/true", environ, tree) == str(tree / "bin" / "true")
    assert Path(proving._program("true", environ, tree)).parent in (Path("/usr/bin"), Path("/bin"))
    for name in ("/nowhere/true", "other/true", "python-config-of-none", "pythonx"):
        with pytest.raises(InvalidInput, match="has no program"):
            proving._program(name, environ, tree)
    (tree / "link").symlink_to(tmp_path / "outside")
    for name in ("../outside", "./link"):
        with pytest.raises(InvalidInput, match="outside of the tree"):
            proving._program(name, environ, tree)


def test_a_command_has_the_packages_of_this_worker_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proving._environ(tmp_path)["PYTHONPATH"] == ""
    place = tmp_path / "deps"
    (place / "torch-2.13.0.dist-info").mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin" / "torchrun-of-deps").touch(0o755)
    monkeypatch.setattr("sys.path", ["", str(place), *sys.path])
    assert proving._environ(tmp_path)["PYTHONPATH"] == str(place)
    found = proving._program("torchrun-of-deps", {"PATH": "/usr/bin:/bin"}, tmp_path)
    assert found == str(place / "bin" / "torchrun-of-deps")


def test_a_launcher_is_the_one_of_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path / "venv" / "torchrun", tmp_path / "bin" / "torchrun", tmp_path / "bin" / "other"):
        place.parent.mkdir(exist_ok=True)
        place.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    environ = {"PATH": str(tmp_path / "bin")}
    assert proving._program("torchrun", environ, tmp_path) == str(tmp_path / "venv" / "torchrun")
    assert proving._program("other", environ, tmp_path) == str(tmp_path / "bin" / "other")


def test_what_could_never_go_live_is_not_written_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command would run for hours, and its entries stay pending for ever."""
    from aot.cli.capture import run_command_on

    for name, value in (("AOT_OFFLINE", "1"), ("AOT_CACHE_DIR", str(tmp_path / "cache")), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    command = ["/bin/sh", "-c", f"touch {tmp_path}/started; exit 7"]
    with pytest.raises(InvalidInput, match="could not go live") as raised:
        run_command_on("mini:v1", command, lock=None, bytecode=None, write_back=True)
    assert "aot capture --source" in raised.value.hint and not (tmp_path / "started").exists()
    assert run_command_on("mini:v1", command, lock=None, bytecode=None, write_back=False) == 7


def test_the_command_runs_again_on_the_card_that_the_worker_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = a_tree(tmp_path / "tree", text="os.environ.get('CUDA_VISIBLE_DEVICES', 'any')")
    pushed = a_capture(tmp_path, tree, source=tree).manifest
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-dddd")
    (entry,) = again(pushed, tree, tmp_path / "proof").artifacts[0].files
    assert entry.digest == Digest.of(b"GPU-dddd")
