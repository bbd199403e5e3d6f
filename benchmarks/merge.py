"""Makes one file of results of several: two cards of one host that were measured at once, or calls on several hosts.

`python -m benchmarks.merge FILE FILE ... [--into FILE]`. Without `--into` it is `<card>-<torch>.json` in
`benchmarks/results`, and what lies there counts as one more, given first. Files of another card or torch are refused.

Of two rows of the same model, mode and name the newest stays; a row that was cut off before its latencies replaces no
whole one. It keeps the older row's latencies at those batches that it has none of itself, each beside the eager ones
that were taken in turn with it. Rows of a host that is not the newest's name their own.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.card_host import label_of
from benchmarks.cold_start import RESULTS

Row = dict[str, Any]
Report = dict[str, Any]
Key = tuple[str, str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    reports = [json.loads(file.read_text()) for file in options.files]
    labels = {label_of(report["host"]) for report in reports}
    if len(labels) > 1:
        parser.error(f"wanted results of one card and one torch, found {', '.join(sorted(labels))}")
    into = options.into or RESULTS / f"{labels.pop()}.json"
    if options.into is None and into.is_file():
        reports.insert(0, json.loads(into.read_text()))
    merged = merge(reports)
    part = into.with_suffix(".part")
    part.write_text(json.dumps(merged, indent=1) + "\n")
    part.replace(into)
    print(f"{len(merged['rows'])} rows in {into}; not reached: {len(merged['not_reached'])}", file=sys.stderr)
    return 0


def merge(reports: Sequence[Report]) -> Report:
    """Return one report of all. What bears no time is older than what does, and the earlier in `reports` the older.

    What is no row (`tests`) is the newest report's that has it.
    """
    _, newest = max(enumerate(reports), key=lambda one: (_newest_of(one[1]), one[0]))
    named = [on_host(report, newest["host"]) for report in reports]
    rows: dict[Key, Row] = {}
    for row in _by_time(row for report in named for row in report["rows"]):
        rows[key_of(row)] = _joined(row, rows[key_of(row)]) if key_of(row) in rows else row
    missing: dict[Key, Row] = {}
    for report in named:
        for one in report["not_reached"]:
            known = missing.get(key_of(one))
            if _still_lacks(one, rows.get(key_of(one)), report) and (known is None or _time_of(one) >= _time_of(known)):
                missing[key_of(one)] = one
    others = {name: value for report in sorted(named, key=_newest_of) for name, value in report.items()}
    return others | {"rows": list(rows.values()), "not_reached": list(missing.values()), "host": newest["host"]}


def key_of(row: Row) -> Key:
    """What a row replaces another one by: model, mode and name."""
    return row["model"], row["mode"], row["row"]


def on_host(report: Report, host: dict[str, Any]) -> Report:
    """Return the report as of `host`: rows of another name the one that they were measured on."""
    before = report.get("host", host)

    def named(row: Row) -> Row:
        own = row.get("host", before)
        return {name: value for name, value in row.items() if name != "host"} | ({} if own == host else {"host": own})

    return report | {name: [named(row) for row in report[name]] for name in ("rows", "not_reached")} | {"host": host}


def _joined(newer: Row, older: Row) -> Row:
    if "steady" in older and "steady" not in newer:
        return older
    steady, before = newer.get("steady", {}), older.get("steady", {})
    if not set(steady) == set(before) == {"eager", "this"}:
        return newer  # regions are compared at the batches that they were built for together
    known = {one["batch"] for one in steady["this"]["batches"]}
    lacking = {one["batch"] for one in before["this"]["batches"]} - known
    kept = {name: [one for one in of["batches"] if one["batch"] in lacking] for name, of in before.items()}
    if not lacking or len(kept["eager"]) != len(kept["this"]):
        return newer
    joined = {
        name: of | {"batches": sorted((*of["batches"], *kept[name]), key=lambda one: one["batch"])}
        for name, of in steady.items()
    }
    return newer | {"steady": joined}


def _still_lacks(one: Row, row: Row | None, report: Report) -> bool:
    """Whether what was not reached was so after the row was measured; a row of its own report is the older, always."""
    if row is None or _time_of(one) > _time_of(row):
        return True
    return _time_of(one) == _time_of(row) and key_of(one) in map(key_of, report["rows"])


def _by_time(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=_time_of)


def _newest_of(report: Report) -> str:
    return max(map(_time_of, (*report["rows"], *report["not_reached"])), default="")


def _time_of(row: Row) -> str:
    return str(row.get("taken", ""))


if __name__ == "__main__":
    sys.exit(main())
