"""The toolchain of this machine, without importing torch: part of the profile, and a factor of every key."""

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from aot.environment import Host
from aot.environment.packages import torch_build, triton_version
from aot.errors import InvalidConfig
from aot.schema.profile import Toolchain

# Children start from an empty environment and see these places, so the compiler is the system's, not $CXX.
SEARCH_PATH = "/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Observed:
    """The toolchain as versions, and where its compiler lies."""

    toolchain: Toolchain
    compiler: Path


def observe_toolchain(*, search_path: str = SEARCH_PATH, host: Host | None = None) -> Observed:
    """Look at torch's files, the C++ compiler and the C library.

    Raises InvalidConfig where torch or a compiler is missing: this machine can then compile nothing.
    """
    # The readers that a pod observes itself with: what is written into a bundle must be what is looked for later.
    host = host or Host()
    built = torch_build(host)
    if built.version is None:
        raise InvalidConfig(
            "torch is not installed here, so nothing can be compiled", hint="install aot-registry[compile]"
        )
    compiler = shutil.which("g++", path=search_path)
    if compiler is None:
        raise InvalidConfig(
            f"no C++ compiler: g++ is not in {search_path}", hint="install g++ (apt-get install g++) on this worker"
        )
    toolchain = Toolchain(
        torch=built.version,
        python=platform.python_version(),
        compiler=f"g++ {_compiler_version(compiler)}",
        libc=_libc(),
        triton=triton_version(host),
        cuda=built.cuda,
    )
    return Observed(toolchain=toolchain, compiler=Path(compiler))


def _compiler_version(compiler: str) -> str:
    try:
        asked = subprocess.run(
            [compiler, "-dumpfullversion"], capture_output=True, text=True, timeout=30, env={"PATH": SEARCH_PATH}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidConfig(f"{compiler} does not run: {error}", hint="reinstall g++ on this worker") from error
    return asked.stdout.strip() or "unknown"


def _libc() -> str:
    named = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    return named or "unknown"
