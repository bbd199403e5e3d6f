"""Entries without what differs each time they are made, what they say of graphs, and how many ranks they are for."""

import pickle
import time
from pathlib import Path

import pytest

from aot.capture.collect import Collected, collect
from aot.capture.entries import Kind, graph_of, kind_of
from aot.capture.pickled import name_of, source_of, stripped
from aot.capture.pins import effective_environment
from aot.capture.plain import read_plain
from aot.capture.processes import world_size_of
from aot.capture.record import MOST_GRAPHS, artifact_of, captured, command_source, with_new
from aot.capture.restore import restore
from aot.capture.shapes import describe_program, graphs_in
from aot.capture.union import Base, with_bases
from aot.capture.units import used_of
from aot.cli.bundles import artifact_lines
from aot.schema.artifact import Artifact
from aot.schema.decision import Accepted, Rejected
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard
from aot.schema.spec import File
from aot.select import judge_guards
from tests.builders import a_node, a_profile, altered, an_environment

GRAPH = "inductor/fxgraph/ab/key/one"
TABLE = "triton/KEY/__grp__add.json"
KEY_PART = f"[{'a2' * 26}] fx_kwargs[get_decomp_fn]: <function table at %s>"
PROGRAM = """\
# AOT ID: ['3_forward']
class Runner:
    def call(self, args):
        primals_1, s77, primals_2, primals_3 = args
        args.clear()
        assert_size_stride(primals_2, (s77, 32), (32, 1), 'input')
        assert_size_stride(primals_1, (32, ), (1, ), 'input')
        buf0 = empty_strided_cpu((32, 32), (32, 1), torch.bfloat16)
        assert_size_stride(buf0, (7, 7), (7, 1))

def get_args():
    primals_1 = rand_strided((32, ), (1, ), device='cpu', dtype=torch.float32)
    primals_2 = rand_strided((16, 32), (32, 1), device='cpu', dtype=torch.bfloat16)
    primals_3 = rand_strided((32, ), (1, ), device='cpu', dtype=torch.float32)
"""


def an_entry(*, place: str = "/tmp/a", at: str = "0x7f00", nanoseconds: int = 3_000_000_000, more: str = "") -> bytes:
    """What torch pickles of a compiled graph, as far as it matters here. Long enough for several frames."""
    return pickle.dumps(
        {
            "source_code": PROGRAM + more,
            "runnable_graph_str": f"os.environ['TORCHINDUCTOR_CACHE_DIR'] = '{place}'" + "#" * 70_000,
            "_time_taken_ns": nanoseconds,
            "cache_linemap": [(7, f'  File "{place}/train.py", line 3, in forward\n')],
            "_fx_graph_cache_debug_lines": [KEY_PART % at, "another line"],
            "joint": {"aot_joint_graph_str": "def forward", "aot_backward_graph_str": None, "_time_taken_ns": 0},
            "place": place[:4],
        }
    )


def test_entries_of_one_graph_have_equal_bytes_wherever_and_whenever_they_were_made() -> None:
    one = an_entry()
    other = an_entry(place="/tmp/another/place", at="0x7fffffff1234", nanoseconds=15_000_000_000)
    assert one != other and stripped(one) == stripped(other)
    assert stripped(stripped(one)) == stripped(one) and len(stripped(one)) < len(one) / 20
    assert stripped(an_entry(more="x = 1")) != stripped(one)


COMMENTED = """
# kernel path: {place}/ab/cab.py
# Topologically Sorted Source Nodes: [{node}], Original ATen: [aten.add]
# Source node to ATen node mapping:
#   {node} => add
# Graph fragment:
#   %add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%{node}, 1), kwargs = {{}})
kernel = async_compile.triton('kernel', '''
# a comment of the kernel's own
#   and more of it
''')
        # Unsorted Source Nodes: [{node}], Original ATen: [aten.add]
        kernel.run(buf0)  # reuse
"""


def test_a_program_says_neither_where_its_kernels_lay_nor_what_its_nodes_were_called() -> None:
    one, other = (
        an_entry(more=COMMENTED.format(place=place, node=node)) for place, node in (("/a", "x"), ("/b", "yy"))
    )
    assert stripped(one) == stripped(other) == stripped(stripped(one))
    kept = pickle.loads(stripped(one))["source_code"]
    lines = kept.removeprefix(PROGRAM).split("\n")
    assert len(lines) == len(COMMENTED.split("\n"))  # of which torch has a map
    assert [line for line in lines if line] == [
        "kernel = async_compile.triton('kernel', '''",
        "# a comment of the kernel's own",
        "#   and more of it",
        "''')",
        "        kernel.run(buf0)  # reuse",
    ]


def test_everything_else_of_an_entry_stays_as_it_was() -> None:
    assert pickle.loads(stripped(an_entry())) == {
        "source_code": PROGRAM,
        "runnable_graph_str": "",
        "_time_taken_ns": 16_000_000_000,
        "cache_linemap": [(7, "")],
        "_fx_graph_cache_debug_lines": ["", "another line"],
        "joint": {"aot_joint_graph_str": "", "aot_backward_graph_str": None, "_time_taken_ns": 0},
        "place": "/tmp",
    }


@pytest.mark.parametrize(("taken", "kept"), [(16, 16), (17, 64), (64, 64), (300, 1024)])
def test_a_time_is_never_less_than_it_was(taken: int, kept: int) -> None:
    """A process that finds its graph waits so much longer for one that has to compile."""
    found = pickle.loads(stripped(an_entry(nanoseconds=taken * 10**9)))
    assert found["_time_taken_ns"] == kept * 10**9


@pytest.mark.parametrize(
    "content",
    [b"", b"graph", an_entry()[:-40], pickle.dumps({"_time_taken_ns": 5_000_000_000}, protocol=2), b"\x80\x04h\x05."],
    ids=["empty", "text", "cut off", "an older protocol", "a reference to nothing"],
)
def test_what_torch_does_not_write_is_left_alone(content: bytes) -> None:
    assert stripped(content) == content


def test_a_number_that_is_no_time_is_left_alone() -> None:
    """Rounding it would take its length in steps, each of its length."""
    longest = (1 << 63) - 1
    for number, stays in ((longest, False), (longest + 1, True), (1 << 10_000, True)):
        found = pickle.loads(stripped(an_entry(nanoseconds=number)))["_time_taken_ns"]
        assert (found == number) is stays and found >= number


def test_what_is_longer_than_any_entry_of_torchs_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, read = an_entry(), []
    caches = write(tmp_path / "caches", **{GRAPH: content, TABLE: f"{tmp_path}/caches".encode() * 9})

    def noting(*at: object, **most: int) -> bytes:
        read.append(most)
        return read_plain(*at, **most)

    for module in ("collect", "shapes"):
        monkeypatch.setattr(f"aot.capture.{module}.read_plain", noting)
    for module in ("collect", "shapes", "pickled"):
        monkeypatch.setattr(f"aot.capture.{module}.MOST_BYTES", 100)
    assert stripped(content) == content and source_of(content) is None
    found = collect(caches, scratch=tmp_path / "scratch")
    assert [found.paths[entry.digest] for entry in found.entries] == [caches / GRAPH, caches / TABLE]
    assert graphs_in(found) == ("key graph: unknown inputs",)
    assert len(read) == 4 and all(most == {"most_bytes": 101} for most in read)


def test_a_program_that_is_no_text_is_none(tmp_path: Path) -> None:
    """A pickle holds what UTF-8 does not, and so does a file's name."""
    caches = write(tmp_path / "caches", **{GRAPH: an_entry(more="\ud800"), "inductor/ab/\udcff.py": b"x"})
    found = collect(caches, scratch=tmp_path / "scratch")
    assert source_of(an_entry(more="\ud800")) is None and graphs_in(found) == ("key graph: unknown inputs",)
    command_source(("python", "train.py"), found.entries)


def test_nothing_of_an_entry_is_run() -> None:
    hostile = b"\x80\x04cos\nsystem\n(\x8c\x04true\x85R."
    assert stripped(hostile) == hostile and source_of(hostile) is None


def write(directory: Path, **files: bytes) -> Path:
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def two_ranks(directory: Path) -> Path:
    """One graph that two ranks have compiled at once: torch keeps both results, and the program beside them."""
    first, second = an_entry(), an_entry(at="0x7f99", nanoseconds=9_000_000_000)
    return write(
        directory,
        **{
            f"inductor/fxgraph/ab/key/{name_of(first)}": first,
            f"inductor/fxgraph/ab/key/{name_of(second)}": second,
            "inductor/cd/program.py": PROGRAM.encode(),
            "inductor/cd/kernel.py": b"of Triton",
        },
    )


def test_equal_graphs_of_ranks_are_one_entry_and_programs_that_torch_writes_again_are_none(tmp_path: Path) -> None:
    found = collect(two_ranks(tmp_path / "caches"), scratch=tmp_path / "scratch")
    graph = f"inductor/fxgraph/ab/key/{name_of(stripped(an_entry()))}"
    assert [entry.path for entry in found.entries] == ["inductor/cd/kernel.py", graph]
    restore(found.entries, found.paths, into=tmp_path / "again")
    assert (tmp_path / "again" / graph).read_bytes() == stripped(an_entry())


def test_what_was_restored_keeps_its_bytes_and_its_name(tmp_path: Path) -> None:
    caches = two_ranks(tmp_path / "caches")
    restored = [f"inductor/fxgraph/ab/key/{name_of(an_entry())}", "inductor/cd/program.py"]
    found = collect(caches, scratch=tmp_path / "scratch", only=restored, as_found=restored)
    assert {entry.path: entry.digest for entry in found.entries} == {
        path: Digest.of((caches / path).read_bytes()) for path in restored
    }


def test_a_server_that_moves_torchs_caches_below_its_own_root_has_the_same_entries(tmp_path: Path) -> None:
    rank = "vllm/torch_compile_cache/0123/rank_0_0"
    graph = f"{rank}/inductor_cache/fxgraph/ab/key/one"
    group, kernel = f"{rank}/triton_cache/KEY/__grp__add.json", f"{rank}/triton_cache/KEY/add.cubin"
    assert (kind_of(graph), graph_of(graph)) == (Kind.FXGRAPH, f"{rank}/inductor_cache/key")
    assert graph_of(graph) != graph_of(graph.replace("rank_0_0", "rank_1_0"))
    assert graph_of("vllm/any/name/fxgraph/ab/key/one") == "vllm/any/name/key"
    assert kind_of(f"{rank}/inductor_cache/cd/code.so") is Kind.LIBRARY and kind_of(kernel) is Kind.TRITON
    assert kind_of(f"{rank}/computation_graph.py") is Kind.FILE
    caches = write(tmp_path / "a", **{graph: an_entry(), kernel: b"cubin", group: f"{tmp_path}/a/{kernel}".encode()})
    found = collect(caches, scratch=tmp_path / "scratch")
    restore(found.entries, found.paths, into=tmp_path / "b")
    assert (tmp_path / "b" / group).read_text() == f"{tmp_path}/b/{kernel}"
    assert used_of({kernel, group, graph}, frozenset({kernel})) == {kernel, group}


def test_a_program_tells_what_it_is_for_and_what_it_takes() -> None:
    assert describe_program(PROGRAM) == "forward: 2 of float32 32, bfloat16 s77x32 on cpu"
    assert describe_program("x = 1") == "graph: unknown inputs"
    many = "\n".join(f"    a{i} = rand_strided(({i}, ), (1, ), device='cpu', dtype=torch.int64)" for i in range(20))
    names = ", ".join(f"a{i}" for i in range(20))
    assert describe_program(f"    {names} = args\n{many}").endswith("int64 11, 8 more on cpu")


def test_a_name_counts_once_however_often_it_is_said() -> None:
    names = ", ".join(["a0"] * 1000)
    example = "    a0 = rand_strided((4, ), (1, ), device='cpu', dtype=torch.int64)"
    assert describe_program(f"    {names} = args\n{example}") == "graph: int64 4 on cpu"


@pytest.mark.parametrize(
    "hostile",
    ["\n" * 20_000, " " * 20_000, "    " + "a, " * 20_000 + "\n", "    a = rand_strided((" * 10_000],
    ids=["lines", "spaces", "names", "examples"],
)
def test_a_program_is_searched_in_the_time_that_its_length_takes(hostile: str) -> None:
    started = time.process_time()
    describe_program(hostile)
    assert time.process_time() - started < 2.0


def test_no_more_of_a_program_is_searched_than_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.capture.shapes.MOST_SEARCHED", 20)
    assert describe_program(PROGRAM) == "graph: unknown inputs"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --nproc-per-node 2", 1),
        ("torchrun --nproc-per-node 2 train.py --nproc-per-node 9", 2),
        ("/opt/bin/torchrun --log-dir /a/b --standalone --nproc_per_node=4 --nnodes 2 -m pkg.train", 8),
        ("python3 -u -m torch.distributed.run --nproc-per-node=2 train.py", 2),
        ("torchrun train.py", 1),
        ("torchrun --nproc-per-node gpu train.py", 8),
        ("torchrun --nnodes 1:4 --nproc-per-node 2 train.py", None),
        ("torchrun --nproc-per-node many train.py", None),
        ("accelerate launch --mixed_precision bf16 --num_processes 8 train.py", 8),
        ("accelerate env", 1),
        ("mpirun --allow-run-as-root -np 4 python train.py", 4),
        ("", 1),
    ],
)
def test_a_launcher_says_how_many_processes_there_will_be(command: str, expected: int | None) -> None:
    assert world_size_of(command.split(), {}, cards=8) == expected


def test_what_the_environment_says_counts_where_the_launcher_says_nothing() -> None:
    assert world_size_of(("python", "train.py"), {"WORLD_SIZE": "4"}) == 4
    assert (
        world_size_of(("torchrun", "train.py"), {"WORLD_SIZE": "4", "PET_NPROC_PER_NODE": "2", "PET_NNODES": "3"}) == 6
    )
    assert world_size_of((), {"WORLD_SIZE": "several"}) is None
    assert world_size_of((), {"OMPI_COMM_WORLD_SIZE": "2"}) == 2
    assert world_size_of(("torchrun", "--nproc-per-node", "gpu", "train.py"), {}) is None


def an_artifact(tmp_path: Path, *command: str, name: str = "one") -> Artifact:
    effective = effective_environment(an_environment(node=a_node(gpus=())), {}, command=command)
    content = an_entry(more=name)
    place = write(tmp_path / name, **{f"inductor/fxgraph/ab/{name}/{name_of(content)}": content})
    collected = collect(place, scratch=tmp_path / f"{name}-scratch")
    return artifact_of(collected, a_profile(), effective, environ={}, seconds=(1.0, None))


def test_caches_of_two_ranks_are_for_two_and_the_verdict_says_so(tmp_path: Path) -> None:
    two = an_artifact(tmp_path, "torchrun", "--nproc-per-node", "2", "train.py")
    assert HostGuard(kind="world_size", value="2") in two.host_guards
    assert two.coverage.constraints[0] == "1 graphs, as they were captured by 2 processes"
    assert two.coverage.constraints[1].endswith("forward: 2 of float32 32, bfloat16 s77x32 on cpu")
    only = tuple(guard for guard in two.host_guards if guard.kind == "world_size")
    for command, text in ((("python",), "this is one of 1"), (("mpirun", "-np", "4", "x"), "this is one of 4")):
        verdict = judge_guards(only, effective_environment(an_environment(), {}, command=command))
        assert isinstance(verdict, Rejected)
        assert [reason.text for reason in verdict.reasons] == [f"compiled for 2 processes, {text}"]
    again = effective_environment(an_environment(), {"WORLD_SIZE": "2"})
    assert isinstance(judge_guards(only, again), Accepted)


def test_what_was_captured_is_told_of_a_bundle(tmp_path: Path) -> None:
    lines = artifact_lines(an_artifact(tmp_path, "python", "train.py"))
    assert lines[1:3] == [
        "  1 graphs, as they were captured",
        "  one forward: 2 of float32 32, bfloat16 s77x32 on cpu",
    ]


def test_caches_of_one_process_are_for_any_number(tmp_path: Path) -> None:
    kinds = {guard.kind for guard in an_artifact(tmp_path, "python", "train.py").host_guards}
    assert "world_size" not in kinds and "isa" in kinds


def test_a_union_of_several_numbers_of_ranks_is_for_all_of_them(tmp_path: Path) -> None:
    two, one = an_artifact(tmp_path, "torchrun", "--nproc-per-node=2", "x.py"), an_artifact(tmp_path, "x", name="other")
    for first, second in ((one, two), (two, one)):
        joined = with_bases(first, (Base(Digest.of(b"x"), second, {}),))
        assert "world_size" not in {guard.kind for guard in joined.host_guards}
    same = with_bases(two, (Base(Digest.of(b"x"), two, {}),))
    assert HostGuard(kind="world_size", value="2") in same.host_guards
    assert joined.coverage.constraints[0] == "2 graphs, as they were captured"
    assert same.coverage.constraints == two.coverage.constraints
    assert same.coverage.constraints[0] == "1 graphs, as they were captured by 2 processes"


def test_what_a_later_run_adds_is_covered_too(tmp_path: Path) -> None:
    artifact = an_artifact(tmp_path, "x")
    place = write(tmp_path / "later", **{"inductor/fxgraph/cd/new/graph": an_entry(more="later")})
    new: Collected = collect(place, scratch=tmp_path / "scratch")
    lines = with_new(artifact, new).coverage.constraints
    assert lines[0] == "2 graphs, as they were captured" and [line.partition(" ")[0] for line in lines[1:]] == [
        "one",
        "new",
    ]


SERVER = "vllm/torch_compile_cache/0123/{}/inductor_cache/fxgraph/ab/{}/graph"


def served(tmp_path: Path, name: str, *graphs: tuple[str, str]) -> Collected:
    """Graphs of one program, below the directories of a server's ranks."""
    files = {SERVER.format(rank, key): an_entry(more=f"{rank}{key}") for rank, key in graphs}
    return collect(write(tmp_path / name, **files), scratch=tmp_path / f"{name}-scratch")


def test_graphs_below_a_servers_root_are_told_apart(tmp_path: Path) -> None:
    found = served(tmp_path, "one", ("rank_0_0", "a" * 51), ("rank_0_0", "b" * 51))
    assert [line.partition(" ")[0] for line in graphs_in(found)] == ["a" * 12, "b" * 12]


def test_graphs_of_equal_shape_are_all_told_of_what_has_grown(tmp_path: Path) -> None:
    effective = effective_environment(
        an_environment(node=a_node(gpus=())), {}, command=("torchrun", "--nproc-per-node=2")
    )
    both = (("rank_0_0", "a" * 51), ("rank_1_0", "a" * 51))
    base = artifact_of(served(tmp_path, "base", *both), a_profile(), effective, environ={}, seconds=(1.0, None))
    new = served(tmp_path, "new", ("rank_0_0", "b" * 51), ("rank_1_0", "b" * 51))
    grown = with_new(base, new)
    first, *lines = grown.coverage.constraints
    assert first == "4 graphs, as they were captured by 2 processes"
    assert [line.partition(" ")[0] for line in lines] == ["a" * 12, "a" * 12, "b" * 12, "b" * 12]
    union = with_bases(grown, (Base(Digest.of(b"x"), base, {}),))
    assert (union.coverage, union.host_guards) == (grown.coverage, grown.host_guards)
    assert with_new(grown, new).coverage == grown.coverage


def test_how_many_graphs_are_left_out_is_counted_anew_and_is_no_graph(tmp_path: Path) -> None:
    lines = [f"{number} forward: float32 {number}" for number in range(MOST_GRAPHS + 2)]
    whole = captured(len(lines), lines, ())
    assert whole.constraints[-2:] == (lines[MOST_GRAPHS - 1], "2 more")
    assert captured(4, ["a x", "2 more", "b y"], ()).constraints[1:] == ("a x", "b y", "2 more")
    known = tuple(
        File(path=f"inductor/fxgraph/ab/{number}/one", digest=Digest.of(b"x"), size_bytes=1) for number in lines
    )
    base = altered(an_artifact(tmp_path, "x"), coverage=whole, files=known)
    grown = with_new(base, served(tmp_path, "new", ("rank_0_0", "b")))
    for one in (grown, with_bases(grown, (Base(Digest.of(b"x"), base, {}),))):
        assert one.coverage.constraints[0] == f"{MOST_GRAPHS + 3} graphs, as they were captured"
        assert one.coverage.constraints[1:] == (*lines[:MOST_GRAPHS], "3 more")
