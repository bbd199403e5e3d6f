"""Threads that generated code is fixed to are found in what Inductor wrote."""

import io
import zipfile

import pytest

from aot.compile.inductor import refuse_fixed_threads
from aot.errors import BackendFailed


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


@pytest.mark.parametrize(
    "source",
    ["#pragma omp parallel\n", "constexpr int64_t num_threads = 8;\n", "#pragma omp for schedule(static, 1)\n"],
)
def test_threads_that_adapt_are_not(source: str) -> None:
    refuse_fixed_threads(an_archive(source), "")


def test_only_generated_code_is_read() -> None:
    refuse_fixed_threads(an_archive("#pragma omp parallel num_threads(2)", "notes.txt"), "")
