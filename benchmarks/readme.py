"""Put the tables of cards into README.md, from the files of results.

`python -m benchmarks.readme` renews what stands between `<!-- table FILE MODE -->` and `<!-- end of table -->`.
"""

import json
import re
import sys
from pathlib import Path

from benchmarks.cold_start import RESULTS
from benchmarks.starts import ROOT
from benchmarks.table import render

README = ROOT / "README.md"
_TABLE = re.compile(r"(<!-- table (\S+) (\S+) -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def main() -> int:
    README.write_text(renewed(README.read_text(), RESULTS))
    return 0


def renewed(text: str, results: Path) -> str:
    """Return the text with every marked table as `benchmarks.table` renders it from the file in `results`."""

    def table(found: re.Match[str]) -> str:
        start, file, mode = found.groups()
        report = json.loads((results / file).read_text())
        lines = "\n".join(render(report, mode)).strip()
        return f"{start}\n{lines}\n\n"

    return _TABLE.sub(table, text)


if __name__ == "__main__":
    sys.exit(main())
