"""Checks in parallel loops, in the text of the kernels that Inductor writes."""

import pytest

from aot.compile.torch_checks import catch_in_loops

CHECK = 'AOTI_TORCH_CHECK((0 <= tmp0) & (tmp0 < 9L), "index out of bounds: 0 <= tmp0 < 9L");'


def a_kernel(pragma: str, statement: str, *, loops: int = 1) -> str:
    """One kernel as Inductor lays it out, with `statement` inside of so many loops and of one more."""
    lines = ["", "#include <torch/csrc/inductor/cpp_prefix.h>", 'extern "C"  void  kernel(const int64_t* in_ptr0)', "{"]
    lines += ["    {", f"        {pragma}"]
    indent = 8
    for index in range(loops + 1):
        lines += [" " * indent + f"for(int64_t x{index}=0L; x{index}<4L; x{index}+=1L)", " " * indent + "{"]
        indent += 4
    lines.append(" " * indent + statement)
    for _ in range(loops + 1):
        indent -= 4
        lines.append(" " * indent + "}")
    return "\n".join([*lines, "    }", "}", ""])


@pytest.mark.parametrize("check", [CHECK, CHECK.removeprefix("AOTI_")])
@pytest.mark.parametrize(("pragma", "loops"), [("#pragma omp for", 1), ("#pragma omp for collapse(2)", 2)])
def test_the_body_of_a_checking_loop_keeps_the_first_failure_and_the_kernel_throws_it(
    pragma: str, loops: int, check: str
) -> None:
    lines = catch_in_loops(a_kernel(pragma, check, loops=loops)).splitlines()
    opened = next(index for index, line in enumerate(lines) if "{ try {" in line)
    assert lines[opened - 1].lstrip().startswith(f"for(int64_t x{loops - 1}="), "the innermost of the joined loops"
    closed = next(index for index, line in enumerate(lines) if "catch (...)" in line)
    indent = lines[opened].index("{")
    assert lines[closed].startswith(" " * indent + "} catch") and lines[closed].endswith("} }")
    assert opened < next(index for index, line in enumerate(lines) if check in line) < closed
    assert lines[-1] == "}" and "rethrow_exception" in lines[-2]
    declared = next(index for index, line in enumerate(lines) if "std::exception_ptr" in line)
    assert lines[declared - 1] == "{" and declared < opened
    assert "#include <exception>" in lines[0:2]


def test_what_one_thread_of_a_team_does_is_caught_as_well() -> None:
    block = f"        #pragma omp single\n        {{\n            {CHECK}\n        }}\n"
    pragma = "        #pragma omp for"
    caught = catch_in_loops(a_kernel("#pragma omp for", "auto tmp1 = tmp0;").replace(pragma, block + pragma))
    lines = caught.splitlines()
    single = next(index for index, line in enumerate(lines) if "omp single" in line)
    assert lines[single + 1].strip() == "{ try {" and "catch (...)" in lines[single + 3]


@pytest.mark.parametrize(
    "source",
    [
        a_kernel("", CHECK),
        a_kernel("#pragma omp for", "auto tmp1 = tmp0;"),
        a_kernel("#pragma omp simd simdlen(8)", CHECK),
        "",
        f"void kernel() {{ {CHECK} }}",
    ],
    ids=["serial", "no check", "no team", "nothing", "another layout"],
)
def test_whatever_else_there_is_stays_as_it_is(source: str) -> None:
    assert catch_in_loops(source) == source


def test_a_loop_beside_a_checking_one_is_left_alone() -> None:
    pragma = "        #pragma omp for"
    plain = f"{pragma}\n        for(int64_t y=0L; y<4L; y+=1L)\n        {{\n            out[y] = 1;\n        }}\n"
    source = a_kernel("#pragma omp for", CHECK).replace(pragma, plain + pragma)
    assert plain in catch_in_loops(source)
