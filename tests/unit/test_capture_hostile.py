"""A captured command that turns on what reads its caches: links where others write and read by name, files gone."""

import os
from pathlib import Path

import pytest

from aot.cache.trees import remove_tree
from aot.capture.again import recapture
from aot.capture.collect import MARK, collect, list_paths, repeats
from aot.capture.prepare import Prepared
from aot.capture.publish import Making, stage_union
from aot.capture.restore import restore
from aot.capture.union import Base, with_bases, with_grown_tables
from aot.errors import InvalidInput, QualificationFailed
from aot.proof import faults_of
from aot.sandbox import SandboxKind
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.names import Reference
from tests.builders import a_file, an_environment
from tests.route_builders import a_capture_artifact, a_capture_manifest
from tests.sandbox_children import EACH_KIND, open_sandbox, run_python
from tests.unit.test_capture_proof import a_capture, a_tree

SECRET = b"what no command may see"
# Before what a benign program does: ATTACK, which knows the worker's directories and may fail at each step.
HOSTILE = """
import contextlib, os, pathlib, shutil, sys
caches = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent
scratch, target = caches.parents[1], pathlib.Path({target!r})
def link(place, to=target):
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        place.symlink_to(to)
"""
READS_LOG = "link(scratch / 'stderr.txt')\nraise SystemExit('failed, and said so')"
WRITES_LOG = "link(scratch / 'stderr.txt')\nprint('overwritten', file=sys.stderr)"
WRITES_ENTRIES = """
group = caches / "triton/KEY/__grp__add.json"
group.parent.mkdir(parents=True, exist_ok=True)
group.write_text("overwritten")
for name in ("first-entries", "second-entries"):
    for number in range(9):
        link(scratch / "caches" / name / f"{number}.entry")
"""
RESTORES_ELSEWHERE = """
if caches.name == "first":
    link(scratch / "caches/second/inductor", target.parent)
"""
GIVES_LINKS = """
kept = caches / "inductor/fxgraph/ab"
if kept.exists():
    for name in ("gone", "moved"):
        (kept / name / "one").read_bytes()
    link(kept / "gone/one")
    link(kept / "moved", target.parent)
else:
    for name in ("gone", "moved"):
        (kept / name).mkdir(parents=True)
        (kept / name / "one").write_text(name)
"""


LEAVES = """
(caches / 'inductor').mkdir(exist_ok=True)
with (caches / 'inductor/huge.so').open('wb') as file:
    file.truncate(100 << 30)
(caches / f'inductor/new{chr(10)}line').write_text('x')
os.mkfifo(caches / 'inductor/pipe.so')
os.chdir(caches / 'inductor')
for _ in range(1100):
    os.mkdir('d')
    os.chdir('d')
os.chdir(os.environ['HOME'])
"""


def hostile(tmp_path: Path, attack: str, *, target: Path) -> Manifest:
    """Push a harmless capture, and prove it where its tree has `attack` in front."""
    tree = a_tree(tmp_path / "tree")
    pushed = a_capture(tmp_path, tree, source=tree).manifest
    program = (tree / "program.py").read_text()
    (tree / "program.py").write_text(f"{HOSTILE.format(target=str(target))}{attack}\n{program}")
    return recapture(
        pushed,
        tree,
        scratch=tmp_path / "worker",
        sandbox=open_sandbox(SandboxKind.BUBBLEWRAP),
        devices=(),
        builder="worker-1",
        on_event=lambda event: None,
        should_stop=lambda: None,
    ).manifest


def a_secret(tmp_path: Path) -> Path:
    place = tmp_path / "secret" / "one"
    place.parent.mkdir()
    place.write_bytes(SECRET)
    return place


def test_what_a_failed_command_said_is_not_read_through_its_link(tmp_path: Path) -> None:
    with pytest.raises(QualificationFailed, match="ended with 1") as raised:
        hostile(tmp_path, READS_LOG, target=a_secret(tmp_path))
    assert raised.value.details["failures"] == ["failed, and said so\n"]


@pytest.mark.parametrize(
    "attack", [WRITES_LOG, WRITES_ENTRIES, RESTORES_ELSEWHERE, GIVES_LINKS], ids=["log", "entries", "restore", "links"]
)
def test_a_command_makes_its_worker_neither_write_nor_publish_what_it_cannot_reach(tmp_path: Path, attack: str) -> None:
    target = a_secret(tmp_path)
    proven = hostile(tmp_path, attack, target=target)
    assert target.read_bytes() == SECRET and os.listdir(target.parent) == ["one"]
    assert Digest.of(SECRET) not in {file.digest for file in proven.files}
    assert faults_of(proven) == () and "inductor/fxgraph/ab/key/one" in {file.path for file in proven.files}


def test_what_no_compiler_leaves_costs_a_worker_a_line(tmp_path: Path) -> None:
    proven = hostile(tmp_path, LEAVES, target=tmp_path)
    assert faults_of(proven) == () and "inductor/fxgraph/ab/key/one" in {file.path for file in proven.files}
    told = [warning.partition(": ")[2] for warning in proven.compile_report.warnings]
    assert len(told) == 3 and told[0].startswith("inductor/huge.so: 107374182400 bytes")
    remove_tree(tmp_path / "worker")
    assert not (tmp_path / "worker").exists()


def test_a_command_sees_its_own_caches_and_places_and_no_other_of_its_proof(tmp_path: Path) -> None:
    seen = "(caches / 'inductor/seen.cpp').parent.mkdir(exist_ok=True)\n"
    seen += (
        "found = sorted(str(p.relative_to(scratch)) for p in (*scratch.iterdir(), *(scratch / 'caches').iterdir()))\n"
    )
    seen += "(caches / 'inductor/seen.cpp').write_text(' '.join(found))"
    hostile(tmp_path, seen, target=tmp_path)
    runs = [(tmp_path / f"worker/caches/{name}/inductor/seen.cpp").read_text().split() for name in ("first", "second")]
    for number, (name, found) in enumerate(zip(("first", "second"), runs, strict=True)):
        assert set(found) - {"caches/bin"} == {"caches", f"caches/{name}", f"run-{number}"}


@pytest.mark.parametrize("path", ["inductor/cd/code.cpp", "inductor/fxgraph/ab/key/one", "triton/KEY/__grp__add.json"])
@pytest.mark.parametrize("how", ["link", "link on the way", "pipe"])
def test_no_entry_is_read_through_a_link_or_from_a_pipe(tmp_path: Path, path: str, how: str) -> None:
    place, secret = tmp_path / "caches" / path, a_secret(tmp_path)
    place.parent.mkdir(parents=True)
    if how == "link":
        place.symlink_to(secret)
    elif how == "pipe":
        os.mkfifo(place)
    else:
        place.parent.rmdir()
        place.parent.symlink_to(secret.parent)
        secret.rename(secret.with_name(place.name))
    assert list_paths(tmp_path / "caches") == frozenset()
    with pytest.raises(OSError):
        collect(tmp_path / "caches", scratch=tmp_path / "scratch", only=[path], as_found=[path])
    assert repeats(tmp_path / "caches", [path], []) == frozenset()


def test_caches_behind_a_link_of_the_hosts_own_are_read(tmp_path: Path) -> None:
    place = tmp_path / "there/inductor/cd/code.cpp"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"source")
    (tmp_path / "caches").symlink_to(tmp_path / "there")
    found = collect(tmp_path / "caches", scratch=tmp_path / "scratch")
    assert [entry.digest for entry in found.entries] == [Digest.of(b"source")]


@EACH_KIND
def test_a_stream_is_not_written_through_a_link(tmp_path: Path, kind: SandboxKind) -> None:
    target = a_secret(tmp_path)
    (tmp_path / "stderr.txt").symlink_to(target)
    with pytest.raises(InvalidInput, match="did not start"):
        run_python("import sys; sys.stderr.write('overwritten')", kind=kind, stderr=tmp_path / "stderr.txt")
    assert target.read_bytes() == SECRET


def a_restored(tmp_path: Path, **files: bytes) -> Prepared:
    """A bundle of `files` on this node: its blobs, and the caches that it was restored into."""
    for path, content in files.items():
        (tmp_path / "live" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "live" / path).write_bytes(content)
    live, caches = collect(tmp_path / "live", scratch=tmp_path / "live-scratch"), tmp_path / "caches"
    restore(live.entries, live.paths, into=caches)
    artifact = a_capture_artifact(files=tuple(entry.as_file() for entry in live.entries))
    about = (Reference.parse("default/trainer:v1"), an_environment(), caches, {}, Digest.of(b"restored"))
    return Prepared(*about, a_capture_manifest(), artifact, blobs=live.paths)


TABLE, CHOSEN = "vllm/torch_compile_cache/h/rank_0_0/backbone/vllm_compile_cache.py", "inductor/ab/kernel.best_config"
OLD, NEW = "inductor/fxgraph/ab/old/one", "inductor/fxgraph/ab/new/one"


@pytest.mark.parametrize("gone", [False, True], ids=["written anew", "taken away"])
def test_a_run_writes_back_the_restored_bytes_of_what_it_has_written_anew_and_the_grown_table(
    tmp_path: Path, gone: bool
) -> None:
    prepared = a_restored(tmp_path, **{TABLE: MARK + b"/old", CHOSEN: b"chosen for old", OLD: b"old"})
    caches = tmp_path / "caches"
    for path, text in {TABLE: f"{caches}/old {caches}/new", CHOSEN: "chosen for new", NEW: "new"}.items():
        (caches / path).parent.mkdir(parents=True, exist_ok=True)
        (caches / path).write_text(text)
        if gone and path != NEW:
            (caches / path).unlink()
    profile, environment = prepared.manifest.profile, prepared.environment
    making = Making(prepared.reference, ("serve",), profile, environment, {}, "me", tmp_path / "making")
    staged = stage_union(making, prepared, frozenset({NEW}), found_in=caches)
    content = {file.path: staged.paths[file.digest].read_bytes() for file in staged.manifest.files}
    table = MARK + (b"/old" if gone else b"/old " + MARK + b"/new")
    assert content == {TABLE: table, CHOSEN: b"chosen for old", OLD: b"old", NEW: b"new"}


def test_the_table_of_what_is_live_stays_where_another_directory_has_written_its_own(tmp_path: Path) -> None:
    """What an earlier run on this node has kept lies in the directory of the bundle that it ran on."""
    prepared, earlier = a_restored(tmp_path, **{TABLE: b"old", OLD: b"old"}), tmp_path / "earlier"
    for path, text in {TABLE: "new", NEW: "new"}.items():
        (earlier / path).parent.mkdir(parents=True, exist_ok=True)
        (earlier / path).write_text(text)
    profile, environment = prepared.manifest.profile, prepared.environment
    making = Making(prepared.reference, ("serve",), profile, environment, {}, "me", tmp_path / "making")
    staged = stage_union(making, prepared, frozenset({NEW, TABLE}), found_in=earlier)
    content = {file.path: staged.paths[file.digest].read_bytes() for file in staged.manifest.files}
    assert content == {TABLE: b"old", OLD: b"old", NEW: b"new"}


# What a run of vLLM writes anew each time that it compiles: its table of what lies where, and what tuning chose.
GROWING = """
import os, pathlib, sys
root = pathlib.Path(os.environ["VLLM_CACHE_ROOT"], "torch_compile_cache/hash/rank_0_0")
table, chosen = root / "backbone/vllm_compile_cache.py", root / "inductor_cache/ab/kernel.best_config"
for name in {names}:
    graph = root / "inductor_cache/fxgraph/ab" / name / "one"
    if graph.exists():
        graph.read_text(), table.read_text(), chosen.read_text()
        continue
    for place in (graph, table, chosen):
        place.parent.mkdir(parents=True, exist_ok=True)
    graph.write_text(name)
    with table.open("a") as file:
        file.write(str(graph) + chr(10))
    chosen.write_text("chosen for " + name)
"""


def test_a_union_holds_the_bases_bytes_of_what_its_run_has_written_anew_and_the_grown_table(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "program.py").write_text(GROWING.format(names=["old"]))
    live = a_capture(tmp_path, tree, source=tree)
    base = Base(live.digest, live.manifest.artifacts[0], live.paths)
    (tree / "program.py").write_text(GROWING.format(names=["old", "new"]))
    union = recapture(
        live.manifest,
        tree,
        scratch=tmp_path / "worker",
        sandbox=None,
        devices=(),
        builder="worker-1",
        bases=(base,),
        on_event=lambda event: None,
        should_stop=lambda: None,
    )
    root = "vllm/torch_compile_cache/hash/rank_0_0/"
    content = {file.path.removeprefix(root): union.paths[file.digest].read_text() for file in union.manifest.files}
    graphs = {name: f"inductor_cache/fxgraph/ab/{name}/one" for name in ("old", "new")}
    assert content == {
        **{path: name for name, path in graphs.items()},
        "inductor_cache/ab/kernel.best_config": "chosen for old",
        "backbone/vllm_compile_cache.py": "".join(f"[AOT_CACHES]/{root}{graphs[name]}\n" for name in ("old", "new")),
    }


def test_a_union_with_what_went_live_meanwhile_keeps_the_live_table() -> None:
    live, mine = (a_capture_artifact(files=(a_file(TABLE, word), a_file(CHOSEN, word))) for word in (b"live", b"mine"))
    union = with_bases(mine, (Base(Digest.of(b"live"), live, {}),))
    assert union.files == live.files
    assert with_grown_tables(union, mine).files == (mine.files[0], live.files[1])
