"""stdout is data, stderr is talk: nothing else prints."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from aot.errors import AotError
from aot.schema.codec import encode


def emit(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Write `value` as one line of JSON, or its `lines` for people, to stdout."""
    if as_json:
        sys.stdout.write(encode(value).decode() + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def say(text: str) -> None:
    """Tell a person something on stderr."""
    print(text, file=sys.stderr, flush=True)


def say_error(error: AotError) -> None:
    """Message, then what to do, then the details that fit a terminal."""
    say(f"error: {error.message}")
    nested = error.details.get("error")
    details = nested.get("details", {}) if isinstance(nested, dict) else error.details
    for name, value in details.items():
        text = (
            value if isinstance(value, str) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        )
        if text.strip():
            say("\n".join(f"  {name}: {line}" if not number else f"    {line}" for number, line in _cut(text)))
    if error.hint:
        say(f"  try: {error.hint}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines; no rows, no lines."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]


def size(count: int) -> str:
    """Return a size in bytes as people read it."""
    value, units = float(count), ("B", "kB", "MB", "GB")
    for unit in units:
        if value < 1000 or unit == units[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def _cut(text: str) -> list[tuple[int, str]]:
    lines = text.strip().splitlines()
    return list(enumerate(lines[-20:]))
