"""`aot run --write-back`: push the union of what was restored and what was compiled, at first idle and after exit."""

import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aot.capture.entries import graphs_of
from aot.capture.prepare import Prepared
from aot.capture.publish import Making, stage_union
from aot.capture.record import capture_recipe
from aot.capture.unwritten import Unwritten, keep, take
from aot.cli.builds import connected
from aot.cli.output import say
from aot.errors import AotError
from aot.pipeline.here import user_name
from aot.pipeline.publish import push_bundle
from aot.schema.manifest import Manifest


@dataclass
class WriteBack:
    """What one run has written back. Nothing here raises: the command's end is what counts."""

    prepared: Prepared
    command: Sequence[str]
    environ: Mapping[str, str]
    _written: frozenset[str] = frozenset()
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def at_idle(self, new: frozenset[str]) -> None:
        """Push what the command has compiled until now. What the registry does not take is tried again at the end."""
        with self._turn:
            if self._push(self._asked(new)):
                self._written = new

    def at_exit(self, new: frozenset[str]) -> None:
        """Push what was compiled since, and what earlier runs on this node could not; keep what cannot be pushed."""
        directory = self.prepared.directory
        assert directory is not None
        with self._turn:
            again = tuple(take(directory))
            own = (self._asked(new),) if graphs_of(new - self._written) else ()
            for unwritten in (*again, *own):
                if not self._push(unwritten):
                    _keep(directory, unwritten)

    def _asked(self, new: frozenset[str]) -> Unwritten:
        environment = capture_recipe(self.environ).environment
        return Unwritten(command=tuple(self.command), environment=environment, paths=tuple(sorted(new)))

    def _push(self, unwritten: Unwritten) -> bool:
        prepared = self.prepared
        assert prepared.manifest is not None
        try:
            with tempfile.TemporaryDirectory(prefix="aot-capture-") as scratch:
                making = Making(
                    prepared.reference,
                    unwritten.command,
                    prepared.manifest.profile,
                    prepared.environment,
                    unwritten.environment,
                    user_name(),
                    Path(scratch),
                )
                staged = stage_union(making, prepared, frozenset(unwritten.paths))
                if not _graphs(staged.manifest) - _graphs(prepared.manifest):
                    return True  # what the command loaded was written once more, and nothing compiled
                tags = (prepared.reference.tag,) if prepared.reference.tag else ()
                reply = push_bundle(connected(), staged, tags=tags)
        except AotError as error:
            say(f"aot: not written back: {error.message}")
            return False
        except OSError as error:
            say(f"aot: not written back: {error}")
            return False
        say(f"aot: written back: {reply.bundle} is {reply.state}")
        return True


def _graphs(manifest: Manifest) -> frozenset[str]:
    return graphs_of(file.path for file in manifest.files)


def _keep(directory: Path, unwritten: Unwritten) -> None:
    try:
        keep(directory, unwritten)
    except OSError as error:
        say(f"aot: not kept for a later run either: {error}")
    else:
        say("aot: kept on this node: the next run with --write-back pushes it")
