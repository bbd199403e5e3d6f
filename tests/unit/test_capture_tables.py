"""Tables that several captures write under one name: none loses a row, and of two values the first one's stays."""

import ast
import json
import pprint
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot.capture.again import _union, recapture
from aot.capture.capture import NOTHING
from aot.capture.collect import MARK, Collected, collect
from aot.capture.entries import entry_of
from aot.capture.publish import Making, stage_union
from aot.capture.restore import restore
from aot.capture.tables import MOST_BYTES, form_of, joined
from aot.capture.union import Base, entries_of, join_tables, unjoined
from aot.pipeline.build import Staged
from aot.pipeline.union import join_again
from aot.schema.digest import Digest
from tests.route_builders import a_capture_artifact
from tests.unit.test_capture_hostile import a_restored
from tests.unit.test_capture_proof import a_capture

RANK = "vllm/torch_compile_cache/hash/rank_0_0/"
COMPILED = f"{RANK}backbone/vllm_compile_cache.py"
TACTICS = "vllm/flashinfer_autotune_cache/0.6.15/90a/abc/autotune_configs.json"
TIMES = f"{RANK}inductor_cache/cache/systemhash"
SYSTEM = {"device": {"name": "a card"}, "hash": "systemhash"}


def compiled(*graphs: int, value: str = "one") -> bytes:
    """What lies where, for these graphs, as `value` has it."""
    rows = {((1, 8), graph, "inductor_standalone"): (f"{value}{graph}", f"[AOT_CACHES]/{value}") for graph in graphs}
    return pprint.pformat(rows).encode()


def tactics(*shapes: int, value: str = "one", measured_on: str = "a card") -> bytes:
    rows: dict[str, Any] = {f"('gemm', {shape})": ["Runner", value] for shape in shapes}
    return json.dumps({"_metadata": {"gpu_name": measured_on}, "_last_updated_by": {"by": value}, **rows}).encode()


def times(*shapes: int, value: str = "one", system: Any = SYSTEM) -> bytes:
    """What two choices took for each of these shapes."""
    took = {"one": 1.0, "two": 2.0}[value]
    rows = {f"shape {shape}": {"highest": {"choice": took, "other": took}} for shape in shapes}
    return json.dumps({"system": system, "cache": {"mm": rows}}, indent=4).encode()


def read(path: str, content: bytes) -> dict[Any, Any]:
    if path == COMPILED:
        found = ast.literal_eval(content.decode())
        return {key[1]: value[0][:3] for key, value in found.items()}
    found = json.loads(content)
    if path == TIMES:
        assert found["system"] == SYSTEM
        measured = found["cache"]["mm"].items()
        return {int(key.split()[1]): {1.0: "one", 2.0: "two"}[row["highest"]["choice"]] for key, row in measured}
    assert found["_metadata"] == {"gpu_name": "a card"} and found["_last_updated_by"] == {"by": "one"}
    return {ast.literal_eval(key)[1]: value[1] for key, value in found.items() if not key.startswith("_")}


EACH = pytest.mark.parametrize(
    ("path", "table"), [(COMPILED, compiled), (TACTICS, tactics), (TIMES, times)], ids=["compiled", "tactics", "times"]
)
Table = Callable[..., bytes]


@EACH
def test_each_has_what_the_other_lacks_and_of_two_values_the_firsts_stays(path: str, table: Table) -> None:
    both = joined(path, table(0, 1), table(1, 2, value="two"))
    assert both is not None and read(path, both) == {0: "one", 1: "one", 2: "two"}


@EACH
def test_a_table_that_has_all_rows_keeps_its_bytes(path: str, table: Table) -> None:
    assert joined(path, table(0, 1), table(0, 1)) == table(0, 1)
    assert joined(path, table(0, 1), table(1, value="two")) == table(0, 1)
    if path != TACTICS:  # it says besides who has written last
        assert joined(path, table(1), table(0, 1)) == table(0, 1)


@EACH
@pytest.mark.parametrize(
    "broken", [b"{", b"[1]", b"\xff", b"{[]: 1}", b"[" * 9000, b"", b"{}" + b" " * MOST_BYTES, b"[" + b"0," * 300_000]
)
def test_what_cannot_be_read_as_a_table_is_not_joined(path: str, table: Table, broken: bytes) -> None:
    assert joined(path, table(0), broken) is None
    assert joined(path, broken, table(0)) is None


def test_what_was_measured_elsewhere_is_not_joined() -> None:
    assert joined(TACTICS, tactics(0), tactics(1, measured_on="another card")) is None
    assert joined(TIMES, times(0), times(1, system={})) is None


def test_times_of_one_comparison_are_of_one_machine() -> None:
    def of(**took: float) -> bytes:
        return json.dumps({"system": SYSTEM, "cache": {"mm": {"shape": {"highest": took}}}}).encode()

    assert joined(TIMES, of(a=1.0, b=2.0), of(b=9.0, c=1.0)) == of(a=1.0, b=2.0)
    more = of(a=3.0, b=2.0, c=1.0)  # has measured all of these and more
    assert joined(TIMES, of(a=1.0, b=2.0), more) == more


def test_every_other_entry_is_no_table() -> None:
    others = ("inductor/fxgraph/ab/key/one", "triton/KEY/__grp__add.json", "inductor/ab/kernel.best_config")
    servers = (
        f"{RANK}backbone/cache_key_factors.json",
        f"{RANK}backbone/computation_graph.py",
        "x/vllm_compile_cache.py",
    )
    assert [path for path in (*others, *servers) if form_of(path) is not None] == []
    assert form_of("inductor/cache/systemhash") is not None
    assert joined(others[0], b"{}", b"{}") is None


def a_base(tmp_path: Path, name: str, **files: bytes) -> Base:
    for path, content in files.items():
        (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / path).write_bytes(content)
    found = collect(tmp_path / name, scratch=tmp_path / f"{name}-scratch")
    artifact = a_capture_artifact(files=tuple(entry.as_file() for entry in found.entries))
    return Base(Digest.of(name.encode()), artifact, found.paths)


@EACH
def test_a_union_begins_on_the_rows_of_all_its_bases(tmp_path: Path, path: str, table: Table) -> None:
    one, two = a_base(tmp_path, "a", **{path: table(0)}), a_base(tmp_path, "b", **{path: table(1, value="two")})
    held = entries_of((one, two), scratch=tmp_path / "tables")
    [entry] = held.entries
    content = held.paths[entry.digest].read_bytes()
    assert read(path, content) == {0: "one", 1: "two"} and entry.size_bytes == len(content)
    assert entries_of((one, one), scratch=tmp_path / "more").entries[0].digest == one.artifact.files[0].digest


def test_what_cannot_be_joined_is_left_to_who_asks(tmp_path: Path) -> None:
    one, two = a_base(tmp_path, "a", **{COMPILED: b"no table"}), a_base(tmp_path, "b", **{COMPILED: compiled(1)})
    parts = [(base.artifact.files, base.paths) for base in (one, two)]
    assert join_tables(parts, scratch=tmp_path / "tables").entries == ()
    held = entries_of((one, two), scratch=tmp_path / "tables")
    assert [held.paths[entry.digest].read_bytes() for entry in held.entries] == [b"no table"]
    assert held.left_out == (f"{COMPILED}: its rows cannot be joined with those that were there before",)
    assert unjoined(parts, join_tables(parts, scratch=tmp_path / "tables")) == (COMPILED,)
    assert unjoined([parts[0], parts[0]], NOTHING) == ()


@EACH
@pytest.mark.parametrize("elsewhere", [False, True], ids=["in the restored directory", "in an earlier one"])
def test_a_run_writes_back_the_rows_that_it_has_added(tmp_path: Path, path: str, table: Table, elsewhere: bool) -> None:
    graph = "inductor/fxgraph/ab/new/one"
    prepared = a_restored(tmp_path, **{path: table(0, 1)})
    place = tmp_path / ("earlier" if elsewhere else "caches")
    for name, content in {graph: b"graph", path: table(1, 2, value="two")}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content.replace(MARK, str(place).encode()))
    profile = prepared.manifest.profile if prepared.manifest else None
    assert profile is not None
    making = Making(prepared.reference, ("serve",), profile, prepared.environment, {}, "me", tmp_path / "making")
    staged = stage_union(making, prepared, frozenset({graph}), found_in=place)
    content = {file.path: staged.paths[file.digest].read_bytes() for file in staged.manifest.files}
    assert read(path, content[path]) == {0: "one", 1: "one", 2: "two"}
    assert str(place).encode() not in content[path]


@pytest.mark.parametrize(("path", "table"), [(TACTICS, b"{"), (TIMES, b"{"), (COMPILED, b"{")])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["in the restored directory", "in an earlier one"])
def test_rows_that_cannot_be_joined_are_told(tmp_path: Path, path: str, table: bytes, elsewhere: bool) -> None:
    graph, before = "inductor/fxgraph/ab/new/one", {TACTICS: tactics, TIMES: times, COMPILED: compiled}[path](0)
    prepared = a_restored(tmp_path, **{path: before})
    place = tmp_path / ("earlier" if elsewhere else "caches")
    for name, content in {graph: b"graph", path: table}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    profile = prepared.manifest.profile if prepared.manifest else None
    assert profile is not None
    making = Making(prepared.reference, ("serve",), profile, prepared.environment, {}, "me", tmp_path / "making")
    staged = stage_union(making, prepared, frozenset({graph}), found_in=place)
    content = {file.path: staged.paths[file.digest].read_bytes() for file in staged.manifest.files}
    is_as_found = path == COMPILED and not elsewhere
    assert content == {graph: b"graph", path: table if is_as_found else before}
    told = () if is_as_found else (f"left out: {path}: its rows cannot be joined with those that were there before",)
    assert staged.manifest.compile_report.warnings == told


@EACH
def test_a_start_keeps_the_rows_that_earlier_runs_on_the_node_have_added(
    tmp_path: Path, path: str, table: Table
) -> None:
    base, into = a_base(tmp_path, "a", **{path: table(0, 1)}), tmp_path / "node"
    held = entries_of((base,), scratch=tmp_path / "tables")
    assert restore(held.entries, held.paths, into=into) == 1
    (into / path).write_bytes(table(1, 2, value="two"))
    assert restore(held.entries, held.paths, into=into) == 1
    assert read(path, (into / path).read_bytes()) == {0: "one", 1: "one", 2: "two"}
    assert restore(held.entries, held.paths, into=into) == 0
    (into / path).write_bytes(b"half a tab")
    assert restore(held.entries, held.paths, into=into) == 1
    assert read(path, (into / path).read_bytes()) == {0: "one", 1: "one"}


# Compiles what its table lacks, and writes the table anew with all that it has read: as vLLM does.
SERVER = """
import ast, os, pathlib, pprint
backbone = pathlib.Path(os.environ["VLLM_CACHE_ROOT"], "torch_compile_cache/hash/rank_0_0/backbone")
table = backbone / "vllm_compile_cache.py"
rows = ast.literal_eval(table.read_text()) if table.exists() else {}
for graph in GRAPHS:
    place = backbone.parent / f"inductor_cache/fxgraph/ab/{graph}/one"
    if ((1, 8), graph, "inductor") in rows:
        pathlib.Path(rows[(1, 8), graph, "inductor"][1]).read_bytes()
        continue
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(str(graph))
    rows[(1, 8), graph, "inductor"] = (str(graph), str(place))
backbone.mkdir(parents=True, exist_ok=True)
table.write_text(pprint.pformat(rows))
measured = pathlib.Path(os.environ["VLLM_CACHE_ROOT"]).parent / TACTICS
measured.parent.mkdir(parents=True, exist_ok=True)
measured.write_text(MEASURED)
"""


def program(graphs: tuple[int, ...], *, measured: str) -> str:
    return f"GRAPHS, TACTICS, MEASURED = {graphs!r}, {TACTICS!r}, {measured!r}\n{SERVER}"


def rows_of(staged: Staged) -> set[int]:
    [file] = [file for file in staged.manifest.files if file.path == COMPILED]
    rows = ast.literal_eval(staged.paths[file.digest].read_text())
    paths = {file.path for file in staged.manifest.files}
    assert all(place.removeprefix("[AOT_CACHES]/") in paths for _, place in rows.values())
    return {graph for _, graph, _ in rows}


def test_a_worker_proves_a_union_on_the_rows_of_all_bases_and_joins_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()

    def live(*graphs: int) -> Staged:
        (tree / "program.py").write_text(program(graphs, measured="{}"))
        place = tmp_path / f"live-{'-'.join(map(str, graphs))}"
        place.mkdir()
        return a_capture(place, tree, source=tree)

    one, two, three = live(0, 1), live(1, 2), live(4)
    bases = [Base(part.digest, part.manifest.artifacts[0], part.paths) for part in (one, two, three)]
    (tree / "program.py").write_text(program((0, 3), measured="{"))
    union = recapture(
        one.manifest,
        tree,
        scratch=tmp_path / "worker",
        sandbox=None,
        devices=(),
        builder="worker-1",
        bases=bases[:2],
        on_event=lambda event: None,
        should_stop=lambda: None,
    )
    assert rows_of(union) == {0, 1, 2, 3}
    [warning] = union.manifest.compile_report.warnings
    assert warning == f"left out: {TACTICS}: its rows cannot be joined with those that were there before"
    assert {file.digest for file in union.manifest.files if file.path == TACTICS} == {Digest.of(b"{}")}
    # Another went live meanwhile: nothing is run again.
    monkeypatch.setattr("aot.pipeline.union.fetch_bases", lambda *_, **__: tuple(bases[2:]))
    client: Any = None
    again = join_again(union, client, tags=(), scratch=tmp_path / "join", should_stop=lambda: None)
    assert rows_of(again) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("run", ["{}", "{"], ids=["the run's is the first base's", "nor the run's"])
def test_tables_of_two_bases_that_cannot_be_joined_are_told_once(tmp_path: Path, run: str) -> None:
    one, two = a_base(tmp_path, "a", **{TACTICS: b"{}"}), a_base(tmp_path, "b", **{TACTICS: b"["})
    base = entries_of((one, two), scratch=tmp_path / "bases")
    ran = a_base(tmp_path, "run", **{TACTICS: run.encode()})
    made = Collected(tuple(entry_of(file) for file in ran.artifact.files), ran.paths)
    union, tables = _union(ran.artifact, made, (one, two), base, scratch=tmp_path / "tables")
    assert tables.left_out == (f"{TACTICS}: its rows cannot be joined with those that were there before",)
    assert [file.digest for file in union.files] == [Digest.of(b"{}")]


def test_a_union_that_is_joined_again_tells_of_the_rows_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()

    def staged(graph: int, measured: str) -> Staged:
        (tree / "program.py").write_text(program((graph,), measured=measured))
        place = tmp_path / f"of-{graph}"
        place.mkdir()
        return a_capture(place, tree, source=tree)

    live, union = staged(0, "{"), staged(1, "{}")
    base = Base(live.digest, live.manifest.artifacts[0], live.paths)
    monkeypatch.setattr("aot.pipeline.union.fetch_bases", lambda *_, **__: (base,))
    client: Any = None
    told = (f"left out: {TACTICS}: its rows cannot be joined with those that were there before",)
    for number in range(2):  # joined once more, it says so once
        union = join_again(union, client, tags=(), scratch=tmp_path / str(number), should_stop=lambda: None)
        assert union.manifest.compile_report.warnings == told
    assert rows_of(union) == {0, 1}
    assert {file.digest for file in union.manifest.files if file.path == TACTICS} == {Digest.of(b"{")}
