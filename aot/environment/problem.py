"""One problem of a host, for `aot doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`kind` is stable, for scripts; `text` says what was found, `hint` what to do."""

    kind: str
    text: str
    hint: str
