"""The eager starts of a proof, which nothing of a bundle reaches: run once for each program, and told again.

A proof starts its program three times without the bundle at most, seconds each and a quarter of a minute on an emulated
CPU. Proofs of many bundles against one program differ in all but these.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from aot.qualify import emulated, run
from aot.qualify.children import Proving, Watched
from aot.qualify.steps import start_eagerly
from aot.schema.artifact import Artifact
from aot.schema.codec import encode


@contextmanager
def told_again() -> Iterator[None]:
    """Within, an eager start under the same conditions as an earlier one is not repeated.

    One that fails, or that is to be stopped, is run each time.
    """
    seen: dict[object, Watched] = {}

    def start(proving: Proving, artifacts: Sequence[Artifact], *, name: str = "") -> Watched:
        if proving.should_stop() is not None:
            return start_eagerly(proving, artifacts, name=name)
        # The artifacts say at which sizes it starts: those of the example, which every coverage here has. The one test
        # whose example lies outside has a program of its own.
        under = (name, *_conditions(proving))
        if under not in seen:
            seen[under] = start_eagerly(proving, artifacts, name=name)
        return seen[under]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "start_eagerly", start)
        patch.setattr(emulated, "start_eagerly", start)
        yield


def _conditions(proving: Proving) -> tuple[object, ...]:
    """Everything that an eager start depends on."""
    source = proving.source
    assert source.tree is not None and source.program is None and source.weights == ()
    program = tuple((path.name, path.read_bytes()) for path in sorted(source.tree.glob("*.py")))
    documents = (encode(proving.recipe), encode(proving.profile), encode(proving.limits))
    place = (proving.sandbox, proving.emulator, tuple(proving.devices), tuple(sorted(proving.held_back.items())))
    return (program, source.entry, *documents, *place)
