"""vLLM's layout, written by a program that follows its documentation with Inductor's real artifacts: there and back."""

import ast
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from aot.capture.capture import capture
from aot.capture.collect import MARK, list_paths
from aot.capture.command import Ended
from aot.capture.pins import effective_environment, pins
from aot.capture.restore import restore
from aot.config import whole_environ
from aot.environment import observe_environment

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("vllm_layout.py")
BACKBONE = "backbone/"
NO_PROBES = {  # of the compiler's instruction sets: half a minute
    "TORCHINDUCTOR_VEC_ISA_OK": "1"
}


def start(environ: Mapping[str, str]) -> str:
    """Return what the program says of itself."""
    ran = subprocess.run(
        [sys.executable, str(PROGRAM)], env=dict(environ), capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_its_tree_is_captured_pruned_restored_elsewhere_and_read(tmp_path: Path) -> None:
    environ = {**whole_environ(), **NO_PROBES}
    said: list[str] = []

    def run(_: Sequence[str], wanted: Mapping[str, str]) -> Ended:
        said.append(start(wanted))
        return Ended(0, 1.0)

    effective = effective_environment(observe_environment(), environ)
    made = capture([sys.executable], environ=environ, effective=effective, scratch=tmp_path / "capture", run=run)
    # The second run is on the entries of the first, in another directory.
    assert [text.rpartition(" error ")[0] for text in said] == ["compiled 2 loaded 0", "compiled 0 loaded 2"]
    entries = {entry.path: entry for entry in made.collected.entries}
    [rank] = {path.partition("/rank_0_0/")[0] + "/rank_0_0/" for path in entries}
    assert rank.startswith("vllm/torch_compile_cache/")
    names = {path.removeprefix(rank).partition("/")[0] for path in entries}
    assert names == {"backbone", "inductor_cache"}  # no kernel of Triton's without a card
    artifact = f"{rank}{BACKBONE}artifact_compile_range_1_8_subgraph_"
    assert f"{artifact}0" in entries and any(path.startswith(f"{artifact}1/fxgraph/") for path in entries)
    # What nobody opened is left out: what is there for people who debug, sources of kernels beside their objects apart.
    assert f"{rank}{BACKBONE}computation_graph.py" not in entries and made.left_out > 0
    assert not [path for path in entries if "/locks/" in path]

    table = f"{rank}{BACKBONE}vllm_compile_cache.py"
    content = made.collected.paths[entries[table].digest].read_bytes()
    assert MARK in content and str(tmp_path).encode() not in content

    third = tmp_path / "third"
    restore(made.collected.entries, made.collected.paths, into=third)
    for _, place in ast.literal_eval((third / table).read_text()).values():
        assert place.startswith(f"{third}/vllm/") and Path(place).exists()
    before = list_paths(third)
    last = start({**environ, **pins(effective, third, environ)})
    assert last.startswith("compiled 0 loaded 2 error ") and float(last.split()[-1]) < 1e-5
    assert not [path for path in list_paths(third) - before if path.endswith(".so")]
    # Of both, the one that was saved as a file was written into torch's own cache once more: nothing was compiled.
    assert made.second is not None and (made.second.compiled, made.second.files) == (0, 0)
