"""Checks inside of parallel loops that raise to the caller, where Inductor's own end the process.

Generated C++ checks every index that it computes from an input, and throws out of the loop. An exception may not leave
a parallel region (OpenMP 5.0, section 2.6: it must be caught by the thread that threw it, within the region): one
token beyond a table ends the process with "terminate called", and a service with it. Here the body of such a loop
keeps the first exception, and the kernel throws it again once all threads are through, so the call fails as a call.
"""

import re
from typing import Any

_LOOP = re.compile(r"#pragma omp for\b(?:.*\bcollapse\((\d+)\))?")
_SINGLE = re.compile(r"#pragma omp single\b")  # what one thread of the team does
_CHECK = "TORCH_CHECK("  # AOTI_TORCH_CHECK in an artifact of its own, TORCH_CHECK under torch.compile
_DECLARED = """\
    std::exception_ptr aot_failure;
    std::atomic_flag aot_failed = ATOMIC_FLAG_INIT;"""
_CAUGHT = "catch (...) { if (!aot_failed.test_and_set()) aot_failure = std::current_exception(); }"
_THROWN = "    if (aot_failure) std::rethrow_exception(aot_failure);"
_INCLUDES = "#include <atomic>\n#include <exception>"


def catch_checks() -> None:
    """Let every kernel of loops that is generated from now on raise its failed checks to whoever calls it."""
    from torch._inductor.codegen.cpp import KernelGroup

    generate = KernelGroup.codegen_group
    if getattr(generate, "catches", False):
        return

    def codegen_group(group: Any, *args: Any, **kwargs: Any) -> str:
        return catch_in_loops(generate(group, *args, **kwargs))

    codegen_group.catches = True  # type: ignore[attr-defined]
    KernelGroup.codegen_group = codegen_group


def catch_in_loops(source: str) -> str:
    """Return the source of one kernel with the bodies of its checking parallel loops in `try` blocks.

    `source` is one function, its braces on lines of their own, as Inductor writes it. What is not of that form, or
    has no check in a parallel loop, comes back as it is.
    """
    lines = source.splitlines()
    bodies = [body for index, line in enumerate(lines) if (body := _body_of(lines, index, line))]
    checking = [(first, last) for first, last in bodies if any(_CHECK in line for line in lines[first:last])]
    if not checking or "{" not in lines or "}" not in lines:
        return source
    for first, last in checking:
        lines[first] = lines[first].replace("{", "{ try {")
        lines[last] = f"{lines[last]} {_CAUGHT} }}"
    opened, closed = lines.index("{"), len(lines) - 1 - lines[::-1].index("}")
    body = [_DECLARED, *lines[opened + 1 : closed], _THROWN]
    return "\n".join([_INCLUDES, *lines[: opened + 1], *body, *lines[closed:], ""])


def _body_of(lines: list[str], index: int, line: str) -> tuple[int, int] | None:
    """The lines of the braces around what the loop, or the one thread, at `index` does.

    Of loops that are joined it is the innermost one.
    """
    if _SINGLE.search(line) and index + 1 < len(lines):
        return _braces(lines, index + 1)
    found = _LOOP.search(line)
    if not found:
        return None
    loops = int(found[1] or 1)
    for place in range(index + 1, len(lines) - 1):
        loops -= lines[place].lstrip().startswith("for")
        if loops == 0:
            return _braces(lines, place + 1)
    return None


def _braces(lines: list[str], first: int) -> tuple[int, int] | None:
    """The line `first`, which opens a block, and the one that closes it: the next brace at the same depth of indent."""
    if lines[first].strip() != "{":
        return None
    closing = lines[first].replace("{", "}")
    return next(((first, place) for place in range(first + 1, len(lines)) if lines[place] == closing), None)
