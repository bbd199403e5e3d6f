"""Threads that generated code is fixed to are found in what Inductor wrote, and templates are kept from it."""

import io
import zipfile

import pytest

from aot.compile.inductor import refuse_fixed_threads
from aot.compile.torch_inductor import load_compiler
from aot.compile.torch_threads import adapt_to_threads
from aot.errors import BackendFailed

# What torch 2.12 generates for a product, for any number of threads as it says.
SHARES_BY_NUMBER = """
const int tid = omp_get_thread_num();
const int64_t k_group_id = tid / num_Kt_blocks;
"""


def an_archive(source: str, name: str = "data/aotinductor/model/model.kernel.cpp") -> zipfile.ZipFile:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, source)
    return zipfile.ZipFile(content)


@pytest.mark.parametrize(
    "pragma", ["#pragma omp parallel num_threads(2)", "  #pragma omp parallel for num_threads( 16 )"]
)
def test_a_number_of_threads_in_the_code_is_refused(pragma: str) -> None:
    with pytest.raises(BackendFailed, match="is fixed to the builder's threads: #pragma omp parallel"):
        refuse_fixed_threads(an_archive(f"void f() {{\n{pragma}\n{{}}\n}}"), "block")


@pytest.mark.parametrize("source", [SHARES_BY_NUMBER, "  int64_t num_thread = 8;\n"])
def test_work_or_buffers_for_a_planned_number_are_refused(source: str) -> None:
    with pytest.raises(
        BackendFailed, match=r"is fixed to the builder's threads: (const int )?(tid|int64_t num_thread) = "
    ):
        refuse_fixed_threads(an_archive(source), "block")


@pytest.mark.parametrize(
    "source",
    [
        "#pragma omp parallel\n",
        "constexpr int64_t num_threads = 8;\n",
        "#pragma omp for schedule(static, 1)\n",
        "int tid = omp_get_thread_num();\n#pragma omp for\n",
        "int64_t num_thread = at::get_num_threads();\n",
    ],
)
def test_threads_that_adapt_are_not(source: str) -> None:
    refuse_fixed_threads(an_archive(source), "")


def test_only_generated_code_is_read() -> None:
    refuse_fixed_threads(an_archive("#pragma omp parallel num_threads(2)", "notes.txt"), "")


@pytest.mark.torch
@pytest.mark.parametrize(("shares", "planned"), [(SHARES_BY_NUMBER, 1), ("", 8)])
def test_products_that_share_by_number_are_planned_for_one_thread(
    monkeypatch: pytest.MonkeyPatch, shares: str, planned: int
) -> None:
    load_compiler()
    from torch._inductor import config
    from torch._inductor.codegen import cpp_flex_attention_template as attention
    from torch._inductor.codegen import cpp_gemm_template as product
    from torch._inductor.codegen import cpp_grouped_gemm_template as grouped

    for module in (product, grouped):
        monkeypatch.setattr(module, "parallel_num_threads", module.parallel_num_threads)
    monkeypatch.setattr(product, "GEMM_TEMPLATE_MULTI_THREADS_PARAMS", shares)
    monkeypatch.setattr(attention, "INIT_PARAMS", attention.INIT_PARAMS)
    with config.patch({"cpp.threads": 8}):
        adapt_to_threads()
        assert [module.parallel_num_threads() for module in (product, grouped)] == [planned, planned]
    assert "{{num_thread}}" not in attention.INIT_PARAMS
