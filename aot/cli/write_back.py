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
from aot.capture.unwritten import Kept, Unwritten, each_kept, keep
from aot.cli.builds import connected
from aot.cli.output import say
from aot.errors import AotError
from aot.pipeline.here import user_name
from aot.pipeline.publish import push_bundle
from aot.schema.manifest import Manifest
from aot.schema.spec import CommandSource


@dataclass
class WriteBack:
    """What one run has written back. Nothing here raises: the command's end is what counts."""

    prepared: Prepared
    command: Sequence[str]
    environ: Mapping[str, str]
    _written: frozenset[str] = frozenset()
    _kept: Kept | None = None  # of this run, before its last push
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def at_idle(self, new: frozenset[str]) -> None:
        """Push what the command has compiled until now. What the registry does not take is tried again at the end."""
        with self._turn:
            if self._push(self._keep(new)):
                self._written = new

    def at_exit(self, new: frozenset[str]) -> None:
        """Push what was compiled since, and what earlier runs on this node could not; what cannot be pushed is kept."""
        directory = self.prepared.directory
        assert directory is not None
        with self._turn:
            own = self._keep(new) if graphs_of(new - self._written) else None
            if own is not None:
                self._push_or_tell(own)
            for kept in each_kept(directory.parent):
                if self._joins(kept) and (own is None or kept.place != own.place):
                    self._push_or_tell(kept)

    def _push_or_tell(self, kept: Kept) -> None:
        if not self._push(kept) and kept.place is not None:
            say("aot: kept on this node: the next run with --write-back pushes it")

    def _keep(self, new: frozenset[str]) -> Kept:
        """Keep what this run has compiled before it is pushed: it may be killed. What it had kept is part of it."""
        directory = self.prepared.directory
        assert directory is not None
        unwritten = self._asked(new)
        try:
            kept = keep(directory, unwritten)
        except OSError as error:
            say(f"aot: not kept for a later run: {error}")
            return Kept(directory, unwritten, None)
        if self._kept is not None:
            self._kept.discard()
        self._kept = kept
        return kept

    def _joins(self, kept: Kept) -> bool:
        """Whether it was compiled under this reference, by the same program for the same profile."""
        mine, other = self._asked(frozenset()), kept.unwritten
        if other.reference is None:
            return kept.directory == self.prepared.directory  # kept by an earlier version
        return (other.reference, other.tree, other.profile) == (mine.reference, mine.tree, mine.profile)

    def _asked(self, new: frozenset[str]) -> Unwritten:
        manifest = self.prepared.manifest
        assert manifest is not None
        source = manifest.spec.source
        return Unwritten(
            command=tuple(self.command),
            environment=capture_recipe(self.environ).environment,
            paths=tuple(sorted(new)),
            reference=self.prepared.reference,
            tree=source.tree.digest if isinstance(source, CommandSource) and source.tree else None,
            profile=manifest.profile.name,
        )

    def _push(self, kept: Kept) -> bool:
        prepared = self.prepared
        unwritten = kept.unwritten
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
                staged = stage_union(making, prepared, frozenset(unwritten.paths), found_in=kept.directory)
                if not _graphs(staged.manifest) - _graphs(prepared.manifest):
                    kept.discard()
                    return True  # what the command loaded was written once more, and nothing compiled
                tags = (prepared.reference.tag,) if prepared.reference.tag else ()
                reply = push_bundle(connected(), staged, tags=tags)
        except AotError as error:
            say(f"aot: not written back: {error.message}")
            return False
        except OSError as error:
            say(f"aot: not written back: {error}")
            return False
        kept.discard()
        for warning in staged.manifest.compile_report.warnings:
            say(f"aot: {warning}")
        say(f"aot: written back: {reply.bundle} is {reply.state}")
        return True


def _graphs(manifest: Manifest) -> frozenset[str]:
    return graphs_of(file.path for file in manifest.files)
