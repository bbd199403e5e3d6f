"""What is wanted of a card and was never begun: neither measured nor listed as not reached."""

from collections.abc import Iterator, Mapping
from typing import Any

# Of these modes ours alone is wanted, for its peak memory; regions and jit-default are of mode default, whatever is
# rendered, and regions that are tuned of the mode that is.
OURS_ALONE = ("default", "max-autotune-no-cudagraphs")


def wanted_of(mode: str) -> Iterator[tuple[str, str, str]]:
    """Model, mode and row of all that `benchmarks.card` measures for a table of `mode`, in its order."""
    from benchmarks.card import CARD, DEEP, SECOND, STARTED, plan  # which imports the table
    from benchmarks.card_regions import REGIONS, TUNED

    rows = ["ours"] if mode in OURS_ALONE else [*STARTED, SECOND, TUNED]
    for model, row in plan(list({**CARD, **DEEP}), [*rows, "jit-default", REGIONS]):
        yield model, "default" if row in ("jit-default", REGIONS) else mode, row


def never_begun(report: Mapping[str, Any], mode: str) -> Iterator[str]:
    """One line a model, with its rows."""
    known = {(one["model"], one["mode"], one["row"]) for one in (*report["rows"], *report["not_reached"])}
    lacking: dict[str, list[str]] = {}
    for model, of_mode, row in wanted_of(mode):
        if (model, of_mode, row) not in known:
            lacking.setdefault(model, []).append(row)
    for model, rows in lacking.items():
        yield f"{model}: not run yet: {', '.join(rows)}"
