"""`aot run` at a terminal: the command has it as its own, its size, its input, and what is typed to interrupt it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

SECONDS = 60.0
# Makes the terminal the controlling one of a session of its own, as a login does, and becomes `aot run`.
LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
PROGRAM = r"""
import os, signal, sys, time
interrupts = []
signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
# Not by print: the signal may come while the main thread is at its own, which then raises.
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b"now %d %d\n" % tuple(os.get_terminal_size())))
terminals = [os.isatty(one) for one in range(3)]
print("terminal", *terminals, *os.get_terminal_size(), os.tcgetpgrp(0) == os.getpgrp(), flush=True)
print("read", input(), flush=True)
while not interrupts:
    time.sleep(0.02)
time.sleep(0.5)  # a second one, passed on as well, would come by now
print("interrupted", len(interrupts), flush=True)
sys.exit(7)
"""


def test_the_command_has_the_terminal_and_an_interrupt_reaches_it_once(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    resize(ours, 33, 120)
    words = [sys.executable, "-m", "aot.cli", "run", "mini:v1", "--", sys.executable, "-S", "-c", PROGRAM]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AOT_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", LOGIN, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environ,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    os.close(theirs)
    try:
        said = read_until(ours, "terminal .*\n")
        assert "aot: nothing restored:" in said
        assert "terminal True True True 120 33 True" in said
        os.write(ours, b"typed\n")
        read_until(ours, "read typed")
        resize(ours, 40, 100)
        read_until(ours, "now 100 40")
        os.write(ours, b"\x03")
        assert "interrupted 1" in read_until(ours, "interrupted .*\n")
        assert process.wait(SECONDS) == 7
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(terminal: int, pattern: str) -> str:
    """What the terminal shows up to `pattern`."""
    shown, ending = "", time.monotonic() + SECONDS
    while not re.search(pattern, shown):
        ready, _, _ = select.select([terminal], [], [], max(0.0, ending - time.monotonic()))
        assert ready, f"waited for {pattern!r}, the terminal shows {shown!r}"
        shown += os.read(terminal, 4096).decode().replace("\r\n", "\n")
    return shown
