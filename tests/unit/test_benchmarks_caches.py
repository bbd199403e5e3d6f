"""Rows of captured caches and of bytecode: which start comes first, what a run says, and what the table tells."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aot.sandbox.exit import Program
from benchmarks import card
from benchmarks.capture import is_compile
from benchmarks.card_captured import events_of, use_of, write_tree
from benchmarks.card_rows import Bench, _measuring, take_turn
from benchmarks.models import CARD
from benchmarks.starts import Start
from benchmarks.table import missed, render
from tests.unit.test_benchmarks_card import MODE, a_report, a_row


def a_captured(*, size: int = 10, ratio: float | None = None, compilers: tuple[str, ...] = ()) -> dict[str, Any]:
    row = a_row("decoder", "captured", ratio=2.0, size=size) | {
        "directory_bytes": 100,
        "compilers": list(compilers),
        "used": [{"hits": 2, "misses": 0}],
        "capture_seconds": 70.0,
        "proof_wait_seconds": 80.0,
    }
    if ratio is not None:
        row |= {"mega_cache_ratio": ratio, "mega_cache_seconds": [11.0 / ratio]}
    del row["steady"]
    return row


def a_bytecode(*, ratio: float) -> dict[str, Any]:
    row = a_row("decoder", "bytecode", ratio=ratio) | {"modules": 2000, "own_bytecode": 1990}
    del row["steady"]
    return row


def test_what_a_run_says_at_exit_is_read() -> None:
    assert use_of("aot: 2 graphs: 2 from the bundle, 0 compiled, saved ~9 s\n") == {"hits": 2, "misses": 0}
    said = "noise\naot: 5 graphs: 3 from the bundle, 1 from earlier runs here, 1 compiled in 4 s of compilers"
    assert use_of(said) == {"hits": 3, "misses": 1}
    assert use_of("aot: 2 graphs: an unknown number from the bundle, 0 compiled") == {"hits": None, "misses": 0}
    assert use_of("aot: nothing restored: no bundle") == {}


def test_what_a_child_says_is_found_among_other_output() -> None:
    first, done = '{"event": "first-output", "seconds": {"torch": 1.5}}', '{"event": "done", "cache_bytes": 7}'
    said = f'AUTOTUNE mm(64x768)\n{first}\n{{"a": 1}}\nno newline {done}'
    assert events_of(said) == {
        "first-output": {"event": "first-output", "seconds": {"torch": 1.5}},
        "done": {"event": "done", "cache_bytes": 7},
    }
    assert events_of('{"event": "do{"event": "done"}') == {}


def test_asking_an_assembler_for_its_version_is_no_compile() -> None:
    assert is_compile(Program("/usr/bin/ptxas", ("ptxas", "-lineinfo", "x.ptx")))
    assert not is_compile(Program("/usr/bin/ptxas", ("ptxas", "--version")))
    assert not is_compile(Program("/usr/bin/dash", ("sh", "-c", "ptxas")))


def test_every_way_is_first_in_its_turn() -> None:
    order: list[str] = []

    def way(name: str) -> Any:
        def start(*more: str) -> Start:
            order.append(f"{name}{''.join(more)}")
            return Start(1.0, 0.0, {}, {}, {})

        return start

    ways = {name: way(name) for name in ("eager", "this", "other")}
    for number in range(3):
        assert set(take_turn(ways, number)) == set(ways)
    assert order == ["eager", "this", "other", "this", "other", "eager", "other", "eager", "this"]
    take_turn({"eager": way("eager")}, 1, "!")
    assert order[-1] == "eager!"


def test_rows_on_what_jit_compiled_measure_the_first_batch_and_no_errors_again(tmp_path: Path) -> None:
    bench = Bench(SimpleNamespace(), tmp_path, Namespace(measure=2.0, batches="1,16"))  # type: ignore[arg-type]
    assert _measuring(bench, "jit") == ["--measure", "2.0"]
    assert _measuring(bench, "warm") == ["--measure", "2.0", "--no-errors", "--batches", "1"]


def test_captured_caches_and_bytecode_come_before_what_builds_for_minutes() -> None:
    names = "ours jit warm mega-cache captured bytecode jit-default package aot-compile"
    assert " ".join(card.STARTED) == names
    assert card.plan(["decoder"], ["bytecode", "captured"]) == [("decoder", "captured"), ("decoder", "bytecode")]


def test_the_tree_of_the_captured_command_holds_what_a_child_needs(tmp_path: Path) -> None:
    tree = write_tree(CARD["llama-decode"], tmp_path / "tree")
    code = "import benchmarks.child as one, benchmarks.checkpoint, benchmarks.models as two; print(one.__file__)\n"
    code += "assert two.CARD['llama-decode'].source.is_dir() and 'aot' not in __import__('sys').modules"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, env={})
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()) == tree / "benchmarks" / "child.py"


def test_the_table_has_captured_caches_beside_mega_cache() -> None:
    report = a_report(a_row("decoder", "ours"), a_captured(), a_row("decoder", "mega-cache", ratio=4.0))
    text = "\n".join(render(report, MODE))
    cells = "11.00 s | 22.00 s | 0.500 | 2, 0 | 0 | 0.00 MB | 0.00 MB | 0.100 | 70 s, 80 s |"
    assert f"| GPT-2-size decoder (124 M), 64 tokens | {cells}" in text
    in_turn = "\n".join(render(a_report(a_row("decoder", "ours"), a_captured(ratio=0.55)), MODE))
    assert "| 11.00 s | 20.00 s | 0.550 |" in in_turn
    alone = "\n".join(render(a_report(a_row("decoder", "ours"), a_captured()), MODE))
    assert "| 11.00 s | - | - |" in alone
    assert "captured caches" not in "\n".join(render(a_report(a_row("decoder", "ours")), MODE))


def test_bounds_of_captures_and_of_bytecode_that_were_missed_are_listed() -> None:
    report = a_report(a_captured(size=30, ratio=0.7, compilers=("ptxas a.ptx",)), a_bytecode(ratio=0.9))
    found = list(missed(report, MODE))
    assert "decoder: start captured / Mega-Cache 0.70, wanted at most 0.6" in found
    assert "decoder: captured / cache directory bytes 0.30, wanted at most 0.2" in found
    assert "decoder: a start on captured caches ran 1 compiler processes, wanted none" in found
    assert "decoder: start with bytecode / eager without 0.90, wanted at most 0.8" in found
    assert not list(missed(a_report(a_captured(ratio=0.6), a_bytecode(ratio=0.8)), MODE))
    # The bound on starts is for one mode.
    assert not list(missed(a_report(a_captured(ratio=0.7) | {"mode": "default"}), "default"))


def test_the_table_says_whether_the_image_has_bytecode() -> None:
    text = "\n".join(render(a_report(a_row("decoder", "ours"), a_bytecode(ratio=0.75)), MODE))
    assert "| GPT-2-size decoder (124 M), 64 tokens | 5.50 s | 4.12 s | 0.750 | 2000 | 1990 |" in text
