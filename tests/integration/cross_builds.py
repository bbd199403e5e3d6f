"""Triton kernels for tests of cross-builds, and their builds in real children."""

from pathlib import Path
from typing import Any

from aot.compile.kernels.run import compile_kernels
from aot.compile.run import Compiled
from aot.pipeline.kernels import kernel_profile
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.artifact import Artifact
from aot.schema.profile import Profile
from aot.schema.spec import KernelSignature, Limits
from aot.source import OpenedSource
from tests.kernel_builders import a_kernel_source, a_kernel_spec, a_signature

LIMITS = Limits(wall_seconds=120, memory_bytes=6 << 30, processes=64, disk_bytes=1 << 30)

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.jit
def product(a, b, c, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, steps = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for step in range(0, depth, K):
        left = tl.load(a + rows[:, None] * depth + (steps[None, :] + step))
        total += tl.dot(left, tl.load(b + (steps[:, None] + step) * N + columns[None, :]))
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)


@triton.jit
def wrong(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, at + undefined_name)


def plain(x):
    return x
"""


def a_product(name: str = "gemm", *, size: int = 64, depth: int = 32, **deviations: Any) -> KernelSignature:
    fields: dict[str, Any] = {
        "types": {"a": "*fp16", "b": "*fp16", "c": "*fp32", "depth": "i32"},
        "constants": {"M": size, "N": size, "K": depth},
        "divisible": ("a", "b", "c", "depth"),
    }
    return a_signature(name, **(fields | deviations))


def write_kernels(tree: Path, code: str = KERNELS) -> Path:
    tree.mkdir(parents=True)
    (tree / "kernels.py").write_text(code)
    return tree


def build(
    place: Path,
    target: str = "cuda:sm_90",
    *,
    entry: str = "kernels:add",
    signatures: tuple[KernelSignature, ...] = (),
    code: str = KERNELS,
    profile: Profile | None = None,
    limits: Limits = LIMITS,
    isolated: bool = True,
) -> Compiled:
    """Compile below `place`, which is new."""
    tree = write_kernels(place / "tree", code)
    found = find_sandbox() if isolated else None
    profile = profile or kernel_profile(target)
    source = a_kernel_source(entry=entry, signatures=signatures or (a_signature(),))
    return compile_kernels(
        OpenedSource(tree, entry, None, ()),
        a_kernel_spec(profile, source=source, limits=limits),
        profile,
        scratch=place / "scratch",
        sandbox=found if isinstance(found, Bubblewrap) else None,
    )


def content_of(built: Compiled, artifact: Artifact) -> bytes:
    [file] = artifact.files
    return built.paths[file.digest].read_bytes()
