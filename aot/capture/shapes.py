"""What graph an entry holds, read from the program that Inductor generated for it: as text, nothing of it is run.

A bundle of caches answers for the graphs that were captured; people read from this which, and for what inputs.
Source: torch/_inductor/codegen/wrapper.py, write_wrapper_decl, codegen_input_size_asserts, benchmark_compiled_module.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from aot.capture.collect import Collected
from aot.capture.entries import Kind
from aot.capture.pickled import MOST_BYTES, source_of
from aot.capture.plain import read_plain

MOST_SHAPES = 12
MOST_SEARCHED = 16 << 20  # characters of one program; what comes after is not told
# A captured command writes what these read, so none of them may look at a character twice: each begins with what ends
# the search of the one before.
_PURPOSE = re.compile(r"^# AOT ID: \['\d+_(\w+)'\]", re.MULTILINE)
_ARGUMENTS = re.compile(r"^[ \t]+(\w+(?:, \w+)*),? = args$", re.MULTILINE)
_CHECKED = re.compile(r"assert_size_stride\((\w+), \(([^()]*)\), ")
_EXAMPLE = re.compile(
    r"^[ \t]+(\w+) = rand_strided\(\(([^()]*)\), \([^()]*\), device='([\w:]+)', dtype=torch\.(\w+)\)", re.M
)


def graphs_in(collected: Collected) -> tuple[str, ...]:
    """Return a line for each compiled graph among the entries: "forward: float32 16x32, 4 of float32 32 on cpu"."""
    lines: dict[str, str] = {}
    for entry in collected.entries:
        if entry.kind is Kind.FXGRAPH and entry.graph is not None:
            lines.setdefault(entry.graph, _line(entry.graph, collected.paths[entry.digest]))
    return tuple(lines[graph] for graph in sorted(lines, key=lambda graph: (lines[graph].partition(" ")[2], graph)))


def describe_program(source: str) -> str:
    """Return what a generated program is for and takes; sizes that stayed open have their names."""
    source = source[:MOST_SEARCHED]
    purpose = _PURPOSE.search(source)
    inputs = list(_inputs(source))
    shapes = Counter(shape for shape, _ in inputs)
    counted = [shape if number == 1 else f"{number} of {shape}" for shape, number in shapes.items()]
    more = (f"{len(counted) - MOST_SHAPES} more",) if len(counted) > MOST_SHAPES else ()
    devices = " and ".join(sorted({device for _, device in inputs if device}))
    text = ", ".join((*counted[:MOST_SHAPES], *more)) or "unknown inputs"
    return f"{purpose.group(1) if purpose else 'graph'}: {text}{f' on {devices}' if devices else ''}"


def _line(graph: str, place: Path) -> str:
    source = source_of(read_plain(place.parent, place.name, most_bytes=MOST_BYTES + 1))
    return f"{graph.rpartition('/')[2][:12]} {describe_program(source) if source else 'graph: unknown inputs'}"


def _inputs(source: str) -> Iterator[tuple[str, str]]:
    """Yield type and shape of every tensor that goes in, and its device."""
    arguments = _ARGUMENTS.search(source)
    checked = dict(reversed(_CHECKED.findall(source)))
    examples = {name: (size, device, dtype) for name, size, device, dtype in _EXAMPLE.findall(source)}
    names = dict.fromkeys(arguments.group(1).split(", ")) if arguments else {}
    for name in names:
        size, device, dtype = examples.get(name, (None, "", ""))
        size = checked.get(name, size)
        if size is not None:
            yield f"{dtype} {_spelled(size)}".strip(), device


def _spelled(size: str) -> str:
    return "x".join(part.strip() for part in size.split(",") if part.strip()) or "scalar"
