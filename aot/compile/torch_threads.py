"""Inductor's C++ templates that hold to the number of threads of their plan, made right for any number of them.

Where a profile pins no threads, generated loops ask for their number when they run. Two kinds of templates do not, and
both are silent: each computes what it is asked for on a builder of at most as many threads as the plan has.

A product of frozen weights (torch/_inductor/codegen/cpp_gemm_template.py and cpp_grouped_gemm_template.py up to torch
2.12) gives each thread of a team the share that its own number says. A smaller team leaves the rest uncomputed. torch
2.11 asks for the planned number by name, which OpenMP need not grant; 2.12 asks for none. From 2.13 on the shares are
a loop, which any team walks through.

Attention with a score of one's own (cpp_flex_attention_template.py, all of them) has one buffer for each planned
thread, and every thread writes into the buffer of its number: a larger team writes over the heap.
"""

import importlib
from types import ModuleType
from typing import Any

_TEMPLATES = "torch._inductor.codegen"
_ATTENTION = ("FLEX_ATTENTION_TEMPLATE", "INIT_PARAMS")  # up to torch 2.12, from 2.13 on
_PLANNED = "int64_t num_thread = {{num_thread}};"
_OF_THE_RUN = "int64_t num_thread = at::get_num_threads();"


def adapt_to_threads() -> None:
    """Let every template generate code that is right with any number of threads, for all that is compiled from now on.

    To be called once the compiler is loaded: the modules of the templates import each other.

    What a release does not have is left alone: `aot.compile.inductor.refuse_fixed_threads` reads what was generated.
    """
    products = _module("cpp_gemm_template")
    if "omp_get_thread_num" in getattr(products, "GEMM_TEMPLATE_MULTI_THREADS_PARAMS", ""):
        for module in (products, _module("cpp_grouped_gemm_template")):
            # One thread computes all of it; tuning then sees what that costs, and takes the library's.
            _replace(module, "parallel_num_threads", lambda: 1)
    attention = _module("cpp_flex_attention_template")
    for name in _ATTENTION:
        _replace(attention, name, getattr(attention, name, "").replace(_PLANNED, _OF_THE_RUN))


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{_TEMPLATES}.{name}")
    except ImportError:
        return None


def _replace(module: ModuleType | None, name: str, value: Any) -> None:
    if module is not None and hasattr(module, name):
        setattr(module, name, value)
