"""Run a user's command as if nothing stood before it: its terminal, its signals, its exit code."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aot.errors import InvalidInput

# Whoever stops the service signals us; the command must hear it.
_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
)
_BY_KERNEL = 0x80  # SI_KERNEL: the terminal sent it to its whole foreground group, the command included


@dataclass(frozen=True)
class Ended:
    """`code` as a shell reports it: 128 and the signal's number for a command that a signal ended."""

    code: int
    seconds: float


def run_command(command: Sequence[str], *, environ: Mapping[str, str], stdout: int = 1) -> Ended:
    """Run `command` with `environ` and this process's files and terminal; return how it ended.

    `stdout` is the descriptor that its output goes to.

    Signals that reach this process are passed on. To be called from the main thread. Raises InvalidInput for a program
    that cannot be started.
    """
    waited = {*_FORWARDED, signal.SIGCHLD}
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    started = time.monotonic()
    try:
        pid = _start(command, environ, before, stdout)
        status = _wait(pid, waited)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(status)
    return Ended(128 - code if code < 0 else code, time.monotonic() - started)


def _start(command: Sequence[str], environ: Mapping[str, str], mask: set[signal.Signals], stdout: int) -> int:
    try:
        return os.posix_spawnp(
            command[0],
            [*command],
            dict(environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, stdout, 1)],
            setsigmask=mask,
            # What Python ignores for itself.
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
    except OSError as error:
        raise InvalidInput(
            f"{command[0]} cannot be run: {error.strerror}", hint="name a program on PATH behind --"
        ) from error


def _wait(pid: int, waited: set[signal.Signals]) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        # Not for ever: a signal that came between the look and the wait would be slept through.
        found = signal.sigtimedwait(waited, 1.0)
        if found is not None and found.si_signo != signal.SIGCHLD and found.si_code != _BY_KERNEL:
            os.kill(pid, found.si_signo)
