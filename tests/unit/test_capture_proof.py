"""The proof of captured caches: a worker runs the command itself, and what it wrote is what goes live."""

from pathlib import Path

import pytest

from aot.capture.again import recapture
from aot.capture.pins import effective_environment
from aot.capture.publish import Making, stage
from aot.config import whole_environ
from aot.environment import observe_environment
from aot.errors import InvalidProfile, InvalidSpec, QualificationFailed
from aot.keys import changes_between, factors_of
from aot.pipeline.build import Staged
from aot.pipeline.profiles import observe_profiles
from aot.proof import faults_of
from aot.schema.manifest import Manifest
from aot.schema.names import Reference
from registry.services.builds import check_spec
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


def again(pushed: Manifest, tree: Path | None, scratch: Path) -> Manifest:
    return recapture(
        pushed,
        tree,
        scratch=scratch,
        sandbox=None,
        devices=(),
        builder="worker-1",
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
