"""`tests/conftest.py`: files go to cores in the order of their collection, however many tests each has."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"


def test_a_file_of_many_tests_does_not_come_before_one_that_was_collected_earlier(tmp_path: Path) -> None:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_a.py").write_text("def test_build(): pass\n")
    (tmp_path / "test_b.py").write_text("".join(f"def test_{number}(): pass\n" for number in range(3)))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "1", "--dist", "loadfile", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert re.findall(r"PASSED (test_\w)\.py", ran.stdout) == ["test_a", "test_b", "test_b", "test_b"], ran.stdout
