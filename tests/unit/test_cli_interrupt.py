"""Ctrl-C pressed twice: the second one may come when the command is over already."""

import subprocess
import sys

PROGRAM = """
import atexit, os, signal
from aot import cli

cli.run = lambda arguments: 130
atexit.register(os.kill, os.getpid(), signal.SIGINT)
cli.main([])
"""


def test_an_interrupt_after_an_interrupted_command_has_ended_changes_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")
