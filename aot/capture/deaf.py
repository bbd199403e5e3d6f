"""Threads beside a command or a program: signals are not theirs."""

import signal
import threading


def start_deaf(thread: threading.Thread) -> None:
    """Start `thread` with every signal blocked.

    A signal of the process goes to whichever thread does not block it. One that nobody but such a thread takes would
    end the process in place of being passed on to the command, or come as an exception of the user's program.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()  # it inherits the mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
