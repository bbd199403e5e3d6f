"""Long lines for a terminal of known width."""

import textwrap

LEAST = 40  # columns: a narrower terminal breaks the lines itself


def wrap(text: str, width: int | None, *, indent: str = "") -> list[str]:
    """Return `text` on as many lines as `width` needs, the later ones set in; None: on one. No word is broken."""
    if width is None or len(indent) + len(text) <= width:
        return [indent + text]
    return textwrap.wrap(
        text,
        max(width, LEAST),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
