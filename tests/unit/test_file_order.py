"""`tests/conftest.py`: files go to cores in the order of their collection, however many tests each has; and no later
garbage collection walks what was collected.
"""

import gc
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
    # By default it would delete what earlier runs have left, gigabytes at times.
    own = f"--basetemp={tmp_path / 'inner'}"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "1", "--dist", "loadfile", "-p", "no:cacheprovider", own],
        cwd=tmp_path,
        # Of the plugins that are installed, seconds to import in each of two processes, the one that deals files out.
        env={"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"},
        capture_output=True,
        text=True,
    )
    assert re.findall(r"PASSED (test_\w)\.py", ran.stdout) == ["test_a", "test_b", "test_b", "test_b"], ran.stdout


def test_tests_run_with_the_collector_on_and_what_was_collected_is_out_of_its_sight() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(gc.get_objects())
