"""Compiler caches as entries: what they are, what is kept, how they come back, and what a run says of their use."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aot.capture.account import account
from aot.capture.capture import capture
from aot.capture.collect import MARK, collect, list_paths
from aot.capture.command import run_command
from aot.capture.entries import Entry, Kind, entry_of, kind_of
from aot.capture.listing import directories_of
from aot.capture.pins import TAG, effective_environment, key_tag, pins
from aot.capture.prepare import Prepared
from aot.capture.record import artifact_of, command_source, differences, require_level, saved_seconds, with_new
from aot.capture.restore import MOST_DIRECTORIES, in_use, place_for, restore
from aot.capture.roots import ROOTS, Evidence, variables_of
from aot.capture.run import run_on
from aot.capture.units import is_litter, used_of
from aot.capture.watch import OpenWatch
from aot.cli.capture import split_arguments
from aot.errors import DigestMismatch, InvalidConfig, InvalidInput, InvalidProfile, LocalStorageFull, MalformedDocument
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.select import select
from tests.builders import a_gpu, a_manifest, a_node, a_profile, altered, an_environment

ROOT = Path(__file__).parents[2]
GRAPH = "inductor/fxgraph/ab/key/one"
KERNEL = "triton/KEY/add.cubin"
GROUP = "triton/KEY/__grp__add.json"


def write(directory: Path, **files: bytes) -> Path:
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def caches(directory: Path) -> Path:
    """What a program left: one graph with its code, and one kernel of Triton's."""
    group = json.dumps({"child_paths": {"add.cubin": f"{directory}/{KERNEL}"}}).encode()
    files = {GRAPH: b"graph", "inductor/cd/code.cpp": b"source", "inductor/cd/code.so": b"code"}
    return write(directory, **files, **{KERNEL: b"cubin", GROUP: group})


def host(level: str = "x86-64-v4", *features: str) -> object:
    cpu = Capability(f"cpu:{level}")
    return an_environment(node=a_node(cpu=cpu, cpu_features=features, gpus=()))


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


def test_opened_files_are_seen_from_outside(tmp_path: Path) -> None:
    caches(tmp_path)
    watch = OpenWatch(tmp_path)
    assert watch.works
    subprocess.run([sys.executable, "-S", "-c", f"open({str(tmp_path / GRAPH)!r}).read()"], check=True)
    assert watch.finish() == {GRAPH}


def test_a_graph_with_a_new_entry_beside_the_opened_one_was_compiled(tmp_path: Path) -> None:
    before = list_paths(caches(tmp_path))
    write(
        tmp_path, **{"inductor/fxgraph/ab/key/two": b"", "inductor/fxgraph/cd/new/one": b"", "inductor/ef/n.cpp": b""}
    )
    os.utime(tmp_path / "inductor/ef/n.cpp", (100, 100))
    write(tmp_path, **{"inductor/ef/n.so": b""})
    os.utime(tmp_path / "inductor/ef/n.so", (107, 107))
    counted = account(
        tmp_path,
        bundle=before,
        before=before,
        after=list_paths(tmp_path),
        opened=frozenset({GRAPH}),
        seconds=9.0,
        saved_seconds=80.0,
    )
    assert (counted.restored, counted.found, counted.compiled, counted.files) == (1, 0, 2, 1)
    assert counted.compiler_seconds == 7.0 and counted.unused
    assert counted.line() == "2 graphs: 0 from the bundle, 2 compiled in 7 s of compilers"
    assert counted.counters == {
        "graphs": 2,
        "hits": 0,
        "misses": 2,
        "compiled_files": 1,
        "compiler_milliseconds": 7000,
    }


def test_a_run_on_the_bundle_alone_says_what_it_saved(tmp_path: Path) -> None:
    paths = list_paths(caches(tmp_path))
    counted = account(
        tmp_path, bundle=paths, before=paths, after=paths, opened=frozenset({GRAPH}), seconds=9.0, saved_seconds=87.2
    )
    assert counted.line() == "1 graphs: 1 from the bundle, 0 compiled, saved ~87 s" and not counted.unused


def test_graphs_of_earlier_runs_on_the_node_are_not_the_bundles(tmp_path: Path) -> None:
    bundle = list_paths(caches(tmp_path))
    write(tmp_path, **{"inductor/fxgraph/cd/new/one": b""})
    paths = list_paths(tmp_path)
    opened = frozenset({"inductor/fxgraph/cd/new/one"})
    counted = account(tmp_path, bundle=bundle, before=paths, after=paths, opened=opened, seconds=9.0)
    assert counted.line() == "1 graphs: 0 from the bundle, 1 from earlier runs here, 0 compiled"
    assert (counted.restored, counted.earlier, counted.unused) == (1, 1, True)


def test_a_run_that_could_not_be_watched_claims_no_hits(tmp_path: Path) -> None:
    paths = list_paths(caches(tmp_path))
    counted = account(tmp_path, bundle=paths, before=paths, after=paths, opened=None, seconds=9.0)
    assert counted.found is None and "hits" not in counted.counters and "unknown" in counted.line()


def test_the_key_tag_has_the_instruction_sets_and_python() -> None:
    assert (
        key_tag(host("x86-64-v4", "avx512_vnni", "fma", "amx_tile")) == "aot-x86-64-v4+amx_tile+avx512_vnni-python3.11"
    )
    assert key_tag(host("x86-64-v3")) == "aot-x86-64-v3-python3.11"


@pytest.mark.parametrize(
    ("wanted", "level"),
    [("avx2", "x86-64-v3"), ("default", "x86-64"), ("avx512", "x86-64-v4"), ("", "x86-64-v4"), ("AVX2", "x86-64-v3")],
)
def test_a_lower_capability_asked_of_torch_is_the_level_that_counts(wanted: str, level: str) -> None:
    found = effective_environment(host("x86-64-v4", "avx512_vnni"), {"ATEN_CPU_CAPABILITY": wanted})
    assert found.node.cpu == f"cpu:{level}"
    assert ("avx512_vnni" in key_tag(found)) == (level == "x86-64-v4")


def test_a_capability_that_nobody_knows_is_no_level() -> None:
    assert effective_environment(host(), {"ATEN_CPU_CAPABILITY": "avx9"}).node.cpu is None


def test_pins_keep_the_callers_tag_and_are_the_same_for_a_child_of_ours(tmp_path: Path) -> None:
    once = pins(host("x86-64-v3"), tmp_path, {TAG: "mine-"})
    assert once[TAG] == "mine-aot-x86-64-v3-python3.11"
    assert once["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] == "0" and once["TORCHINDUCTOR_CPP_MARCH"] == "x86-64-v3"
    assert pins(host("x86-64-v3"), tmp_path, once) == once
    assert once["TORCHINDUCTOR_CACHE_DIR"] == f"{tmp_path}/inductor"


def test_all_processes_of_a_command_on_a_card_take_the_assembler_that_torch_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers that compile take it by themselves: a process that takes Triton's finds nothing of theirs."""
    monkeypatch.setattr("aot.capture.pins.find_assembler", lambda: tmp_path / "ptxas")
    seen = host()
    carded = msgspec.structs.replace(seen, node=msgspec.structs.replace(seen.node, gpus=(a_gpu(),)))
    assert pins(carded, tmp_path, {})["TRITON_PTXAS_PATH"] == str(tmp_path / "ptxas")
    assert "TRITON_PTXAS_PATH" not in pins(carded, tmp_path, {"TRITON_PTXAS_PATH": "/opt/ptxas"})
    assert "TRITON_PTXAS_PATH" not in pins(seen, tmp_path, {})


def test_kernels_of_a_card_are_captured_without_the_lines_of_their_sources(tmp_path: Path) -> None:
    carded = msgspec.structs.replace(host(), node=msgspec.structs.replace(host().node, gpus=(a_gpu(),)))
    assert pins(carded, tmp_path, {})["TRITON_DISABLE_LINE_INFO"] == "1"
    assert pins(carded, tmp_path, {"TRITON_DISABLE_LINE_INFO": "0"})["TRITON_DISABLE_LINE_INFO"] == "0"
    assert "TRITON_DISABLE_LINE_INFO" not in pins(host(), tmp_path, {})


def captured(tmp_path: Path, environment: object, **environ: str) -> object:
    found = collect(write(tmp_path / "caches", **{GRAPH: b"graph"}), scratch=tmp_path / "scratch")
    profile = a_profile(capability="cpu:x86-64-v4")
    return artifact_of(found, profile, environment, environ=environ, seconds=(90.0, 3.0))


def test_entries_of_another_vector_width_are_refused_with_the_reason(tmp_path: Path) -> None:
    """The same host, asked for the narrower width by the environment: torch itself would take these entries."""
    artifact = captured(tmp_path, host("x86-64-v4"))
    bundle = (Digest.of(b"bundle"), altered(a_manifest(), artifacts=(artifact,)))
    assert select([bundle], host("x86-64-v4")).bundle == bundle[0]
    refused = select([bundle], effective_environment(host("x86-64-v4"), {"ATEN_CPU_CAPABILITY": "avx2"}))
    assert refused.bundle is None
    assert any("made for x86-64-v4, this host is x86-64-v3" in reason for reason in refused.reasons)


def test_a_level_below_is_refused_both_ways(tmp_path: Path) -> None:
    artifact = captured(tmp_path, host("x86-64-v3"))
    artifact = altered(artifact, capability=Capability("cpu:x86-64-v3"))
    bundle = (Digest.of(b"bundle"), altered(a_manifest(), artifacts=(artifact,)))
    assert select([bundle], host("x86-64-v4")).bundle is None


def test_a_profile_of_another_level_is_no_profile_of_the_entries() -> None:
    with pytest.raises(InvalidProfile, match="x86-64-v3"):
        require_level(a_profile(capability="cpu:x86-64-v3"), host("x86-64-v4"))
    require_level(a_profile(capability="cpu:x86-64-v4"), host("x86-64-v4"))


def test_what_differs_from_the_capture_is_named(tmp_path: Path) -> None:
    artifact = captured(tmp_path, host(), OMP_NUM_THREADS="2", TORCHINDUCTOR_CACHE_DIR="/somewhere")
    assert saved_seconds(artifact) == 87.0
    assert differences(artifact, host(), {"OMP_NUM_THREADS": "2"}) == ()
    assert differences(artifact, host(), {"OMP_NUM_THREADS": "1", "CXX": "/usr/bin/g++"}) == (
        "CXX was not set, is /usr/bin/g++",
        "OMP_NUM_THREADS was 2, is 1",
    )


def test_a_union_is_never_smaller_and_keeps_what_was_there(tmp_path: Path) -> None:
    artifact = captured(tmp_path, host())
    later = write(tmp_path / "later", **{GRAPH: b"other", "inductor/fxgraph/cd/new/one": b"new"})
    union = with_new(artifact, collect(later, scratch=tmp_path / "more"))
    assert set(artifact.files) < set(union.files)
    assert [file.path for file in union.files] == [GRAPH, "inductor/fxgraph/cd/new/one"]
    assert union.facts["graphs"] == "2"


def test_the_source_of_a_capture_differs_by_its_entries() -> None:
    one, other = (Entry(Kind.FXGRAPH, GRAPH, Digest.of(text), 1) for text in (b"a", b"b"))
    assert command_source(("python", "x.py"), [one]) != command_source(("python", "x.py"), [other])
    assert entry_of(one.as_file()) == one


def test_a_command_keeps_its_exit_code_and_its_environment(tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(int(os.environ['CODE']))"
    assert run_command([sys.executable, "-S", "-c", code], environ={"CODE": "7"}).code == 7
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_command([sys.executable, "-S", "-c", killed], environ={}).code == 128 + signal.SIGKILL
    with pytest.raises(InvalidInput, match="cannot be run"):
        run_command([str(tmp_path / "none")], environ={})


OUTER = """
import sys
from aot.capture.command import run_command
sys.exit(run_command([sys.executable, "-S", "-c", sys.argv[1]], environ={}).code)
"""
INNER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
print("ready", flush=True)
time.sleep(30)
"""


def test_a_signal_reaches_the_command() -> None:
    with subprocess.Popen([sys.executable, "-c", OUTER, INNER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 42


WRITER = """
import os, pathlib, sys
place = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
for name in sys.argv[1:]:
    path = place / name
    if path.exists():
        if "rejected" not in name:
            path.read_bytes()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
"""


def test_a_second_run_decides_what_is_kept(tmp_path: Path) -> None:
    names = ("fxgraph/ab/key/one", "triton/0/WINNER/k.cubin", "triton/0/rejected/k.cubin")
    made = capture(
        [sys.executable, "-S", "-c", WRITER, *names], environ={"PATH": "/usr/bin"}, effective=host(), scratch=tmp_path
    )
    assert [entry.path for entry in made.collected.entries] == [f"inductor/{name}" for name in names[:2]]
    assert made.left_out == 1 and made.second is not None
    assert (made.second.found, made.second.compiled) == (1, 0)


def test_a_capture_of_nothing_and_of_a_failure_is_refused(tmp_path: Path) -> None:
    for number, (code, text) in enumerate((("pass", "left nothing"), ("raise SystemExit(3)", "ended with 3"))):
        with pytest.raises(InvalidInput, match=text):
            capture(
                [sys.executable, "-S", "-c", code],
                environ={"PATH": "/usr/bin"},
                effective=host(),
                scratch=tmp_path / str(number),
            )


def test_warm_imports_no_torch_and_goes_on_without_a_registry(tmp_path: Path) -> None:
    code = (
        "import sys, aot; found = aot.warm('mini:v1')\n"
        "assert 'torch' not in sys.modules and found.bundle is None and found.graphs == 0\n"
        "print(found.reasons[0])"
    )
    environ = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "AOT_OFFLINE": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert "there is no registry to ask" in ran.stdout and "restores no compiler caches of" in ran.stderr
    raising = subprocess.run(
        [sys.executable, "-c", code], env={**environ, "AOT_FALLBACK": "raise"}, capture_output=True, text=True
    )
    assert "NoCompatibleArtifact" in raising.stderr


def test_a_lock_that_is_not_there_is_no_reason_to_run_unpinned(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "aot.cli",
        "run",
        "mini:v1",
        "--lock",
        str(tmp_path / "no.lock"),
        "--",
        "echo",
        "x",
    ]
    environ = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "x\n") and "there is no lock file" in ran.stderr


@pytest.mark.parametrize(
    ("reference", "command", "expected"),
    [
        ("mini:v1", ["python", "x.py"], ("mini:v1", ["python", "x.py"])),
        ("ours/mini:v1", ["true"], ("ours/mini:v1", ["true"])),
    ],
)
def test_a_reference_is_told_from_a_command(reference: str, command: list[str], expected: object) -> None:
    assert split_arguments(reference, command, lock=None) == expected


def test_a_command_without_a_name_and_a_name_without_a_command_are_refused() -> None:
    with pytest.raises(InvalidInput, match="which of it"):
        split_arguments("python", ["x.py"], lock=None)
    with pytest.raises(InvalidInput, match="no command"):
        split_arguments("mini:v1", [], lock=None)


def test_a_directory_that_vanishes_meanwhile_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{GRAPH: b"graph", "inductor/gone/one": b"x"})
    listed = os.scandir

    def scandir(place: Path) -> object:
        if place.name == "gone":
            raise FileNotFoundError(place)
        return listed(place)

    monkeypatch.setattr("aot.capture.listing.os.scandir", scandir)
    assert list_paths(tmp_path) == {GRAPH}


def test_a_watch_goes_on_where_a_directory_has_vanished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{GRAPH: b"graph"})
    walked = list(directories_of(tmp_path))
    gone = ("gone", tmp_path / "gone")
    monkeypatch.setattr("aot.capture.watch.directories_of", lambda _: iter([walked[0], gone, *walked[1:]]))
    watch = OpenWatch(tmp_path)
    assert watch.works
    (tmp_path / GRAPH).read_bytes()
    assert watch.finish() == {GRAPH}


def test_a_directory_that_cannot_be_listed_costs_neither_the_start_nor_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: Path) -> frozenset[str]:
        raise OSError("stale")

    monkeypatch.setattr("aot.capture.run.list_paths", lost)
    prepared = Prepared(Reference.parse("default/mini:v1"), host(), write(tmp_path / "place", **{GRAPH: b"graph"}))
    ran = run_on(prepared, ["/bin/sh", "-c", "exit 9"], environ={})
    assert (ran.code, ran.account) == (9, None)
