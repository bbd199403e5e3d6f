"""Full collections wait until a model is loaded, and the collector is left as it was found."""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from aot.compile import child as compile_child
from aot.compile.job import CompileJob, JobKind
from aot.emulator import EmulatedCpu
from aot.pause import NEVER, YOUNG_OBJECTS, import_for_good, no_full_collection
from aot.qualify import child as qualify_child
from aot.qualify.job import ProofJob, Task
from aot.schema.capability import Capability
from aot.schema.recipe import Recipe
from tests.builders import a_profile

THRESHOLDS = (700, 10, 10)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    found = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    yield
    gc.set_threshold(*found)


def test_no_full_collection_is_due_inside_and_the_thresholds_are_put_back() -> None:
    with no_full_collection():
        assert gc.get_threshold() == (YOUNG_OBJECTS, 10, NEVER)
    assert gc.get_threshold() == THRESHOLDS


def test_they_are_put_back_after_an_error() -> None:
    with pytest.raises(KeyError), no_full_collection():
        raise KeyError
    assert gc.get_threshold() == THRESHOLDS


def test_a_nested_block_changes_nothing() -> None:
    with no_full_collection():
        with no_full_collection():
            pass
        assert gc.get_threshold()[2] == NEVER
    assert gc.get_threshold() == THRESHOLDS


def test_blocks_that_overlap_end_where_they_began() -> None:
    one, other = no_full_collection(), no_full_collection()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS


def test_thresholds_that_were_set_meanwhile_stay() -> None:
    with no_full_collection():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)


def test_a_collector_that_is_switched_off_stays_so() -> None:
    gc.set_threshold(0, 10, 10)
    with no_full_collection():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == (0, 10, 10)


def test_a_larger_young_generation_is_kept() -> None:
    gc.set_threshold(2 * YOUNG_OBJECTS, 10, 10)
    with no_full_collection():
        assert gc.get_threshold() == (2 * YOUNG_OBJECTS, 10, NEVER)


def count_full_collections(statement: str) -> int:
    """Run `statement` in a fresh process whose collector is eager, and count its full collections."""
    code = (
        "import gc, aot\nfull = []\n"
        "gc.callbacks.append(lambda phase, about: full.append(1) if about['generation'] == 2 else None)\n"
        f"gc.collect()\ndel full[:]\ngc.set_threshold(50, 1, 1)\n{statement}\ncount = len(full)\nprint(count)"
    )
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_importing_the_loader_causes_no_full_collection() -> None:
    assert count_full_collections("import aot.runtime.pod") > 0, "the collector of this test is not eager enough"
    assert count_full_collections("aot.load") == 0


def test_no_collection_runs_while_a_job_imports_and_none_walks_what_was_imported() -> None:
    code = (
        "import gc, json\n"
        "from aot.pause import import_for_good\n"
        "seen, kept = [], []\n"
        "gc.callbacks.append(lambda phase, about: seen.append(phase))\n"
        "import_for_good(lambda: kept.extend([] for _ in range(100_000)))\n"
        "frozen, walked = gc.get_freeze_count(), len(gc.get_objects())\n"
        "print(json.dumps([len(seen), gc.isenabled(), frozen > 100_000, walked < 50_000]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ran.stdout.strip(), ran.stderr) == ("[0, true, true, true]", "")


def test_after_imports_that_fail_the_collector_is_as_it_was() -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise ImportError

    frozen = gc.get_freeze_count()
    for found in (gc.enable, gc.disable):
        found()
        before = gc.isenabled()
        try:
            with pytest.raises(ImportError):
                import_for_good(fail)
            assert (gc.isenabled(), gc.get_freeze_count()) == (before, frozen)
        finally:
            gc.enable()


class Held(Exception):
    """The imports are asked for without collections."""


class Opened(Exception):
    """They were not."""


def raises(error: type[Exception]) -> Callable[..., None]:
    def act(*_: object, **__: object) -> None:
        raise error

    return act


CPU = EmulatedCpu(capability=Capability("cpu:x86-64-v3"), model="emulated", features=())


@pytest.mark.parametrize("cpu", [None, CPU], ids=["here", "emulated"])
@pytest.mark.parametrize("task", list(Task))
def test_children_of_a_proof_import_without_collections_but_those_whose_start_is_timed(
    monkeypatch: pytest.MonkeyPatch, task: Task, cpu: EmulatedCpu | None
) -> None:
    monkeypatch.setattr("aot.qualify.child.import_for_good", raises(Held))
    monkeypatch.setattr("aot.qualify.opening.open_source", raises(Opened))
    timed = cpu is None and task in (Task.EAGER, Task.START)
    with pytest.raises(Opened if timed else Held):
        qualify_child.run_job(ProofJob(task=task, out="", memory_bytes=1, cpu=cpu), lambda step: None)


def test_a_compile_child_imports_the_compiler_without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.compile.child.import_for_good", raises(Held))
    job = CompileJob(kind=JobKind.WARM, recipe=Recipe(), profile=a_profile(), out="", build="")
    with pytest.raises(Held):
        compile_child.run_job(job, compile_child.Progress(None))
