"""A command that leaves what no compiler leaves: it costs a line, and neither memory, disk, time nor another entry."""

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.cache.trees import remove_tree, temporary_tree
from aot.capture.capture import MOST_NOTES, Captured, capture, warnings_of
from aot.capture.collect import collect, list_paths
from aot.capture.command import Ended
from aot.capture.listing import HOLES_FROM_BYTES, MOST_FILE_BYTES, directories_of, list_caches
from aot.capture.watch import OpenWatch
from aot.errors import InvalidInput
from tests.builders import an_environment
from tests.users import as_nobody

GRAPH = "inductor/fxgraph/ab/key/one"


def caches(place: Path) -> Path:
    (place / GRAPH).parent.mkdir(parents=True, exist_ok=True)
    (place / GRAPH).write_bytes(b"graph")
    (place / "inductor/ab").mkdir()
    return place


def nested(place: Path, depth: int, *, name: str = "d") -> None:
    """Directories in each other, also where their path is too long to be said."""
    before = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=before)
        inner = os.open(name, os.O_RDONLY, dir_fd=before)
        os.close(before)
        before = inner
    os.close(os.open("leaf.cpp", os.O_CREAT | os.O_WRONLY, dir_fd=before))
    os.close(before)


@pytest.mark.parametrize(("depth", "name"), [(1010, "d"), (100, "d" * 200), (70, "d")])
def test_directories_nested_without_end_are_told_and_left(tmp_path: Path, depth: int, name: str) -> None:
    place = caches(tmp_path / "caches")
    nested(place / "inductor/ab", depth, name=name)
    listed = list_caches(place)
    assert listed.paths == {GRAPH} and len(listed.left_out) == 1
    assert "directories deep" in listed.left_out[0] or "longer than 1024 bytes" in listed.left_out[0]
    assert len(listed.left_out[0]) < 300
    assert sum(1 for _ in directories_of(place)) < 80
    watch = OpenWatch(place)
    (place / GRAPH).read_bytes()
    assert watch.finish() == {GRAPH}
    remove_tree(place)
    assert not place.exists()


def test_a_temporary_tree_goes_whatever_was_left_in_it() -> None:
    with temporary_tree("aot-test-") as place:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        nested(place, 1010)
        (place / "closed").mkdir(mode=0)
        (place / "link").symlink_to(Path.cwd())
    assert not place.exists() and Path.cwd().is_dir()


def test_removing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o750)
    (tmp_path / "kept/one").write_text("one")
    (tmp_path / "tree").mkdir()
    nested(tmp_path / "tree", 1010)
    (tmp_path / "tree/link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists() and (tmp_path / "kept/one").read_text() == "one"
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o750


@pytest.mark.parametrize("depth", [20, 33, 40])
def test_a_closed_directory_goes_at_any_depth(depth: int) -> None:
    with as_nobody() as place:
        inner = place.joinpath("tree", *("d" * depth))
        inner.mkdir(parents=True)
        (inner / "one").write_text("one")
        inner.chmod(0)
        remove_tree(place / "tree")
        assert not (place / "tree").exists()


def test_a_directory_that_resists_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "resists", "z"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        nested(tmp_path / "tree" / name, 1010)
    opened = Path.chmod

    def chmod(place: Path, mode: int) -> None:
        if place.name == "resists":
            raise PermissionError(place)
        opened(place, mode)

    monkeypatch.setattr(Path, "chmod", chmod)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own; a compiler that was loaded here has raised it
    try:
        remove_tree(tmp_path / "tree")
    finally:
        sys.setrecursionlimit(before)
    assert os.listdir(tmp_path / "tree") == ["resists"]
    monkeypatch.undo()
    remove_tree(tmp_path / "tree")


def test_names_that_a_command_has_taken_keep_no_deep_directory() -> None:
    with as_nobody() as place:
        for number in range(1, 4):
            (place / f"tree/.aot-deep-{number}/one").mkdir(parents=True)
            (place / f"tree/.aot-deep-{number}").chmod(0)
        nested(place / "tree", 1010)
        remove_tree(place / "tree")
        assert not (place / "tree").exists()


@pytest.mark.parametrize(
    "path", ["inductor/ab/huge.so", "inductor/fxgraph/ab/key/huge", "vllm/x/vllm_compile_cache.py"]
)
@pytest.mark.parametrize("size_bytes", [MOST_FILE_BYTES + 1, HOLES_FROM_BYTES], ids=["huge", "holes"])
def test_a_sparse_file_is_left_out(tmp_path: Path, path: str, size_bytes: int) -> None:
    place = caches(tmp_path / "caches")
    (place / path).parent.mkdir(parents=True, exist_ok=True)
    with (place / path).open("wb") as file:
        file.truncate(size_bytes)
    listed = list_caches(place)
    assert listed.paths == {GRAPH}
    assert [line.partition(": ")[0] for line in listed.left_out] == [path] and str(size_bytes) in listed.left_out[0]


def test_a_large_file_that_is_all_there_is_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = caches(tmp_path / "caches")
    monkeypatch.setattr("aot.capture.listing.HOLES_FROM_BYTES", 1 << 16)
    (place / "inductor/ab/large.so").write_bytes(os.urandom(1 << 17))
    assert list_caches(place).paths == {GRAPH, "inductor/ab/large.so"}


NAMES = {b"a\nb.cpp": "control character", b"back\\slash": "backslash", b"\xff\xfe" + b"z" * 253: "not valid UTF-8"}


def test_a_name_that_no_manifest_holds_is_told_and_a_long_one_is_kept(tmp_path: Path) -> None:
    place = caches(tmp_path / "caches")
    kept = (b"n" * 255, b"NUL", b"con", b"a:b", b" ", b"-rf")
    for name in (*NAMES, *kept):
        Path(os.fsdecode(os.fsencode(place / "inductor/ab") + b"/" + name)).write_bytes(b"x")
    os.mkfifo(place / "inductor/ab/pipe")
    (place / "inductor/ab/zero").symlink_to("/dev/zero")
    listed = list_caches(place)
    assert listed.paths == {GRAPH, *(f"inductor/ab/{name.decode()}" for name in kept)}
    assert len(listed.left_out) == len(NAMES) and all(line.isprintable() for line in listed.left_out)
    assert all(any(reason in line for line in listed.left_out) for reason in NAMES.values())
    assert len(collect(place, scratch=tmp_path / "scratch").entries) == 1 + len(kept)


def test_what_may_not_be_read_costs_nothing_else() -> None:
    with as_nobody() as place:
        listed = caches(place / "caches")
        for name in ("closed/one.cpp", "only-listed/one.cpp", "only-listed/inner/two.cpp", "shut.cpp"):
            (listed / "inductor/ab" / name).parent.mkdir(exist_ok=True)
            (listed / "inductor/ab" / name).write_text("x")
        for name, mode in {"closed": 0, "only-listed": 0o444, "shut.cpp": 0}.items():
            (listed / "inductor/ab" / name).chmod(mode)
        told = {f"inductor/ab/{name}: it may not be read" for name in ("closed", "only-listed/inner")}
        assert set(list_caches(listed).left_out) == told | {"inductor/ab/only-listed/one.cpp: it may not be read"}
        assert "inductor/ab" in {path for path, _ in directories_of(listed)}
        found = collect(listed, scratch=place / "scratch")
        assert [entry.path for entry in found.entries] == [GRAPH]
        assert found.left_out == ("inductor/ab/shut.cpp: it may not be read",)


def test_a_directory_that_is_closed_to_us_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = caches(tmp_path / "caches")
    real = ctypes.CDLL(None, use_errno=True)

    def add_watch(number: int, name: bytes, mask: int) -> int:
        if name.endswith(b"/ab"):
            ctypes.set_errno(errno.EACCES)
            return -1
        return int(real.inotify_add_watch(number, name, mask))

    closed = SimpleNamespace(inotify_init1=real.inotify_init1, inotify_add_watch=add_watch)
    monkeypatch.setattr("aot.capture.watch._libc", lambda: closed)
    watch = OpenWatch(place)
    assert watch.works
    (place / GRAPH).read_bytes()
    assert watch.finish() == {GRAPH}


def test_a_file_that_grows_while_it_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = caches(tmp_path / "caches")
    growing = place / "inductor/ab/growing.cpp"
    growing.write_bytes(b"x" * 10)
    looked = os.fstat

    def fstat(number: int) -> os.stat_result:
        found = looked(number)
        if found.st_ino == growing.stat().st_ino:
            with growing.open("ab") as file:  # its writer is always a step ahead
                file.write(b"x" * 10)
        return found

    monkeypatch.setattr("aot.capture.collect.os.fstat", fstat)
    found = collect(place, scratch=tmp_path / "scratch")
    assert [entry.path for entry in found.entries] == [GRAPH]
    assert found.left_out == ("inductor/ab/growing.cpp: it is still being written",)


def captured(tmp_path: Path, program: str, **options: bool) -> Captured:
    """Capture a command that does what `program` says in its caches, each time that it runs."""

    def run(_: Sequence[str], environ: Mapping[str, str]) -> Ended:
        place = Path(environ["TORCHINDUCTOR_CACHE_DIR"])
        exec(program, {"place": place, "os": os})
        return Ended(0, 1.0)

    environ = {"CXX": "c++"}
    return capture([sys.executable], environ=environ, effective=an_environment(), scratch=tmp_path, run=run, **options)


MAKES = """
graph = place / "fxgraph/ab/key/one"
if not graph.exists():
    graph.parent.mkdir(parents=True)
    graph.write_text("graph")
graph.read_text()
"""


@pytest.mark.parametrize("again", [True, False])
def test_a_shared_object_that_is_none_is_told_and_left_out(tmp_path: Path, again: bool) -> None:
    made = captured(tmp_path, f"{MAKES}(place / 'half.so').write_text('half')", again=again)
    assert [entry.path for entry in made.collected.entries] == [GRAPH]
    assert warnings_of(made) == ("left out: inductor/half.so: it does not begin with an ELF header",)


def test_too_many_files_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.capture.listing.MOST_FILES", 10)
    many = "[(place / str(number)).write_text('x') for number in range(20)]"
    with pytest.raises(InvalidInput, match="left more than"):
        captured(tmp_path, f"{MAKES}{many}")
    assert len(list_paths(tmp_path / "first")) <= 10


@pytest.mark.parametrize("is_flat", [True, False])
@pytest.mark.parametrize("is_directory", [True, False])
def test_directories_count_and_what_is_beyond_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_flat: bool, is_directory: bool
) -> None:
    monkeypatch.setattr("aot.capture.listing.MOST_FILES", 10)
    for number in range(40):
        place = tmp_path / "inductor" / (f"{number}" if is_flat else f"{number % 8}/{number}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir() if is_directory else place.touch()
    read, scanned = [], os.scandir

    class Counted:
        def __init__(self, directory: Path) -> None:
            self.entries = scanned(directory)

        def __enter__(self) -> "Counted":
            return self

        def __exit__(self, *_: object) -> None:
            self.entries.close()

        def __iter__(self) -> "Counted":
            return self

        def __next__(self) -> object:
            read.append(entry := next(self.entries))
            return entry

    monkeypatch.setattr("aot.capture.listing.os.scandir", Counted)
    assert list_caches(tmp_path).is_cut and len(read) <= 25


def test_a_bundle_tells_of_some_and_how_many_more(tmp_path: Path) -> None:
    made = captured(tmp_path, f"{MAKES}[(place / f'half{{n}}.so').write_text('half') for n in range({MOST_NOTES + 3})]")
    told = warnings_of(made)
    assert len(told) == MOST_NOTES + 1 and told[-1] == "left out: 3 more"


def test_a_process_that_outlives_its_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def later(place: Path, **options: object) -> object:
        found = collect(place, **options)  # type: ignore[arg-type]
        (place / GRAPH).write_text("written once more")
        return found

    monkeypatch.setattr("aot.capture.capture.collect", later)
    with pytest.raises(InvalidInput, match="still writing to its caches") as raised:
        captured(tmp_path, MAKES)
    assert GRAPH in raised.value.details["failures"][0]


def test_facts_of_one_host_are_no_entries(tmp_path: Path) -> None:
    place = caches(tmp_path / "caches")
    (place / "vllm").mkdir()
    (place / "vllm/gpu_p2p_access_cache_for_0,1.json").write_text('{"0->1": true}')
    listed = list_caches(place)
    assert (listed.paths, listed.left_out) == ({GRAPH}, ())
