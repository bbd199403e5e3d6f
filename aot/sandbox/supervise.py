"""The process between `run_child` and the child: starts it, watches it, ends its whole tree, reports once.

It is a process of its own so that it can be a child subreaper and a ptrace tracer (both would disturb a long-lived
worker), and so that limits hold while the worker is busy. It reads one JSON line, the spec, from standard input;
any further line, or the end of input, stops the child. It writes one JSON document, the report, to standard output.
Runs without site-packages: standard library only. See `aot.sandbox.child` for the other end.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from typing import Any

from aot.sandbox.output import Budget, Stream
from aot.sandbox.spawn import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    Spawned,
    prctl,
    spawn,
)
from aot.sandbox.status import describe_end, read_bubblewrap_init, read_bubblewrap_status
from aot.sandbox.trace import WAIT_ALL, Poller, Tracer
from aot.sandbox.tree import (
    Entry,
    find_descendants,
    is_group_shared,
    kill_descendants,
    read_entry,
    read_kernel_oom_kills,
    send,
)
from aot.sandbox.usage import MemoryMeter, read_disk_bytes

POLL_SECONDS = 0.1
# The share of a core that watching may take: a sample that costs 5 ms is taken every 100 ms at most.
POLL_COST = 20
DISK_SECONDS = 1.0
KILL_SECONDS = 10.0
DRAIN_SECONDS = 5.0


class Supervision:
    """One child from its start to its report."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._limits = spec["limits"]
        self._me = os.getpid()
        # Re-entrant: the handler of SIGTERM may interrupt the main thread while it holds the lock.
        self._lock = threading.RLock()
        self._verdict: str | None = None
        self._ending_since: float | None = None
        self._reported = False
        # Bubblewrap's own two processes and program are no act of the child.
        self._own_processes, self._own_programs = (2, 2) if spec["bubblewrap"] else (0, 1)
        self._status_fd: int | None = None
        self._root: int | None = None
        self._root_status: int | None = None
        self._status: int | None = None
        self._ended: float | None = None
        self._cpu_seconds = 0.0
        self._memory = MemoryMeter(self._limits["memory_bytes"], self._limits["room_bytes"])
        self._counting: Tracer | Poller | None = None
        self._oom_kills = read_kernel_oom_kills(spec["oom_kills"])
        self._is_shared = is_group_shared(spec["oom_kills"], os.getppid())

    def run(self) -> None:
        """Start the child and return once nothing of its tree is left and the report is written."""
        spec = self._spec
        passed = [] if spec["events_fd"] is None else [spec["events_fd"]]
        if spec["bubblewrap"]:
            words = "".join(f"{word}\0" for word in spec["bubblewrap"]["arguments"])
            arguments, self._status_fd = _memory_file("arguments", words), _memory_file("status", "")
            passed += [arguments, self._status_fd]
            told = ["--args", str(arguments), "--json-status-fd", str(self._status_fd), "--"]
            # Bubblewrap itself runs outside its sandbox: the child's variables must not reach its loader.
            spec = {"argv": [spec["bubblewrap"]["program"], *told, *spec["argv"]], "env": {}, "cwd": None}
        self._start(spec, tuple(passed))
        self._reap()
        self._report()

    def stop(self, kind: str) -> None:
        """End the tree for the reason `kind`; the first reason counts."""
        with self._lock:
            self._verdict = self._verdict or kind
            self._ending_since = self._ending_since or time.monotonic()
        self._kill()

    def _kill(self) -> None:
        # At one stroke first: a tree of thousands would starve us while we walk it.
        if init := self._find_init():
            send(init, signal.SIGKILL)
        elif self._root and self._root_status is None:
            send(-self._root, signal.SIGKILL)  # the group that the child began in
        kill_descendants(self._me)

    def _find_init(self) -> int | None:
        """Bubblewrap's init, as long as it is that process."""
        init = self._status_fd and read_bubblewrap_init(self._status_fd)
        entry = init and read_entry(init)
        return init if entry and entry.parent == self._root else None

    def _start(self, program: dict[str, Any], passed: tuple[int, ...]) -> None:
        budget = Budget(self._limits["output_bytes"], lambda: self.stop("too_much_output"))
        pipes = [os.pipe(), os.pipe()]
        self._streams = [
            Stream(out, path=self._spec[name], tail_bytes=self._spec["tail_bytes"], budget=budget)
            for name, (out, _) in zip(("stdout", "stderr"), pipes, strict=True)
        ]
        child = spawn(program, stdout=pipes[0][1], stderr=pipes[1][1], passed=passed)
        self._root = child.pid
        if self._spec["count"]:
            self._counting = self._count(child)
        # A child without isolation has our user: it shall neither trace us nor write our report. Only now, because
        # the fork would inherit it and could not be seized.
        prctl(PR_SET_DUMPABLE, 0)
        for fd in (pipes[0][1], pipes[1][1], *passed):
            if fd != self._status_fd:
                os.close(fd)
        self._disk_before = read_disk_bytes(self._spec["writable"]) if self._limits["disk_bytes"] else 0
        for stream in self._streams:
            stream.start()
        self._started = time.monotonic()
        for watch in (self._watch_control, self._watch_tree, self._watch_disk):
            threading.Thread(target=watch, daemon=True).start()
        self._release(child)

    def _count(self, child: Spawned) -> Tracer | Poller:
        try:
            return Tracer(child.pid, self._own_programs)
        except OSError as error:
            return Poller(str(error), self._own_processes + 1)

    def _release(self, child: Spawned) -> None:
        # A traced child stops at its first program and waits for us: its answer is read beside the loop.
        def read() -> None:
            self._failure = child.release()

        self._failure: str | None = None
        self._releasing = threading.Thread(target=read, daemon=True)
        self._releasing.start()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, WAIT_ALL)
            except ChildProcessError:
                return  # as the subreaper we get every orphan: no child means that the tree is gone
            if os.WIFSTOPPED(status):
                if self._ending_since:
                    send(pid, signal.SIGKILL)
                if isinstance(self._counting, Tracer):
                    self._counting.on_stop(pid, status)
                continue
            if isinstance(self._counting, Tracer):
                self._counting.on_end(pid)
                if pid == self._counting.target:
                    self._status, self._ended = status, time.monotonic()
            if pid == self._root:
                self._on_root_end(status)

    def _on_root_end(self, status: int) -> None:
        self._root_status = status
        self._ended = self._ended or time.monotonic()
        with self._lock:
            self._ending_since = self._ending_since or time.monotonic()
        self._kill()

    def _watch_control(self) -> None:
        self.stop(sys.stdin.buffer.readline().decode().strip() or "stopped")

    def _watch_tree(self) -> None:
        pause = POLL_SECONDS
        while True:
            time.sleep(pause)
            began = time.monotonic()
            entries = find_descendants(self._me)
            if self._ending_since is None:
                self._check(entries, began)
            elif began - self._ending_since < KILL_SECONDS:
                self._kill()  # again: something may have been forked since
            else:
                self._report(survivors=len(entries))
            pause = max(POLL_SECONDS, POLL_COST * (time.monotonic() - began))

    def _check(self, entries: list[Entry], now: float) -> None:
        if isinstance(self._counting, Poller):
            self._counting.on_poll([entry.pid for entry in entries])
        self._cpu_seconds = max(self._cpu_seconds, sum(entry.cpu_seconds for entry in entries))
        # First, because the memory of thousands of processes takes long to read.
        if len(entries) - self._own_processes > self._limits["processes"]:
            self.stop("too_many_processes")
        elif self._memory.is_exceeded_by(entries):
            self.stop("out_of_memory")
        elif now - self._started > self._limits["wall_seconds"]:
            self.stop("timed_out")

    def _watch_disk(self) -> None:
        pause = DISK_SECONDS
        while self._limits["disk_bytes"] and self._ending_since is None:
            time.sleep(pause)
            began = time.monotonic()
            self._check_disk()
            pause = max(DISK_SECONDS, POLL_COST * (time.monotonic() - began))

    def _check_disk(self) -> None:
        limit = self._limits["disk_bytes"]
        if limit and read_disk_bytes(self._spec["writable"]) - self._disk_before > limit:
            self.stop("too_much_disk")

    def _report(self, survivors: int = 0) -> None:
        with self._lock:
            first, self._reported = not self._reported, True
        if not first:
            threading.Event().wait()  # the thread that came first ends the process
        wall_seconds = (self._ended or time.monotonic()) - self._started
        stdout_tail, stderr_tail = (stream.finish(DRAIN_SECONDS) for stream in self._streams)
        self._check_disk()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        write_report(
            **self._read_outcome(stderr_tail),
            wall_seconds=wall_seconds,
            # What a killed PID namespace used is in no account, so the last sample may know more.
            cpu_seconds=max(self._cpu_seconds, used.ru_utime + used.ru_stime),
            max_rss_bytes=max(self._memory.peak_bytes, used.ru_maxrss * 1024),
            stdout_tail=stdout_tail,
            stderr_tail=stderr_tail,
            processes=self._read_count(),
            survivors=survivors,
        )

    def _read_outcome(self, stderr_tail: str) -> dict[str, Any]:
        if self._verdict:
            return {"kind": self._verdict, "code": None, "signal": None, "failure": None}
        self._releasing.join(DRAIN_SECONDS)
        if self._failure:
            return {"failure": self._failure}
        status = self._read_status()
        if status is None:
            return {"failure": stderr_tail.strip() or "bubblewrap gave no reason"}
        oom_killed = read_kernel_oom_kills(self._spec["oom_kills"]) > self._oom_kills
        found = describe_end(status, oom_killed=oom_killed)
        # The child's own end is evidence. Another process that was ended is ours only where there are no others.
        ours = oom_killed and (found["kind"] == "out_of_memory" or not self._is_group_shared())
        near = oom_killed and not ours and self._spec["oom_kills"] is not None  # of the whole host's count says nothing
        return {**found, "ended_by_kernel": ours, "ended_in_group": near, "failure": None}

    def _is_group_shared(self) -> bool:
        """Now or when the child started: who was ended may be gone."""
        return self._is_shared or is_group_shared(self._spec["oom_kills"], os.getppid())

    def _read_status(self) -> int | None:
        if self._status is not None or self._status_fd is None:
            return self._root_status if self._status is None else self._status
        told = read_bubblewrap_status(self._status_fd)
        if told is None and self._root_status is not None and os.WIFSIGNALED(self._root_status):
            return self._root_status  # bubblewrap was killed, and told nothing
        return told

    def _read_count(self) -> dict[str, Any] | None:
        counting = self._counting
        if counting is None:
            return None
        names = ("counted_by", "forks", "execs", "programs", "why_not")
        return {name: getattr(counting, name) for name in names}


def write_report(**report: Any) -> None:
    """Answer the parent, and end this process with all its threads."""
    text = json.dumps(report).encode()
    try:
        while text:
            text = text[os.write(1, text) :]
    finally:
        os._exit(0)  # also when nobody is left to read it


def _memory_file(name: str, text: str) -> int:
    fd = os.memfd_create(name)
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _become_supervisor(parent: int) -> None:
    # What a worker ignores or blocks would be inherited by the child and break waiting for it.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Among thousands of runnable processes a fair share is none: without this, limits hold only after seconds.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # The end of standard input tells it as well, unless another fork of the parent holds that pipe.
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Serve the one spec on standard input. `sys.argv[1]` is the parent's process id."""
    parent = int(sys.argv[1])
    _become_supervisor(parent)
    supervision = Supervision(json.loads(sys.stdin.buffer.readline()))
    signal.signal(signal.SIGTERM, lambda *_: supervision.stop("stopped"))
    try:
        supervision.run()
    except Exception as error:
        kill_descendants(os.getpid())
        write_report(failure=f"{type(error).__name__}: {error}")
