"""Counts the processes and programs that a child starts, by ptrace, so that the shortest one is not missed.

The tracer is the supervisor's main thread. The child is seized before its first program runs, and every process and
thread below is seized by the kernel as it is made (PTRACE_O_TRACE*), also through bubblewrap's namespaces. A program
built to hide can pass CLONE_UNTRACED; polling still sees such a process when it lives on.
Source: ptrace(2), "Attaching and detaching" and "Group-stop" for PTRACE_SEIZE.
"""

import ctypes
import os
import signal

WAIT_ALL = 0x40000000  # __WALL: also children that do not report by SIGCHLD, and traced threads

PTRACE_CONT = 7
PTRACE_GETEVENTMSG = 0x4201
PTRACE_SEIZE = 0x4206
PTRACE_LISTEN = 0x4208

EVENT_EXEC = 4
EVENT_STOP = 128
# TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC; EXITKILL ends the tree when the supervisor dies.
OPTIONS = 0x2 | 0x4 | 0x8 | 0x10 | 0x100000

KEPT_PROGRAMS = 1000
GROUP_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Tracer:
    """Counts below one seized process. `own_execs` is how many programs run before counting begins.

    That is 1 for a plain child and 2 under bubblewrap, whose forks and whose own program are no act of the child.
    """

    counted_by = "ptrace"
    why_not = ""

    def __init__(self, root: int, own_execs: int) -> None:
        self._known = {root}
        self._own_execs = own_execs
        self._ptrace = _load_ptrace()
        self.target: int | None = None
        self.forks: int | None = 0
        self.execs = 0
        self.programs: list[tuple[str, list[str]]] = []
        if self._ptrace(PTRACE_SEIZE, root, 0, OPTIONS) == -1:
            code = ctypes.get_errno()
            raise OSError(code, f"ptrace: {os.strerror(code)}")

    def on_stop(self, pid: int, status: int) -> None:
        """Take note of one stop that wait reported, and let the process go on."""
        number, event = (status >> 8) & 0xFF, status >> 16
        request, passed_on = PTRACE_CONT, 0
        if event == EVENT_STOP:
            self._note_new(pid)
            if number in GROUP_STOPS:
                request = PTRACE_LISTEN  # stopped for good: it goes on at SIGCONT
        elif event == EVENT_EXEC:
            self._note_exec(pid)
        elif event == 0:
            passed_on = number
        # Fails only when the process was killed meanwhile; wait then reports its end.
        self._ptrace(request, pid, 0, passed_on)

    def on_end(self, pid: int) -> None:
        self._known.discard(pid)

    def _note_new(self, pid: int) -> None:
        # Every new process and thread begins with this stop; SIGCONT repeats it later. Counting here and not at the
        # parent's fork event needs no order between the two, which wait does not promise.
        if pid in self._known:
            return
        self._known.add(pid)
        if self.target is not None and not _is_thread(pid):
            self.forks = (self.forks or 0) + 1

    def _note_exec(self, pid: int) -> None:
        former = ctypes.c_ulong()
        self._ptrace(PTRACE_GETEVENTMSG, pid, 0, ctypes.addressof(former))
        if former.value != pid:
            self._known.discard(former.value)  # a thread ran the program and took over its leader's number
        if self._own_execs:
            self._own_execs -= 1
            if not self._own_execs:
                self.target = pid
            return
        self.execs += 1
        if len(self.programs) < KEPT_PROGRAMS:
            self.programs.append(read_program(pid))


class Poller:
    """Stands in where ptrace is forbidden: notes the programs of the processes that polling happens to see."""

    counted_by = "polling"
    forks: int | None = None
    target: int | None = None

    def __init__(self, why_not: str, own_processes: int) -> None:
        self.why_not = why_not
        self._own_processes = own_processes
        self._own: set[int] = set()
        self._seen: dict[int, tuple[str, list[str]]] = {}

    def on_poll(self, pids: list[int]) -> None:
        """Take note of the tree, parents before children, as `find_descendants` gives it."""
        for pid in pids:
            if len(self._own) < self._own_processes:
                self._own.add(pid)
            elif pid not in self._own:
                # Read again each time: right after its fork a process still shows its parent's program.
                path, argv = read_program(pid)
                if argv or pid not in self._seen:
                    self._seen[pid] = path, argv

    @property
    def execs(self) -> int:
        return len(self._seen)

    @property
    def programs(self) -> list[tuple[str, list[str]]]:
        return list(self._seen.values())[:KEPT_PROGRAMS]


def read_program(pid: int) -> tuple[str, list[str]]:
    """The file that `pid` runs, as it is called inside the sandbox, and its first arguments."""
    try:
        path = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        path = ""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(2048).split(b"\0")[:8]
    except OSError:
        words = []
    argv = [word.decode(errors="replace")[:200] for word in words if word]
    return path or (argv[0] if argv else "?"), argv


def _is_thread(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Tgid:"):
                    return int(line.split()[1]) != pid
    except OSError:
        pass
    return False  # killed at birth: counted, since a miss would be the worse error


def _load_ptrace() -> "ctypes._CFuncPtr":
    # The handle holds the GIL, which is right: no request here waits.
    ptrace = ctypes.PyDLL(None, use_errno=True).ptrace
    ptrace.restype = ctypes.c_long
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong]
    return ptrace
