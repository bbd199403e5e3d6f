"""A compiler that takes no time: stages a bundle made by `tests.builders`, and does what a test wants meanwhile.

backend = FakeBackend(act=lambda work: work.wait_until_stopped())
monkeypatch.setattr("worker.run.build_bundle", backend.build)
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aot.bundle import write_bundle
from aot.errors import CompileStopped
from aot.pipeline import Question, Staged
from aot.pipeline.build import read_staged
from aot.pipeline.source import pack_factory
from aot.sandbox import OnEvent, ShouldStop
from aot.schema.spec import FactorySource
from aot.source import OpenedSource
from tests.builders import BYTES, a_manifest


@dataclass(frozen=True)
class Work:
    """What one build was given."""

    question: Question
    source: OpenedSource
    scratch: Path
    on_event: OnEvent
    should_stop: ShouldStop

    def wait_until_stopped(self, *, seconds: float = 20.0) -> None:
        """Work until told to stop, as a compile child does. Raises CompileStopped."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if reason := self.should_stop():
                raise CompileStopped(f"the build was stopped: {reason}")
            time.sleep(0.05)
        # Not an Exception: the worker would take that for the end of the build.
        pytest.fail("nobody stopped the build")


@dataclass
class FakeBackend:
    """`act` happens in the place of the compile; what it raises ends the build."""

    act: Callable[[Work], None] = lambda work: None
    works: list[Work] = field(default_factory=list)

    def build(
        self,
        question: Question,
        source: OpenedSource,
        *,
        scratch: Path,
        on_event: OnEvent,
        should_stop: ShouldStop,
        **options: Any,
    ) -> Staged:
        work = Work(question, source, scratch, on_event, should_stop)
        self.works.append(work)
        on_event({"phase": "loading"})
        on_event({"phase": "exporting"})
        on_event({"phase": "compiling", "step": "region 1 of 1"})
        self.act(work)
        on_event({"phase": "tuning"})
        on_event({"phase": "qualifying"})
        return stage(question, scratch)


def stage(question: Question, scratch: Path, **deviations: Any) -> Staged:
    """Write a proven bundle that answers `question` below `scratch`."""
    manifest = a_manifest(question.spec, profile=question.profile, **deviations)
    blobs = scratch / "blobs"
    blobs.mkdir(parents=True)
    files = {}
    for blob in manifest.blobs:
        files[blob.digest] = blobs / blob.digest.hex
        files[blob.digest].write_bytes(BYTES[blob.digest])
    return read_staged(write_bundle(scratch / "bundle", manifest=manifest, files=files).directory)


def a_packed_source(into: Path, *, text: str = "def make(): ...\n") -> FactorySource:
    """A source that can be unpacked; its bytes are in `BYTES`."""
    tree = into / "tree"
    tree.mkdir(parents=True)
    (tree / "model.py").write_text(text)
    packed = pack_factory(tree, "model:make", into=into / "packed")
    BYTES.update({digest: path.read_bytes() for digest, path in packed.paths.items()})
    assert isinstance(packed.source, FactorySource)
    return packed.source
