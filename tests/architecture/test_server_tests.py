"""What uses a registry is among the tests that `make test-servers` runs: also what has it from another test file."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
# Files that take something from a test on a registry, and say themselves what theirs stands on.
ALONE = {
    "integration/test_deploy_together.py": "processes on PostgreSQL and a broker of its own",
    "integration/test_registry_check.py": "`check` against whatever database, broker and store each test names",
}


def pattern() -> re.Pattern[str]:
    """By which the Makefile finds them."""
    found = re.search(r"grep -rlE '([^']+)' tests --include='test_\*\.py'", (ROOT / "Makefile").read_text())
    assert found is not None
    return re.compile(found[1])


def imported_by(text: str) -> set[Path]:
    """The files of `tests` that it imports, or of which it imports something."""
    modules: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            modules |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {ROOT / f"{module.replace('.', '/')}.py" for module in modules}


def test_every_test_that_has_a_registry_runs_on_servers_too() -> None:
    """One has it that imports a test on a registry, or has fixtures of a `conftest.py` with one beside or above it."""
    wanted = pattern()
    texts = {path: path.read_text() for path in TESTS.rglob("test_*.py")}
    chosen = {path for path, text in texts.items() if wanted.search(text)}
    fixtures = [path.parent for path in TESTS.rglob("conftest.py") if wanted.search(path.read_text())]
    missed = {
        path.relative_to(TESTS).as_posix()
        for path in texts.keys() - chosen
        if imported_by(texts[path]) & chosen or any(path.is_relative_to(place) for place in fixtures)
    }
    assert len(chosen) > 60 and missed - ALONE.keys() == set(), "the Makefile's pattern does not find these"
    assert missed == ALONE.keys(), "no reason is needed for these any more"
