"""A small demo: everything that `make demo` does but the compiler's own routes, and that it leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.demo import HEADER
from tests.commands import ROOT, clean_environ, processes_naming
from tests.integration.compiled import shared_headers

pytestmark = pytest.mark.torch


def test_it_prints_its_table_and_leaves_no_process_and_no_file_outside_its_directory(tmp_path: Path) -> None:
    home, temporary, data = (tmp_path / name for name in ("home", "temporary", "demo"))
    home.mkdir()
    temporary.mkdir()
    data.mkdir(mode=0o700)
    # The headers of torch and the compiler alone, which outlive a run of the tests.
    shared_headers().mkdir(parents=True, exist_ok=True)
    (data / "toolchain").symlink_to(shared_headers())
    environ = {**clean_environ(home), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    del environ["AOT_CACHE_DIR"]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.demo", "--data", str(data), "--model", "small", "--routes", "eager; ours"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    table = [line.split("  ")[0] for line in ran.stdout.splitlines()]
    assert {"route", "eager", "ours"} <= set(table)
    assert ran.stdout.rstrip().endswith(": right")
    assert all(f"{column}: " in ran.stderr for column in HEADER[1:])  # each is explained
    assert ran.stderr.endswith("nothing of it is running any more\n")
    assert processes_naming(str(data)) == []
    assert (list(home.iterdir()), list(temporary.iterdir())) == ([], [])
    assert {path.name for path in tmp_path.iterdir()} == {"home", "temporary", "demo"}
