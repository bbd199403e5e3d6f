"""Tables: entries that several runs write under one name, each with its own rows. Joined, none of them loses a row.

Every other entry is named by what it holds, so that of two under one path either will do. These are not:

    vllm/**/vllm_compile_cache.py                 {(range, graph, compiler): handle}, literals of Python
    vllm/flashinfer_autotune_cache/**/*.json      {operation and shape: [runner, tactic]}, and who has measured
    <caches of torch>/cache/<hash of the system>  {"system": ..., "cache": {operation: {inputs: {precision: {choice:
                                                  milliseconds}}}}}

The rule: all rows of both, and of two values for one key the first table's, since the files that it names are kept as
they are as well. The milliseconds of one choice are compared with each other, so they are one value, of one machine's
measurement: the other table's only where it has measured all of these and more. What cannot be read as such a table,
or was measured on another system, is not joined.

Sources: vllm/compilation/backends.py, CompilerManager; FlashInfer's documentation of autotuning, cache file format;
torch/_inductor/codecache.py, PersistentCache. What Dynamo learned of sizes (`inductor/dynamo`) is a pickle, and is not
read here.
"""

import json
import pprint
from enum import StrEnum
from typing import Any

from aot.capture.entries import within_caches
from aot.capture.literals import read_literal

# A server of 80 layers writes some 100 KB. A command may leave anything: values ask for far more than their bytes, so
# their number is bounded as well.
MOST_BYTES = 4 << 20
MOST_SEPARATORS = 200_000
_MEASURED_ON = ("_metadata",)
_LAST_WRITER = "_last_updated_by"


class Form(StrEnum):
    """How a table is written."""

    LITERALS = "literals"
    TACTICS = "tactics"
    TIMES = "times"


def form_of(path: str) -> Form | None:
    """Return the form of the table that an entry of this path is; None for every other entry."""
    root, *_, name = path.split("/")
    if root == "vllm" and name == "vllm_compile_cache.py":
        return Form.LITERALS
    if path.startswith("vllm/flashinfer_autotune_cache/") and name.endswith(".json"):
        return Form.TACTICS
    match within_caches(path)[1]:
        case ["inductor", "cache", _]:
            return Form.TIMES
    return None


def joined(path: str, first: bytes, second: bytes) -> bytes | None:
    """Return one table with the rows of both; None where they cannot be joined. One that has all stays as it is."""
    form = form_of(path)
    if form is None:
        return None
    one, other = _read(first, form), _read(second, form)
    if one is None or other is None:
        return None
    match form:
        case Form.LITERALS:
            both = {**other, **one}
        case Form.TACTICS:
            both = _joined_tactics(one, other)
        case Form.TIMES:
            both = _joined_times(one, other) if one.get("system") == other.get("system") else None
    if both is None:
        return None
    for table, content in ((one, first), (other, second)):
        if table == both:
            return content
    return _written(both, form)


def _read(content: bytes, form: Form) -> dict[Any, Any] | None:
    if len(content) > MOST_BYTES or sum(content.count(one) for one in (b",", b":")) > MOST_SEPARATORS:
        return None
    try:
        text = content.decode()
        table = read_literal(text) if form is Form.LITERALS else json.loads(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return table if isinstance(table, dict) else None


def _written(table: dict[Any, Any], form: Form) -> bytes:
    if form is Form.LITERALS:
        return pprint.PrettyPrinter(indent=4).pformat(table).encode()
    return json.dumps(table, indent=4 if form is Form.TIMES else 2).encode()


def _joined_tactics(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    if any(one.get(name) != other.get(name) for name in _MEASURED_ON):
        return None
    added = {key: value for key, value in other.items() if key != _LAST_WRITER}
    return {**added, **one}


def _joined_times(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Join level by level; a level of plain values alone is one value."""
    if not any(isinstance(value, dict) for table in (one, other) for value in table.values()):
        return other if one.keys() < other.keys() else one
    both = {**other, **one}
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            both[key] = _joined_times(one[key], other[key])
    return both
