"""Two Triton kernels, compiled by tests.kernels."""

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def dot_kernel(a, b, c, size, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        columns = start + rows
        left = tl.load(a + rows[:, None] * size + columns[None, :])
        right = tl.load(b + columns[:, None] * BLOCK + rows[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * BLOCK + rows[None, :], total)
