"""Triton kernels compiled for cards that are not here: a `@triton.jit` function to one code object a signature.

Parent: `run.compile_kernels`; child: `child.make_kernels`. What comes out is untuned: nothing was measured.
"""
