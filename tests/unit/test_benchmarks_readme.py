"""README's tables of cards say what the files of results say."""

import json
from pathlib import Path

from benchmarks.cold_start import RESULTS
from benchmarks.readme import README, renewed


def test_the_readme_has_the_tables_of_the_committed_results() -> None:
    text = README.read_text()
    assert "<!-- table h200-torch-2.11.0.json max-autotune -->" in text
    assert renewed(text, RESULTS) == text, "run `python -m benchmarks.readme`"


def test_what_stands_between_the_marks_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    row = {"model": "decoder", "mode": "default", "row": "jit", "title": "A decoder", "seconds": [3.0]}
    report = {"rows": [row], "not_reached": [], "host": {"card": "A card"}}
    (tmp_path / "card.json").write_text(json.dumps(report))
    text = "before\n<!-- table card.json default -->\nold\n<!-- end of table -->\nafter\n"
    found = renewed(text, tmp_path)
    assert found.startswith("before\n<!-- table card.json default -->\n\nMode `default`; A card.\n")
    assert "| A decoder |" in found and "old" not in found
    assert found.endswith("\n\n<!-- end of table -->\nafter\n")
    assert renewed(found, tmp_path) == found
