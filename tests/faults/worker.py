"""A worker of a campaign: a real worker process with a compiler that takes no time and makes other bytes every time.

With PLACE/real-compiler it is the real one.

    python -m tests.faults.worker PLACE

PLACE/hold-PHASE makes builds stay in PHASE while it is there; PLACE/disk-full makes the compiler find no space.
PLACE/reached gets a line "pid phase build" for every phase that begins.
"""

import errno
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from aot.pipeline import Question, Staged, build_bundle
from aot.sandbox import OnEvent, ShouldStop
from aot.source import OpenedSource
from tests import fake_worker  # hooks the attempt, so that it can be held in a phase
from tests.builders import a_file, an_artifact
from tests.fake_backend import stage

PLACE = Path(sys.argv[1])


def build(
    question: Question,
    source: OpenedSource,
    *,
    scratch: Path,
    on_event: OnEvent,
    should_stop: ShouldStop,
    **options: Any,
) -> Staged:
    for phase in ("loading", "exporting", "compiling", "tuning", "qualifying"):
        on_event({"phase": phase})
        time.sleep(0.02)
        if phase == "compiling" and (PLACE / "disk-full").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
    # Other bytes in every attempt: whatever one attempt has uploaded helps no other.
    library = a_file(content=b"\x7fELF" + secrets.token_bytes(2000 + secrets.randbelow(60_000)))
    artifact = an_artifact(
        capability=question.profile.capability, torch=question.profile.toolchain.torch, files=(library,)
    )
    return stage(question, scratch, artifacts=(artifact,))


def build_really(question: Question, source: OpenedSource, **options: Any) -> Staged:
    if (PLACE / "disk-full").exists():
        raise OSError(errno.ENOSPC, "No space left on device")
    return build_bundle(question, source, **options)


fake_worker.worker.run.build_bundle = build_really if (PLACE / "real-compiler").exists() else build

if __name__ == "__main__":
    raise SystemExit(fake_worker.worker.__main__.main())
