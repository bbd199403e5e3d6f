"""A real worker process whose compiler is `FakeBackend`, held where a test wants it.

    python -m tests.fake_worker PLACE

Files in the directory PLACE steer it: while `hold-PHASE` is there, the phase lasts; with `child`, compiling is a real
child process that has a child of its own, and lasts until it is stopped. `reached` gets a line
"pid phase build" for every phase that begins, `children` the pids of a real child.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import worker.__main__
import worker.attempt
import worker.run
from aot.errors import CompileStopped
from aot.sandbox import Limits, run_child
from tests.fake_backend import FakeBackend, Work

PLACE = Path(sys.argv[1])
SLEEPER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
child.wait()
"""


def act(work: Work) -> None:
    logs = work.scratch / "compile"
    logs.mkdir(parents=True)
    (logs / "stderr.txt").write_text("the compiler speaks\n")
    if not (PLACE / "child").exists():
        return
    ended = run_child(
        [sys.executable, "-c", SLEEPER, str(PLACE / "children")],
        cwd=work.scratch,
        env={},
        limits=Limits(wall_seconds=300, memory_bytes=1 << 30, processes=8, output_bytes=1 << 20),
        sandbox=None,
        should_stop=work.should_stop,
    )
    raise CompileStopped(f"the build was stopped: {ended.stop_reason}")


class HeldAttempt(worker.attempt.Attempt):
    def on_event(self, event: Mapping[str, Any]) -> None:
        super().on_event(event)
        if "phase" in event:
            hold(event["phase"], self)


def hold(phase: str, attempt: worker.attempt.Attempt) -> None:
    with (PLACE / "reached").open("a") as reached:
        reached.write(f"{os.getpid()} {phase} {attempt.claim.build}\n")
    while (PLACE / f"hold-{phase}").exists():
        if reason := attempt.should_stop():
            raise CompileStopped(reason)
        time.sleep(0.05)


def carry_through(attempt: worker.attempt.Attempt, bench: worker.run.Bench) -> None:
    whole(attempt, bench)
    hold("published", attempt)


whole = worker.run._carry_through
worker.run._carry_through = carry_through
worker.run.Attempt = HeldAttempt
worker.run.build_bundle = FakeBackend(act=act).build

if __name__ == "__main__":
    raise SystemExit(worker.__main__.main())
