"""Torch's entries read and rewritten as opcodes: a pickle is a program, and nothing of it is run here.

An entry of the same graph has other bytes each time it is compiled: it says how long that took, in which directory,
where in memory a function lay, and from which lines of which files the graph came. Most of it is text that torch keeps
for its trace log, and comments of the generated program. Without these, equal graphs have equal bytes wherever and
whenever they were compiled, and an entry is a third as large.

Sources: torch/_inductor/output_code.py, CompiledFxGraph; torch/_functorch/_aot_autograd/aot_autograd_result.py;
codecache.py, which compares no entry with the digest in its name; PEP 3154: frames are optional.
"""

import base64
import hashlib
import pickle
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# What torch does with each when an entry is found: it writes it into the trace log, if there is one.
_TEXTS = frozenset(
    {
        "runnable_graph_str",
        "inductor_post_grad_graph_str",
        "aot_joint_graph_str",
        "aot_forward_graph_str",
        "aot_backward_graph_str",
    }
)
# By these torch puts off the timeouts of collectives: a process that found its graph waits for one that compiles.
_TIMES = frozenset({"_time_taken_ns", "forward_time_taken_ns", "backward_time_taken_ns"})
_LEAST_NS = 16_000_000_000
_TIME_BITS = 63  # a longer number is no time, and rounding it would take its length in steps
# One line for each part of a graph's key: "[<digest>] fx_kwargs[...]: <function ... at 0x7f3b41>".
_KEY_PART = re.compile(r"\[[a-z2-7]{51,52}\] ")
# What a traceback through generated code would name, by the absolute paths of the tree that it was captured in; torch
# takes an empty one for none (PyCodeCache.stack_frames_for_code).
_STACK = '  File "'
_SOURCE = "source_code"
# Above each kernel and call of a generated program: where the kernel's own file was put, by its absolute path, and the
# nodes that it was made of. Never within the text of a kernel (torch/_inductor/codegen/wrapper.py, define_kernel;
# utils.py, get_kernel_metadata).
_COMMENT = re.compile(
    r"^[ \t]*# (?:kernel path: |Original path: |Source node to ATen node mapping:|Graph fragment:|"
    r"(?:Topologically Sorted|Unsorted) Source Nodes: \[).*(?:\n#   .*)*$",
    re.MULTILINE,
)
# What torch writes of a graph is a few megabytes. A command may leave anything, and each byte of a pickle can ask for
# eight of memory: what is longer than this is left alone, and of such a file no more than this and one byte is read.
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class _Step:
    """One opcode: its bytes, its argument, and the field's name where it is the value of one."""

    start: int
    end: int
    name: str
    argument: object
    field: str | None


def stripped(content: bytes) -> bytes:
    """Return the entry without what differs from one compilation of its graph to the next; other bytes as they are.

    Idempotent. A time becomes the next of 16, 64, 256 ... seconds: less would end a collective too early.
    """
    if len(content) > MOST_BYTES:
        return content
    kept, reached = bytearray(), 0
    try:
        for step in _steps(content):
            new = _replacement(step)
            if new is not None:
                kept += content[reached : step.start] + new
                reached = step.end
    except (ValueError, UnicodeDecodeError, IndexError):  # no pickle, or one that was cut off
        return content
    return bytes(kept + content[reached:])


def source_of(content: bytes) -> str | None:
    """Return the generated program that an entry of a compiled graph has in it; None for every other content.

    A text that UTF-8 does not have is no program: torch could not have written it to a file.
    """
    if len(content) > MOST_BYTES:
        return None
    try:
        for step in _steps(content):
            if step.field == _SOURCE and isinstance(step.argument, str):
                step.argument.encode()
                return step.argument
    except (ValueError, UnicodeDecodeError, IndexError):
        pass
    return None


def name_of(content: bytes) -> str:
    """Return what torch names a file of that content (torch/_inductor/codecache.py, sha256_hash)."""
    return base64.b32encode(hashlib.sha256(content).digest())[:51].decode().lower()


def _steps(content: bytes) -> Iterator[_Step]:
    """Yield every opcode with the field that it is the value of: the text before it, or one repeated by number."""
    import pickletools  # what only restores has no use for it

    memo: list[object] = []
    before: _Step | None = None
    field: str | None = None
    for opcode, argument, start in pickletools.genops(content):
        assert start is not None
        if before is not None:
            yield _Step(before.start, start, before.name, before.argument, before.field)
        if opcode.name == "MEMOIZE":
            memo.append(before.argument if before is not None else None)
            before = _Step(start, start, opcode.name, None, None)
            continue
        value = memo[argument] if opcode.name in ("BINGET", "LONG_BINGET") else argument
        before = _Step(start, start, opcode.name, value, field)
        field = value if isinstance(value, str) else None
    if before is not None:
        yield _Step(before.start, len(content), before.name, before.argument, before.field)


def _lines_alone(comment: re.Match[str]) -> str:
    """As many lines as before: torch has a map of their numbers."""
    return "\n" * comment.group().count("\n")


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded


def _replacement(step: _Step) -> bytes | None:
    if step.name == "FRAME":  # its length would be another
        return b""
    if step.field in _TIMES and isinstance(step.argument, int) and step.argument > 1:
        if step.argument.bit_length() > _TIME_BITS:
            return None
        rounded = _LEAST_NS
        while rounded < step.argument:
            rounded *= 4
        encoded = pickle.encode_long(rounded)
        return pickle.LONG1 + bytes([len(encoded)]) + encoded
    if not step.name.endswith("UNICODE") or not isinstance(step.argument, str):
        return None
    if step.field == _SOURCE:
        program = _COMMENT.sub(_lines_alone, step.argument)
        return _text(program) if program != step.argument else None
    if step.field in _TEXTS or step.argument.startswith(_STACK) or _KEY_PART.match(step.argument):
        return pickle.SHORT_BINUNICODE + b"\0"
    return None
