"""Which modules a child imported, from the trace that its interpreter wrote on stderr (`python -X importtime`).

Written by the interpreter as each module is first imported, so a module that is taken out of `sys.modules` again, or
that a claim leaves out, is still in it. What it cannot see: imports after the program has closed or redirected file
descriptor 2. The child's own list of `sys.modules` is therefore added to it, and counts against the artifact as well.
"""

import re
from collections.abc import Iterable
from pathlib import Path

COMPILERS = ("torch._dynamo", "torch._inductor")
_LINE = re.compile(rb"import time:\s*\d+ \|\s*\d+ \| *([\w.]+)\s*$")


def read_imports(stderr: Path) -> frozenset[str]:
    """Return the names of all modules in the trace."""
    found: set[str] = set()
    with stderr.open("rb") as lines:
        for line in lines:
            if match := _LINE.search(line):
                found.add(match[1].decode())
    return frozenset(found)


def compiler_modules(names: Iterable[str]) -> frozenset[str]:
    """Return those that belong to Dynamo or Inductor."""
    return frozenset(name for name in names if any(name == part or name.startswith(part + ".") for part in COMPILERS))
