"""stdout is data, stderr is talk: nothing else prints."""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from aot.errors import AotError
from aot.schema.codec import encode

DETAIL_LINES = 20


def emit(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Write `value` as one line of JSON, or its `lines` for people, to stdout.

    A reader that has gone, as in `aot ls | head`, ends the writing and not the work.
    """
    text = encode(value).decode() + "\n" if as_json else "".join(f"{_printable(line)}\n" for line in lines)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)


def say(text: str) -> None:
    """Tell a person something on stderr; that nobody listens is no error."""
    try:
        print("\n".join(map(_printable, text.split("\n"))), file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)


def say_error(error: AotError) -> None:
    """Message, then what to do, then the details that fit a terminal."""
    say(f"error: {error.message}")
    if error.hint:
        say(f"  try: {error.hint}")
    nested = error.details.get("error")
    details = nested.get("details", {}) if isinstance(nested, dict) else error.details
    for name, value in details.items():
        if not _is_said(value, error.message):
            for line in _detail_lines(name, value):
                say(line)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines; no rows, no lines."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]


def terminal_columns() -> int | None:
    """Return how wide the reader's terminal is, or COLUMNS where it is set; None where stdout is neither."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns or None


def weights_word(*, frozen: bool) -> str:
    """What every listing says of a bundle or build: which weights it serves."""
    return "frozen" if frozen else "any weights"


def size(count: int) -> str:
    """Return a size in bytes as people read it."""
    value, units = float(count), ("B", "kB", "MB", "GB")
    for unit in units:
        if value < 1000 or unit == units[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def _is_said(value: Any, message: str) -> bool:
    """Whether a detail is for programs only, as flags are, or all of it stands in the message."""
    if isinstance(value, bool):
        return True
    if value == "$":  # the place of a fault: all of the document
        return True
    entries = value if isinstance(value, list | tuple) else (value,)
    return all(isinstance(entry, str) and re.search(rf"(?<!\w){re.escape(entry)}(?!\w)", message) for entry in entries)


def _detail_lines(name: str, value: Any) -> list[str]:
    """The end of a long text, every entry of a list, and nothing of what is empty."""
    if isinstance(value, list | tuple):
        entries = [str(entry) for entry in value]
    elif isinstance(value, dict):
        entries = [f"{key}: {entry}" for key, entry in value.items()]
    else:
        entries = str("" if value is None else value).strip().splitlines()
    if not entries:
        return []
    if len(entries) == 1:
        return [f"  {name}: {entries[0]}"]
    left_out = len(entries) - DETAIL_LINES
    more = [f"    ({left_out} more)"] if left_out > 0 else []
    return [f"  {name}:", *more, *(f"    {entry}" for entry in entries[-DETAIL_LINES:])]


def _printable(line: str) -> str:
    # Other people's words, a build's log for example, must not steer the terminal.
    if line.isprintable():
        return line
    return "".join(letter if letter.isprintable() or letter == "\t" else "\N{REPLACEMENT CHARACTER}" for letter in line)


def _silence(stream: TextIO) -> None:
    """Let what is still buffered go nowhere, so that the interpreter does not stumble over it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
