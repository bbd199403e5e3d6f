"""`tests/conftest.py`: tests for a card are skipped where there is none, and torch is not imported to find that out."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
# What stands in for torch says how many cards there are.
TORCH = """
import os
class cuda:
    device_count = staticmethod(lambda: int(os.environ["CARDS"]))
    is_available = staticmethod(lambda: cuda.device_count() > 0)
"""
TESTS = """
import sys
import pytest

def test_plain():
    assert "torch" not in sys.modules

@pytest.mark.gpu
def test_one_card():
    assert "torch" in sys.modules

@pytest.mark.gpu(cards=2)
def test_two_cards():
    assert "torch" in sys.modules
"""


def outcomes(tmp_path: Path, *options: str, cards: int = 0) -> tuple[dict[str, int], str]:
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "test_marked.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *options],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(tmp_path),
            "CARDS": str(cards),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # those that are installed take seconds to import
        },
        capture_output=True,
        text=True,
    )
    words = re.findall(r"(\d+) (passed|failed|skipped|deselected)", ran.stdout.splitlines()[-1])
    return {word: int(count) for count, word in words}, ran.stdout


def test_torch_is_not_imported_where_no_test_for_a_card_is_chosen(tmp_path: Path) -> None:
    assert outcomes(tmp_path, "-m", "not gpu")[0] == {"passed": 1, "deselected": 2}


@pytest.mark.parametrize(
    ("cards", "found", "reason"),
    [
        (0, {"skipped": 2, "deselected": 1}, "no NVIDIA GPU"),
        (1, {"passed": 1, "skipped": 1, "deselected": 1}, "2 NVIDIA GPUs wanted, 1 found"),
        (2, {"passed": 2, "deselected": 1}, ""),
    ],
)
def test_a_test_runs_where_its_cards_are(tmp_path: Path, cards: int, found: dict[str, int], reason: str) -> None:
    counted, said = outcomes(tmp_path, "-m", "gpu", cards=cards)
    assert (counted, reason in said) == (found, True)
