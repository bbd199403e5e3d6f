"""Compiler caches as entries: what they are, what is kept, and how they come back."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from aot.capture.collect import MARK, collect, list_paths
from aot.capture.entries import Entry, Kind, kind_of
from aot.capture.restore import MOST_DIRECTORIES, in_use, place_for, restore
from aot.capture.roots import ROOTS, Evidence, variables_of
from aot.capture.units import is_litter, used_of
from aot.errors import DigestMismatch, InvalidConfig, LocalStorageFull, MalformedDocument
from aot.schema.digest import Digest
from tests.caches import GRAPH, GROUP, KERNEL, caches, write


def snapshot(directory: Path) -> dict[str, bytes]:
    return {path: (directory / path).read_bytes() for path in list_paths(directory)}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (GRAPH, Kind.FXGRAPH),
        ("inductor/aotautograd/key/one", Kind.AOT_AUTOGRAD),
        ("inductor/ab/name.best_config", Kind.BEST_CONFIG),
        ("inductor/ab/name.so", Kind.LIBRARY),
        ("inductor/ab/name.py", Kind.CODE),
        ("inductor/dynamo/code_state_x.pkl", Kind.DYNAMO),
        ("inductor/triton/0/KEY/add.cubin", Kind.TRITON),
        (KERNEL, Kind.TRITON),
        ("cuda/a/b/digest", Kind.DRIVER),
        ("extensions/mine/mine.so", Kind.EXTENSION),
        ("vllm/torch_compile_cache/h/rank_0_0/computation_graph.py", Kind.FILE),
    ],
)
def test_the_kind_of_an_entry_follows_from_its_path(path: str, kind: Kind) -> None:
    assert kind_of(path) is kind


def test_entries_come_back_elsewhere_byte_for_byte_and_with_their_new_place(tmp_path: Path) -> None:
    found = collect(caches(tmp_path / "first"), scratch=tmp_path / "scratch")
    assert restore(found.entries, found.paths, into=tmp_path / "second") == len(found.entries) == 5
    again = snapshot(tmp_path / "second")
    paths = json.loads(again.pop(GROUP))["child_paths"]
    assert paths == {"add.cubin": f"{tmp_path}/second/{KERNEL}"} and Path(paths["add.cubin"]).is_file()
    first = snapshot(tmp_path / "first")
    first.pop(GROUP)
    assert again == first
    assert restore(found.entries, found.paths, into=tmp_path / "second") == 0


def test_equal_caches_of_two_places_have_equal_entries(tmp_path: Path) -> None:
    one = collect(caches(tmp_path / "one"), scratch=tmp_path / "a")
    other = collect(caches(tmp_path / "another-place"), scratch=tmp_path / "b")
    assert one.entries == other.entries
    assert MARK in one.paths[next(entry.digest for entry in one.entries if entry.path == GROUP)].read_bytes()


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_files_of_every_cache_that_has_evidence_travel_by_its_variable(root: object, tmp_path: Path) -> None:
    """Under the layout that the row states, with what a program writes and finds through the variable alone."""
    layouts = {
        "inductor": "fxgraph/ab/key/one",
        "triton": "KEY/add.cubin",
        "cuda": "0/1/digest",
        "extensions": "mine/mine.so",
        "vllm": "torch_compile_cache/0123456789/rank_0_0/backbone/computation_graph.py",
    }
    assert (root.name in layouts) == (root.evidence is not Evidence.UNPROVEN)
    path = layouts.get(root.name, "some/file")
    first = Path(variables_of(tmp_path / "first")[root.variable])
    write(first, **{path: b"content"})
    found = collect(tmp_path / "first", scratch=tmp_path / "scratch")
    restore(found.entries, found.paths, into=tmp_path / "second")
    assert (Path(variables_of(tmp_path / "second")[root.variable]) / path).read_bytes() == b"content"


def test_the_driver_finds_the_directory_that_it_is_told_to_use(tmp_path: Path) -> None:
    """Also before anything of it was captured: whether it makes one for itself is said nowhere."""
    restore((), {}, into=tmp_path / "caches")
    assert Path(variables_of(tmp_path / "caches")["CUDA_CACHE_PATH"]).is_dir()
    assert list_paths(tmp_path / "caches") == frozenset()


def test_locks_half_written_files_and_headers_are_no_entries(tmp_path: Path) -> None:
    write(
        caches(tmp_path),
        **{
            "inductor/locks/x.lock": b"",
            "triton/KEY/tmp.pid_1_a/add.cubin": b"",
            "inductor/precompiled_headers/h.h.gch": b"",
            "elsewhere/file": b"",
        },
    )
    assert len(list_paths(tmp_path)) == 5 and is_litter("inductor/locks/x.lock")


def test_what_belongs_to_something_that_was_opened_is_kept_together() -> None:
    paths = {
        GRAPH,
        KERNEL,
        GROUP,
        "triton/OTHER/add.cubin",
        "inductor/cd/a.cpp",
        "inductor/cd/a.so",
        "inductor/cd/b.so",
    }
    assert used_of(paths, frozenset({KERNEL, "inductor/cd/a.so"})) == {
        KERNEL,
        GROUP,
        "inductor/cd/a.cpp",
        "inductor/cd/a.so",
    }


@pytest.mark.parametrize("path", ["../x", "/etc/x", "inductor/../../x", "unknown/x", "inductor", "inductor/a\0b"])
def test_a_hostile_path_is_refused_before_anything_is_written(path: str, tmp_path: Path) -> None:
    blob = write(tmp_path, blob=b"x") / "blob"
    entry = Entry(Kind.FILE, path, Digest.of(b"x"), 1)
    with pytest.raises(MalformedDocument):
        restore([entry], {entry.digest: blob}, into=tmp_path / "caches")
    assert not (tmp_path / "caches").exists()


def test_a_blob_with_other_bytes_is_not_restored(tmp_path: Path) -> None:
    blob = write(tmp_path, blob=b"other") / "blob"
    entry = Entry(Kind.FXGRAPH, GRAPH, Digest.of(b"graph"), 5)
    with pytest.raises(DigestMismatch):
        restore([entry], {entry.digest: blob}, into=tmp_path / "caches")
    assert snapshot(tmp_path / "caches") == {}


def test_a_damaged_file_is_replaced_and_what_a_run_compiled_stays(tmp_path: Path) -> None:
    found = collect(caches(tmp_path / "first"), scratch=tmp_path / "scratch")
    restore(found.entries, found.paths, into=tmp_path / "second")
    (tmp_path / "second" / GRAPH).write_bytes(b"grape")
    write(tmp_path / "second", **{"inductor/fxgraph/ab/key/two": b"own"})
    assert restore(found.entries, found.paths, into=tmp_path / "second") == 1
    assert (tmp_path / "second" / GRAPH).read_bytes() == b"graph"
    assert (tmp_path / "second/inductor/fxgraph/ab/key/two").read_bytes() == b"own"


def restore_and_check(first: str, into: str, scratch: str, results: "multiprocessing.Queue[str]") -> None:
    try:
        found = collect(Path(first), scratch=Path(scratch) / str(os.getpid()))
        restore(found.entries, found.paths, into=Path(into))
        whole = all((Path(into) / path).read_bytes() for path in (GRAPH, KERNEL, "inductor/cd/code.so"))
        results.put("whole" if whole else "empty")
    except Exception as error:
        results.put(repr(error))


def test_sixteen_processes_restore_one_bundle_into_one_directory(tmp_path: Path) -> None:
    caches(tmp_path / "first")
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    arguments = (str(tmp_path / "first"), str(tmp_path / "second"), str(tmp_path / "scratch"), results)
    processes = [context.Process(target=restore_and_check, args=arguments) for _ in range(16)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == ["whole"] * 16
    for process in processes:
        process.join()
    expected = {path: content for path, content in snapshot(tmp_path / "first").items() if path != GROUP}
    got = snapshot(tmp_path / "second")
    assert {path: content for path, content in got.items() if path != GROUP} == expected
    assert not [place for place in (tmp_path / "second").rglob(".aot-*")]


@pytest.mark.parametrize(("number", "kind"), [(28, LocalStorageFull), (116, InvalidConfig), (5, InvalidConfig)])
def test_a_rename_that_fails_is_told_and_leaves_nothing_behind(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No space, a stale handle of a network file system, an input or output error."""
    found = collect(caches(tmp_path / "first"), scratch=tmp_path / "scratch")

    def fail(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("aot.capture.restore.os.replace", fail)
    with pytest.raises(kind):
        restore(found.entries, found.paths, into=tmp_path / "second")
    assert [place for place in (tmp_path / "second").rglob("*") if place.is_file()] == []


def test_directories_that_nobody_runs_on_are_forgotten_the_oldest_first(tmp_path: Path) -> None:
    places = [place_for(tmp_path, Digest.of(str(number).encode())) for number in range(MOST_DIRECTORIES + 2)]
    for age, place in enumerate(places):
        restore((), {}, into=place)
        os.utime(place, (1000 - age, 1000 - age))
    with in_use(places[-1]), in_use(places[0]):
        assert places[-1].is_dir() and not places[-2].is_dir() and places[0].is_dir()


def test_a_directory_that_vanishes_meanwhile_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{GRAPH: b"graph", "inductor/gone/one": b"x"})
    listed = os.scandir

    def scandir(place: Path) -> object:
        if place.name == "gone":
            raise FileNotFoundError(place)
        return listed(place)

    monkeypatch.setattr("aot.capture.listing.os.scandir", scandir)
    assert list_paths(tmp_path) == {GRAPH}
