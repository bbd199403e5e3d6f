"""Compiles one exported program into a shared object, its kernels, and facts; nothing else leaves the archive.

Runs inside a compile child, after `aot.compile.export`. Inductor's archive also holds generated source, the
compiler's command line and absolute paths: only machine code is taken out of it.
"""

import json
import re
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from aot.compile.export import Exported, first_lines
from aot.compile.torch_inductor import compile_program
from aot.compile.torch_tuning import Around, Question, Tuning, watch_tuning
from aot.errors import AotError, BackendFailed, CompileOutOfMemory, SourceNotExportable
from aot.recipes import NO_OTHER_ROUTE
from aot.schema.artifact import Kernel

LIBRARY = "lib/model.so"
_KERNEL_FILES = (".cubin", ".hsaco", ".fatbin")
_DEFINITION = re.compile(r'extern "C"\s+(?:void|\w+ void)\s+(\w+)\(')
# A team of a fixed size, shares by the number of a thread, and buffers for so many: see aot.compile.torch_threads.
_FIXED_THREADS = re.compile(
    r"#pragma omp [^\n]*\bnum_threads\(\s*\d+\s*\)"
    r"|\btid = omp_get_thread_num\(\);\s*const int64_t k_group_id\b"
    r"|\bint64_t num_thread = \d+;"
)
_LOG_BYTES = 4000


@dataclass(frozen=True, kw_only=True)
class CompiledPackage:
    """Files below `directory`, by relative path, as a loader maps them: `lib/model.so`, `cubin/…`."""

    directory: Path
    files: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    seconds: float
    tuning: Tuning = field(default_factory=Tuning)  # of the first kernels

    @property
    def library(self) -> Path:
        return self.directory / LIBRARY


def compile_package(
    exported: Exported,
    settings: Mapping[str, Any],
    *,
    region: str,
    into: Path,
    scratch: Path,
    around_tuning: Around = lambda what: nullcontext(),
    measured_here: set[Question] | None = None,
) -> CompiledPackage:
    """Compile `exported` and unpack what a loader needs into `into`; the last two are `watch_tuning`'s.

    Raises BackendFailed with an excerpt of what the compiler said, and SourceNotExportable for operations that only
    torch's own loader could call.
    """
    started = time.monotonic()
    package = scratch / "model.pt2"
    package.unlink(missing_ok=True)
    try:
        with watch_tuning(around_tuning, measured_here=measured_here) as tuning:
            compile_program(exported.program, package, dict(settings))
    except Exception as error:
        raise translate_failure(error, region) from error
    with zipfile.ZipFile(package) as archive:
        _refuse_proxies(archive, region)
        if settings.get("cpp.dynamic_threads"):
            refuse_fixed_threads(archive, region)
        files = tuple(_extract(archive, into))
        generated = _generated_kernels(archive)
    package.unlink()
    if LIBRARY not in files:
        raise BackendFailed(
            f"inductor made no shared object for {region or 'the program'}",
            hint="report this: the archive is not of the form that this version reads",
            details={"backend": "inductor", "region": region, "log": ""},
        )
    tuned = {kernel.name for kernel in tuning.kernels}
    kernels = (*tuning.kernels, *(Kernel(name=name) for name in generated if name not in tuned))
    seconds = time.monotonic() - started
    return CompiledPackage(directory=into, files=files, kernels=kernels, seconds=seconds, tuning=tuning)


def translate_failure(error: Exception, region: str) -> AotError:
    """Return what an exception out of Inductor means for the caller of a build."""
    if isinstance(error, AotError):
        return error
    if isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error):
        return CompileOutOfMemory(
            f"compiling {region or 'the program'} ran out of memory: {first_lines(error)}",
            hint="raise the limit memory_bytes, use smaller examples, or compile by regions",
            details={"region": region},
        )
    cause = error.__cause__ or error
    return BackendFailed(
        f"inductor failed on {region or 'the program'}: {type(cause).__name__}: {first_lines(cause)}",
        hint="the log has the whole text; another mode or option may work; " + NO_OTHER_ROUTE,
        details={"backend": "inductor", "region": region, "log": str(error)[-_LOG_BYTES:]},
    )


def _extract(archive: zipfile.ZipFile, into: Path) -> Iterator[str]:
    """Unpack machine code, and yield each file's path below `into`."""
    for name in archive.namelist():
        leaf = PurePosixPath(name).name
        if leaf.endswith(".wrapper.so"):
            path = LIBRARY
        elif leaf.endswith(_KERNEL_FILES):
            path = f"cubin/{leaf}"
        elif leaf.endswith(".so"):
            path = f"lib/{leaf}"  # a custom kernel, which the wrapper finds beside itself
        else:
            continue
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(archive.read(name))
        yield path


def _generated_kernels(archive: zipfile.ZipFile) -> list[str]:
    names: dict[str, None] = {}
    for name in archive.namelist():
        if name.endswith(".kernel.cpp"):
            names |= dict.fromkeys(_DEFINITION.findall(archive.read(name).decode(errors="replace")))
        elif name.endswith(_KERNEL_FILES):
            names[PurePosixPath(name).stem] = None
    return list(names)


def refuse_fixed_threads(archive: zipfile.ZipFile, region: str) -> None:
    """Raises BackendFailed where generated code asks for a number of threads, which is the builder's."""
    for name in archive.namelist():
        found = _FIXED_THREADS.search(archive.read(name).decode(errors="replace")) if name.endswith(".cpp") else None
        if found:
            what = " ".join(found[0].split())
            raise BackendFailed(
                f"the code of {region or 'the program'} is fixed to the builder's threads: {what}",
                hint="leave out the option that led to it, or build with a torch that generates it for any number",
                details={"backend": "inductor", "region": region, "log": found[0]},
            )


def _refuse_proxies(archive: zipfile.ZipFile, region: str) -> None:
    """Raises SourceNotExportable for operations without a C interface: the artifact alone cannot call them."""
    for name in archive.namelist():
        if not name.endswith(".wrapper.json"):
            continue
        nodes = json.loads(archive.read(name)).get("nodes", ())
        operations = sorted({str(node.get("node", {}).get("target", "?")) for node in nodes})
        raise SourceNotExportable(
            f"{region or 'the program'} calls {', '.join(operations) or 'an operation'}, which has no C interface",
            hint="compose it of torch's own operations, or call it outside of the module; " + NO_OTHER_ROUTE,
            details={"region": region, "operations": operations},
        )
