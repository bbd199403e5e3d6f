"""Why kernels have no line information, with the real Triton and without a card: equal text has equal bytes."""

import subprocess
import sys
from pathlib import Path

import pytest

from aot.compile.layout import Layout
from aot.environment.assembler import LINE_INFO
from aot.schema.recipe import Recipe
from tests.builders import a_gpu_profile

PROGRAM = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, sys.argv[1])
from kernel import add

signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
triton.compile(ASTSource(add, signature, {(3,): 256}), target=GPUTarget("cuda", 90, 32))
"""
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
"""


def compile_in(place: Path, text: str = KERNEL, **variables: str) -> dict[str, bytes]:
    """The files of one kernel, by their endings, its source and its cache lying in `place`."""
    place.mkdir()
    (place / "kernel.py").write_text(text)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(place), "TRITON_CACHE_DIR": str(place / "triton"), **variables}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place)], env=environ, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    # Its group names the files by absolute paths, which restoring rewrites.
    found = [path for path in (place / "triton").rglob("add.*") if path.is_file()]
    return {path.suffix: path.read_bytes() for path in found}


@pytest.mark.torch
def test_equal_kernels_have_equal_bytes_in_any_directory_without_line_information(tmp_path: Path) -> None:
    one, other = (compile_in(tmp_path / name, TRITON_DISABLE_LINE_INFO="1") for name in ("one", "other"))
    assert {".cubin", ".ptx", ".ttir", ".ttgir", ".llir"} <= one.keys()
    assert one == other
    assert not [ending for ending, content in one.items() if str(tmp_path).encode() in content]
    with_lines = compile_in(tmp_path / "third")
    assert str(tmp_path).encode() in with_lines[".ttir"]  # what the pin is against


@pytest.mark.torch
def test_a_build_for_a_card_makes_one_cubin_of_a_kernel_in_whatever_file_its_source_lies(tmp_path: Path) -> None:
    """Triton's key has no file in it, so two processes that compile one text write to one place: see `LINE_INFO`."""
    layout = Layout(scratch=tmp_path, isolated=False)
    told = layout.environment(Recipe(), a_gpu_profile())

    def cubin_of(name: str, text: str, **variables: str) -> tuple[str, bytes]:
        found = compile_in(tmp_path / name, text, **variables)
        [place] = (tmp_path / name / "triton").glob("*/add.cubin")
        return place.parent.name, found[".cubin"]

    texts = {"one": KERNEL, "longer": KERNEL + "\n# and a line more\n"}
    pinned = {LINE_INFO: told[LINE_INFO]}
    one, longer = (cubin_of(name, text, **pinned) for name, text in texts.items())
    assert one == longer
    one, longer = (cubin_of(f"{name}-with-lines", text) for name, text in texts.items())
    assert one[0] == longer[0]
    assert one[1] != longer[1]  # what was in the cache depended on who wrote last
