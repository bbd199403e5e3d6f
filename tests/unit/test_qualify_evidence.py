"""What the parent makes of what it saw and of what the children claim."""

from pathlib import Path

import pytest

from aot.errors import QualificationFailed
from aot.qualify.children import Watched
from aot.qualify.crash import with_hint
from aot.qualify.imports import compiler_modules, read_imports
from aot.qualify.job import Case, Claim, Compared, Omission, SpeedClaim, Task
from aot.qualify.start_proof import extra_processes, prove_start
from aot.qualify.verdict import (
    agreements_of,
    check_claim,
    count_misses,
    list_omissions,
    refuse_differences,
    refuse_misses,
    with_speeds,
)
from aot.sandbox import ChildExit, CountedBy, ExitKind, ProcessCount, Program, SandboxKind
from aot.schema.artifact import Winner
from aot.schema.codec import encode
from aot.schema.environment import Clocks
from aot.schema.measured import Measured, clocks_of, memory_of, write_clocks, write_memory
from tests.builders import a_profile, a_speed, an_artifact, an_elf

TORCH = "2.13.0+cpu"


def programs(*paths: str, forks: int | None = None, by: CountedBy = CountedBy.PTRACE) -> ProcessCount:
    found = tuple(Program(path, (path, "-x")) for path in paths)
    return ProcessCount(counted_by=by, forks=len(paths) if forks is None else forks, execs=len(paths), programs=found)


def an_exit(**deviations: object) -> ChildExit:
    fields: dict[str, object] = {
        "kind": ExitKind.EXITED,
        "code": 0,
        "signal": None,
        "stop_reason": None,
        "wall_seconds": 2.0,
        "cpu_seconds": 2.0,
        "max_rss_bytes": 300 << 20,
        "stdout_tail": "",
        "stderr_tail": "",
        "processes": programs(),
        "sandbox": SandboxKind.PROCESS,
    }
    return ChildExit(**(fields | deviations))  # type: ignore[arg-type]


def watched(
    place: Path, task: Task, claim: Claim | None, *, imports: tuple[str, ...] = ("torch",), **deviations: object
) -> Watched:
    directory = place / task
    directory.mkdir(exist_ok=True)
    (directory / "stderr.txt").write_text("".join(f"import time:       5 |        9 |   {name}\n" for name in imports))
    if claim is not None:
        (directory / "claim.json").write_bytes(encode(claim))
    steps = {"built": 1.0, "output": 2.0 if task is Task.EAGER else 1.9}
    return Watched(task, an_exit(**deviations), directory, directory / "stderr.txt", steps, "output")


EAGER = Claim(torch=TORCH)
STARTED = Claim(torch=TORCH, counters={"compiled": 1, "eager": 0})


def test_a_clean_start_is_a_proof(tmp_path: Path) -> None:
    eager = watched(tmp_path, Task.EAGER, EAGER)
    start = watched(tmp_path, Task.START, STARTED)
    proof = prove_start(eager, start, profile=a_profile())
    assert (proof.seconds, proof.eager_seconds, proof.processes, proof.compiler_modules) == (1.9, 2.0, (), ())
    assert (proof.counted_by, proof.peak_memory_bytes) == ("ptrace", 300 << 20)


def test_a_compiler_process_fails_the_start_and_is_named(tmp_path: Path) -> None:
    eager = watched(tmp_path, Task.EAGER, EAGER)
    start = watched(tmp_path, Task.START, STARTED, processes=programs("/usr/bin/g++"))
    with pytest.raises(QualificationFailed, match=r"/usr/bin/g\+\+") as caught:
        prove_start(eager, start, profile=a_profile())
    assert caught.value.details["processes"] == ["/usr/bin/g++ -x"]


def test_processes_that_eager_starts_as_well_are_not_ours() -> None:
    eager, start = programs("/sbin/ldconfig", "/bin/sh"), programs("/sbin/ldconfig", "/bin/sh")
    assert extra_processes(eager, start) == ()
    assert extra_processes(eager, programs("/sbin/ldconfig", "/sbin/ldconfig", "/bin/sh")) == ("/sbin/ldconfig -x",)


def test_a_fork_without_a_program_counts() -> None:
    assert extra_processes(programs(), programs(forks=2)) == ("2 fork(s) without a program",)


def test_a_compiler_module_beyond_eagers_fails_the_start(tmp_path: Path) -> None:
    eager = watched(tmp_path, Task.EAGER, EAGER, imports=("torch", "torch._dynamo.config"))
    start = watched(
        tmp_path, Task.START, STARTED, imports=("torch", "torch._dynamo.config", "torch._inductor.codecache")
    )
    with pytest.raises(QualificationFailed) as caught:
        prove_start(eager, start, profile=a_profile())
    assert caught.value.details["modules"] == ["torch._inductor.codecache"]


def test_a_module_that_only_the_child_admits_counts_as_well(tmp_path: Path) -> None:
    eager = watched(tmp_path, Task.EAGER, EAGER)
    claim = Claim(torch=TORCH, counters={"compiled": 1}, modules=("torch._dynamo",))
    with pytest.raises(QualificationFailed, match=r"torch\._dynamo"):
        prove_start(eager, watched(tmp_path, Task.START, claim), profile=a_profile())


def test_imports_that_cannot_be_observed_are_no_proof(tmp_path: Path) -> None:
    eager = watched(tmp_path, Task.EAGER, EAGER)
    with pytest.raises(QualificationFailed, match="could not be observed"):
        prove_start(eager, watched(tmp_path, Task.START, STARTED, imports=()), profile=a_profile())


def test_a_first_call_that_ran_eagerly_is_no_proof(tmp_path: Path) -> None:
    eager = watched(tmp_path, Task.EAGER, EAGER)
    claim = Claim(torch=TORCH, counters={"compiled": 3, "eager": 1})
    with pytest.raises(QualificationFailed, match="did not run compiled code"):
        prove_start(eager, watched(tmp_path, Task.START, claim), profile=a_profile())


def test_another_torch_than_the_profile_says_is_no_proof(tmp_path: Path) -> None:
    eager = watched(tmp_path, Task.EAGER, EAGER)
    claim = Claim(torch="2.12.0", counters={"compiled": 1})
    with pytest.raises(QualificationFailed, match=r"2\.12\.0"):
        prove_start(eager, watched(tmp_path, Task.START, claim), profile=a_profile())


@pytest.mark.parametrize(
    ("deviations", "words"),
    [
        ({"kind": ExitKind.SIGNALED, "code": None, "signal": "SIGSEGV"}, "died of SIGSEGV"),
        ({"kind": ExitKind.TIMED_OUT, "code": None}, "timed out"),
        ({"kind": ExitKind.OUT_OF_MEMORY, "code": None}, "out of memory"),
        ({"code": 3}, "exited with code 3"),
    ],
)
def test_a_violent_end_is_a_failed_proof_that_names_it(
    tmp_path: Path, deviations: dict[str, object], words: str
) -> None:
    eager = watched(tmp_path, Task.EAGER, EAGER)
    start = watched(tmp_path, Task.START, None, **deviations)
    with pytest.raises(QualificationFailed, match=words) as caught:
        prove_start(eager, start, profile=a_profile())
    assert caught.value.details["signal"] == deviations.get("signal")


def test_a_child_that_leaves_by_itself_without_a_claim_is_a_failed_proof(tmp_path: Path) -> None:
    eager = watched(tmp_path, Task.EAGER, EAGER)
    with pytest.raises(QualificationFailed, match="without a claim"):
        prove_start(eager, watched(tmp_path, Task.START, None), profile=a_profile())


def test_a_claim_behind_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_bytes(encode(STARTED))
    start = watched(tmp_path, Task.START, None)
    (start.out / "claim.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(QualificationFailed, match="without a claim"):
        prove_start(watched(tmp_path, Task.EAGER, EAGER), start, profile=a_profile())


def test_the_log_leaves_out_the_trace_of_imports(tmp_path: Path) -> None:
    tail = "import time:       5 |        9 |   torch\nTraceback: boom\nimport time:  1 |  2 | json\n"
    start = watched(tmp_path, Task.START, None, code=1, stderr_tail=tail)
    with pytest.raises(QualificationFailed) as caught:
        prove_start(watched(tmp_path, Task.EAGER, EAGER), start, profile=a_profile())
    assert caught.value.details["log"] == "Traceback: boom\n"


def test_a_segmentation_fault_points_to_a_second_libstdcxx_where_there_is_one() -> None:
    crash = QualificationFailed("died", details={"signal": "SIGSEGV"})
    hint = with_hint(crash, (an_artifact(elf=an_elf(static_libstdcxx=True)),), compiler="g++ 14.1.0").hint
    assert hint.startswith("the compiler (g++ 14.1.0) linked libstdc++ into the artifact")
    assert "libstdc++" not in with_hint(crash, (an_artifact(),), compiler="g++ 14.1.0").hint


def test_an_illegal_instruction_points_to_the_level() -> None:
    crash = QualificationFailed("died", details={"signal": "SIGILL"})
    assert "cpu:x86-64-v4" in with_hint(crash, (an_artifact(capability="cpu:x86-64-v4"),)).hint


def test_imports_are_read_amid_other_output(tmp_path: Path) -> None:
    place = tmp_path / "stderr.txt"
    place.write_bytes(
        b"import time: self [us] | cumulative | imported package\n"
        b"import time:       163 |        163 |   zipimport\n"
        b"\xff\xfe no text\nwarning: import time is over\n"
        b"half a line import time:         7 |         70 |     torch._dynamo.utils\n"
    )
    assert read_imports(place) == {"zipimport", "torch._dynamo.utils"}


def test_only_the_compilers_own_modules_are_theirs() -> None:
    names = ("torch._dynamo", "torch._inductor.config", "torch._dynamo_like", "torch", "my.torch._dynamo")
    assert compiler_modules(names) == {"torch._dynamo", "torch._inductor.config"}


def a_case(**deviations: object) -> Case:
    fields: dict[str, object] = {
        "artifacts": (0,),
        "point": {"batch": 1},
        "weights": "perturbed",
        "file": "0000.safetensors",
        "compiled": 1,
    }
    return Case(**(fields | deviations))  # type: ignore[arg-type]


ARTIFACTS = (an_artifact(),)


def test_agreements_follow_cases_and_comparisons() -> None:
    claim = Claim(cases=(a_case(), a_case(file="0001.safetensors", variant="second call")))
    compared = {
        "0000.safetensors": Compared(file="0000.safetensors", agrees=True, max_error=1e-6, eager_error=2e-6),
        "0001.safetensors": Compared(file="0001.safetensors", agrees=False, max_error=1.0, reason="output 0: RMSE 1"),
    }
    one, two = agreements_of(claim, compared, ARTIFACTS)
    assert (one.agrees, one.max_error, one.eager_error, one.note) == (True, 1e-6, 2e-6, "")
    assert (two.agrees, two.variant, two.note) == (False, "second call", "output 0: RMSE 1")
    with pytest.raises(QualificationFailed, match="1 of 2 comparisons") as caught:
        refuse_differences((one, two), ARTIFACTS)
    assert caught.value.details["differences"] == [
        "whole program at batch 1, perturbed weights, second call: output 0: RMSE 1"
    ]


def test_what_was_left_out_is_noted_at_its_point_or_at_the_last_one() -> None:
    claim = Claim(
        cases=(a_case(), a_case(file="0001.safetensors", point={"batch": 2})),
        omissions=(
            Omission(artifacts=(0,), point={"batch": 1}, reason="only one call"),
            Omission(artifacts=(0,), point={"batch": 32}, reason="not tried"),
        ),
    )
    compared = {case.file: Compared(file=case.file, agrees=True) for case in claim.cases}
    notes = [agreement.note for agreement in agreements_of(claim, compared, ARTIFACTS)]
    assert notes == ["batch 1: only one call", "batch 32: not tried"]
    assert list_omissions(claim, ARTIFACTS) == (
        "whole program [batch 1..32] at batch 1: only one call",
        "whole program [batch 1..32] at batch 32: not tried",
    )


def test_what_a_child_says_it_left_out_is_cut_and_must_name_an_artifact() -> None:
    strange = Omission(artifacts=(7,), point={}, reason="not ours")
    claim = Claim(omissions=(strange, *(Omission(artifacts=(0,), point={}, reason="x" * 9999) for _ in range(300))))
    listed = list_omissions(claim, ARTIFACTS)
    assert max(map(len, listed)) == 300
    assert len(listed) == 200 and listed[-1] == "and 101 more"


def test_a_case_that_nobody_compared_does_not_agree() -> None:
    (found,) = agreements_of(Claim(cases=(a_case(),)), {}, ARTIFACTS)
    assert not found.agrees


def test_a_result_of_another_structure_does_not_agree() -> None:
    claim = Claim(cases=(a_case(eager_form="(*, *)", compiled_form="[*, *]"),))
    compared = {"0000.safetensors": Compared(file="0000.safetensors", agrees=True)}
    (found,) = agreements_of(claim, compared, ARTIFACTS)
    assert not found.agrees


def test_a_miss_within_the_coverage_is_refused() -> None:
    missed = a_case(compiled=0, misses=1, last_miss="args[0]: size 1 in dimension 0, wanted 2 to 32")
    assert count_misses((missed,)) == 1
    with pytest.raises(QualificationFailed, match="wanted 2 to 32") as caught:
        refuse_misses((missed,), ARTIFACTS)
    assert caught.value.details["recompiles"] == 1


def test_a_non_contiguous_input_may_be_a_miss() -> None:
    missed = a_case(variant="non-contiguous", compiled=0, misses=1, last_miss="args[0]: strides (8, 2)")
    refuse_misses((missed,), ARTIFACTS)
    compared = {"0000.safetensors": Compared(file="0000.safetensors", agrees=True)}
    (found,) = agreements_of(Claim(cases=(missed,)), compared, ARTIFACTS)
    assert found.agrees
    assert found.note == "a guard miss, answered by eager: args[0]: strides (8, 2)"


@pytest.mark.parametrize(
    "cases",
    [
        (),
        (a_case(variant="non-contiguous"),),
        (a_case(), a_case(file="../../etc/passwd")),
        (a_case(), a_case(artifacts=(5,))),
    ],
)
def test_a_claim_that_proves_too_little_or_names_what_cannot_be_is_refused(cases: tuple[Case, ...]) -> None:
    with pytest.raises(QualificationFailed):
        check_claim(Claim(cases=cases), ARTIFACTS, checked=True)


def test_speeds_and_winner_are_recorded_with_their_artifact() -> None:
    slow = a_speed(eager_us=100, compiled_us=200)
    claim = Claim(speeds=(SpeedClaim(artifacts=(1,), speed=slow),))
    one, two = with_speeds((an_artifact(speeds=()), an_artifact(speeds=())), claim)
    assert (one.speeds, one.winner) == ((), Winner.COMPILED)
    assert (two.speeds, two.winner) == ((slow,), Winner.EAGER)


def test_clocks_and_memory_of_this_proof_take_the_place_of_an_earlier_ones() -> None:
    clocks = Clocks(sm_mhz=1980)
    claims = (
        SpeedClaim(artifacts=(0,), speed=a_speed(point={"batch": 4}), clocks=clocks, graph_memory_bytes=5),
        SpeedClaim(artifacts=(0,), speed=a_speed(point={"batch": 8})),
    )
    earlier = {"march": "x", **write_clocks(Measured.PROOF, {"": clocks}), **write_memory({"": 9})}
    compiled = write_clocks(Measured.COMPILED, {"": clocks})
    one, two = with_speeds((an_artifact(facts=earlier | compiled), an_artifact(facts=earlier)), Claim(speeds=claims))
    assert clocks_of(one, Measured.PROOF) == {"batch 4": clocks}
    assert memory_of(one) == {"batch 4": 5}
    assert clocks_of(one, Measured.COMPILED) == {"": clocks} and one.facts["march"] == "x"
    assert two.facts == {"march": "x"}


def test_a_speed_that_cannot_be_is_refused() -> None:
    claim = Claim(speeds=(SpeedClaim(artifacts=(0,), speed=a_speed(eager_us=0, compiled_us=1)),))
    with pytest.raises(QualificationFailed):
        with_speeds(ARTIFACTS, claim)
