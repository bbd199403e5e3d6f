"""Where to look: the root of the file system, the variables and the packages of one process."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


def _machine() -> str:
    return os.uname().machine


@dataclass(frozen=True, kw_only=True)
class Host:
    """This process on this host, unless a field says otherwise.

    `environ` None: the variables that the process started with. `packages` None: the interpreter's own search path.
    `nvml` is the library that knows the NVIDIA cards.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] | None = None
    packages: tuple[str, ...] | None = None
    machine: str = field(default_factory=_machine)
    nvml: str = "libnvidia-ml.so.1"

    def path(self, absolute: str) -> Path:
        """Return where `absolute` lies below the root."""
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> str | None:
        """Return the content of a small file; None where it is absent or not readable."""
        try:
            return self.path(absolute).read_text(errors="replace")
        except OSError:
            return None

    @cached_property
    def variables(self) -> Mapping[str, str]:
        if self.environ is not None:
            return self.environ
        pairs = (entry.partition("=") for entry in (self.text("/proc/self/environ") or "").split("\0"))
        return {name: value for name, separator, value in pairs if separator}

    @property
    def is_this_process(self) -> bool:
        """True when modules that this interpreter has loaded speak for the host that is looked at."""
        return self.root == Path("/") and self.packages is None

    @property
    def package_directories(self) -> tuple[Path, ...]:
        return tuple(Path(entry or ".") for entry in (sys.path if self.packages is None else self.packages))
