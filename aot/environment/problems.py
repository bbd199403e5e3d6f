"""Problems of a host that make a build wrong or a start slow, for `aot doctor`. Each one was met in the field."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aot.environment.card_problems import card_problems
from aot.environment.container import torch_threads
from aot.environment.cpu import usable_cores
from aot.environment.host import Host
from aot.environment.packages import find_package
from aot.environment.problem import Problem
from aot.errors import MalformedDocument
from aot.facts import read_elf

SHARED_MEMORY_BYTES = 256 << 20  # torch's data loaders and NCCL fill the 64 MiB that Docker gives by default
DISK_BYTES = 5 << 30  # the directories of one max-autotune build
_PROBE_SECONDS = 60
_PROBE = '#include <stdexcept>\nextern "C" void probe() { throw std::runtime_error("probe"); }\n'


@dataclass(frozen=True, kw_only=True)
class Place:
    """What is looked at. `cache` is the local store's directory, `scratch` where builds work."""

    host: Host = field(default_factory=Host)
    cache: Path
    scratch: Path = field(default_factory=lambda: _scratch_place())
    writes_bytecode: bool = field(default_factory=lambda: not sys.dont_write_bytecode)


def _scratch_place() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError:  # none can be written, as in a pod with a read-only root: the first one says why
        return Path("/tmp")


def describe_problems(place: Place) -> tuple[Problem, ...]:
    """Return every problem, the gravest first; empty where all is well. Compiles one small file."""
    checks: tuple[Callable[[Place], Iterator[Problem]], ...] = (
        _compilers,
        _cards,
        _mounts,
        _access,
        _space,
        _sandbox,
        _threads,
        _bytecode,
        _shared_memory,
    )
    return tuple(problem for check in checks for problem in check(place))


def _compilers(place: Place) -> Iterator[Problem]:
    variables = place.host.variables
    on_path = shutil.which("g++", path=variables.get("PATH", os.defpath))
    chosen = variables.get("CXX")
    compiler = shutil.which(chosen, path=variables.get("PATH", os.defpath)) if chosen else on_path
    if compiler is None:
        yield Problem(
            kind="no-compiler",
            text=f"$CXX names {chosen}, which is not there" if chosen else "no g++ is on PATH",
            hint="building here needs a C++ compiler; running fetched artifacts does not",
        )
        return
    if chosen and on_path and os.path.realpath(compiler) != os.path.realpath(on_path):
        yield Problem(
            kind="two-compilers",
            text=f"$CXX is {compiler}, and g++ on PATH is {on_path}",
            hint="unset CXX, or point it at the compiler that belongs to this container's libstdc++",
        )
    yield from _probe(compiler, place)


def _probe(compiler: str, place: Place) -> Iterator[Problem]:
    """Build a library as Inductor would, and look into it: a static libstdc++ shows only in what comes out."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix="aot-doctor-", dir=place.scratch)
    except OSError:
        return  # nothing can be built there, which `_mounts` or `_access` says
    with scratch as directory:
        library = Path(directory, "probe.so")
        command = [compiler, "-x", "c++", "-", "-shared", "-fPIC", "-o", str(library)]
        try:
            run = subprocess.run(
                command,
                input=_PROBE,
                capture_output=True,
                text=True,
                timeout=_PROBE_SECONDS,
                cwd=directory,
                env=dict(place.host.variables),
            )
            failure = run.stderr.strip()[-500:] if run.returncode else ""
            facts = None if run.returncode else read_elf(library)
        except (OSError, subprocess.TimeoutExpired, MalformedDocument) as error:
            failure, facts = str(error), None
    if facts is None:
        yield Problem(
            kind="broken-compiler",
            text=f"{compiler} cannot build a small shared library: {failure}",
            hint="install the compiler's C++ headers and linker, or choose another one with CXX",
        )
    elif facts.static_libstdcxx:
        yield Problem(
            kind="static-libstdcxx",
            text=f"{compiler} links libstdc++ statically: two copies in one process crash inside std::regex",
            hint="use the system's g++ (unset CXX), or a toolchain that links libstdc++.so.6",
        )


def _cards(place: Place) -> Iterator[Problem]:
    yield from card_problems(place.host)


def _mounts(place: Place) -> Iterator[Problem]:
    for name, directory in (("cache", place.cache), ("scratch", place.scratch)):
        options = _mount_options(place.host, directory)
        for option, consequence in (("noexec", "nothing in it can be mapped as code"), ("ro", "it is read-only")):
            if option in options:
                yield Problem(
                    kind=f"{option}-{name}",
                    text=f"the {name} directory {directory} is on a file system mounted {option}: {consequence}",
                    hint="set AOT_CACHE_DIR to another place" if name == "cache" else "set TMPDIR to another place",
                )


def _mount_options(host: Host, directory: Path) -> frozenset[str]:
    """Return the options of the mount that `directory`, or the nearest ancestor that exists, is on."""
    target = Path(os.path.realpath(directory))
    best, options = Path("/"), ""
    for line in (host.text("/proc/self/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        point = Path(fields[1].replace("\\040", " ").replace("\\011", "\t"))
        # Later lines cover earlier ones at the same point.
        if target.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, options = point, fields[3]
    return frozenset(options.split(","))


def _access(place: Place) -> Iterator[Problem]:
    """Without a cache that it may write, a pod fetches nothing and runs eagerly."""
    for name, directory, variable in (("cache", place.cache, "AOT_CACHE_DIR"), ("scratch", place.scratch, "TMPDIR")):
        if "ro" in _mount_options(place.host, directory):
            continue  # _mounts says so
        # os.path: a parent that may not be searched is as good as one that is not there.
        existing = next(one for one in (directory, *directory.absolute().parents) if os.path.exists(one))
        if not existing.is_dir():
            finding = f"{existing} is no directory"
        elif not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
            finding = f"this user may not read and write {existing}"
        else:
            continue
        yield Problem(
            kind=f"unusable-{name}",
            text=f"the {name} directory {directory} cannot be used: {finding}",
            hint=f"set {variable} to a directory that this process may write",
        )


def _space(place: Place) -> Iterator[Problem]:
    for name, directory in (("cache", place.cache), ("scratch", place.scratch)):
        free = _free_bytes(directory)
        if free is not None and free < DISK_BYTES:
            yield Problem(
                kind=f"little-space-{name}",
                text=f"the {name} directory {directory} has {free >> 20} MiB left",
                hint=f"a max-autotune build needs about {DISK_BYTES >> 30} GiB; fetching needs the bundle's size",
            )


def _free_bytes(directory: Path) -> int | None:
    for place in (directory, *directory.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _sandbox(place: Place) -> Iterator[Problem]:
    if shutil.which("bwrap", path=place.host.variables.get("PATH", os.defpath)) is None:
        yield Problem(
            kind="no-bubblewrap",
            text="bubblewrap (bwrap) is not installed: sources would be compiled without isolation",
            hint="install bubblewrap, or name the submitters to trust in AOT_TRUST_SOURCES",
        )


def _threads(place: Place) -> Iterator[Problem]:
    threads, cores = torch_threads(place.host), usable_cores(place.host)
    if threads and cores and threads > cores:
        yield Problem(
            kind="threads-over-cores",
            text=f"torch would use {threads} threads, and this container may use {cores} cores",
            hint=f"set OMP_NUM_THREADS={cores}: threads beyond the quota wait for each other",
        )


def _bytecode(place: Place) -> Iterator[Problem]:
    package = find_package(place.host, "torch")
    if package is None or place.writes_bytecode:
        return
    prefix = place.host.variables.get("PYTHONPYCACHEPREFIX")
    if prefix or any((package / "__pycache__").glob("__init__.*.pyc")):
        return
    yield Problem(
        kind="no-bytecode",
        text="PYTHONDONTWRITEBYTECODE is set and torch has no compiled bytecode: every start compiles it again",
        hint="run `python -m compileall` in the image, or set PYTHONPYCACHEPREFIX to a directory that is kept",
    )


def _shared_memory(place: Place) -> Iterator[Problem]:
    directory = place.host.path("/dev/shm")
    try:
        size_bytes = shutil.disk_usage(directory).total
    except OSError:
        return
    if size_bytes < SHARED_MEMORY_BYTES:
        yield Problem(
            kind="small-shared-memory",
            text=f"{directory} has {size_bytes >> 20} MiB",
            hint="start the container with a larger one (docker run --shm-size=1g, or a memory-backed volume)",
        )
