"""What every build on one machine with one toolchain can share: C++'s precompiled headers, twelve seconds of work, what
they come to when preprocessed, and the half of a wrapper that is the same for every program (aot.compile.interface).

They are code to whoever compiles with them, so they are made by a child that runs no source but our own model, and
later children see them read-only.
"""

import contextlib
import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aot.compile.program import Example, Program
from aot.errors import CompileStopped
from aot.locks import try_lock
from aot.sandbox import find_packages
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.profile import Profile

_GENERATION = 3
_KEEP_SECONDS = 30 * 86400.0
_ASK_SECONDS = 0.2


@dataclass(frozen=True)
class SharedCaches:
    """A directory that outlives builds and serves several processes: a set of headers for each toolchain and target."""

    directory: Path

    def place_for(self, profile: Profile) -> Path:
        """Where the headers for `profile` are, or will be."""
        # The compiled headers name the headers that they came from, so the place of torch counts as well.
        parts = (
            _GENERATION,
            profile.toolchain.torch,
            profile.toolchain.compiler,
            profile.toolchain.cuda,
            profile.capability,
            sysconfig.get_paths()["purelib"],
            sysconfig.get_paths()["include"],
            *map(str, find_packages().added),
        )
        return self.directory / f"headers-{Digest.of(encode(parts)).short}"

    def ensure(
        self,
        profile: Profile,
        make: Callable[[Path], Path],
        *,
        on_wait: Callable[[], None] = lambda: None,
        should_stop: Callable[[], str | None] = lambda: None,
    ) -> Path:
        """Return the headers for `profile`; the first caller lets `make(scratch)` say where it has built them.

        Others call `on_wait` once and wait for it, as long as `should_stop` gives no reason to end. What `make` raises
        is raised here, and the next caller tries again. Raises CompileStopped.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        place = self.place_for(profile)
        with self._locked(place.name, on_wait=on_wait, should_stop=should_stop):
            if not place.is_dir():
                scratch = self.directory / f"{place.name}.part"
                shutil.rmtree(scratch, ignore_errors=True)
                scratch.mkdir()
                try:
                    made = make(scratch)
                    shutil.rmtree(made / "locks", ignore_errors=True)
                    made.rename(place)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
                self._drop_unused(keep=place)
            os.utime(place)
        return place

    @contextlib.contextmanager
    def _locked(
        self, name: str, *, on_wait: Callable[[], None], should_stop: Callable[[], str | None]
    ) -> Iterator[None]:
        with (self.directory / f"{name}.lock").open("w") as lock:
            if not try_lock(lock):
                on_wait()
                # Asked again and again: a lock that is waited for cannot be given up, and its holder may take minutes.
                while not try_lock(lock):
                    if reason := should_stop():
                        raise CompileStopped(f"the build was stopped: {reason}")
                    time.sleep(_ASK_SECONDS)
            yield

    def _drop_unused(self, *, keep: Path) -> None:
        oldest = time.time() - _KEEP_SECONDS
        for place in self.directory.glob("headers-*"):
            if place.is_dir() and place != keep and place.stat().st_mtime < oldest:
                shutil.rmtree(place, ignore_errors=True)


def warming_program() -> Program:
    """The smallest model whose build needs both headers: of the wrapper, and of a kernel."""
    import torch

    class Warming(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(x) + 1

    return Program(module=Warming().eval(), examples=(Example((torch.zeros(4, 32),)),))
