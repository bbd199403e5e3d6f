"""Compiles one exported program into a shared object, its kernels, and facts; nothing else leaves the archive.

Runs inside a compile child, after `aot.compile.export`. Inductor's archive also holds generated source, the
compiler's command line and absolute paths: only machine code is taken out of it.
"""

import json
import re
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from aot.compile.export import Exported, first_lines
from aot.compile.torch_inductor import compile_program, watch_tuning
from aot.errors import AotError, BackendFailed, CompileOutOfMemory, SourceNotExportable
from aot.schema.artifact import Kernel

LIBRARY = "lib/model.so"
_KERNEL_FILES = (".cubin", ".hsaco", ".fatbin")
_DEFINITION = re.compile(r'extern "C"\s+(?:void|\w+ void)\s+(\w+)\(')
_LOG_BYTES = 4000


@dataclass(frozen=True, kw_only=True)
class CompiledPackage:
    """Files below `directory`, by relative path, as a loader maps them: `lib/model.so`, `cubin/…`."""

    directory: Path
    files: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    seconds: float

    @property
    def library(self) -> Path:
        return self.directory / LIBRARY


def compile_package(
    exported: Exported, settings: Mapping[str, Any], *, region: str, into: Path, scratch: Path
) -> CompiledPackage:
    """Compile `exported` and unpack what a loader needs into `into`.

    Raises BackendFailed with an excerpt of what the compiler said, and SourceNotExportable for operations that only
    torch's own loader could call.
    """
    started = time.monotonic()
    package = scratch / "model.pt2"
    package.unlink(missing_ok=True)
    try:
        with watch_tuning() as tuning:
            compile_program(exported.program, package, dict(settings))
    except Exception as error:
        raise translate_failure(error, region) from error
    with zipfile.ZipFile(package) as archive:
        _refuse_proxies(archive, region)
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
    return CompiledPackage(directory=into, files=files, kernels=kernels, seconds=time.monotonic() - started)


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
        hint='the log has the whole text; the route "cache" may work, or another option or mode',
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


def _refuse_proxies(archive: zipfile.ZipFile, region: str) -> None:
    """Raises SourceNotExportable for operations without a C interface: the artifact alone cannot call them."""
    for name in archive.namelist():
        if not name.endswith(".wrapper.json"):
            continue
        nodes = json.loads(archive.read(name)).get("nodes", ())
        operations = sorted({str(node.get("node", {}).get("target", "?")) for node in nodes})
        raise SourceNotExportable(
            f"{region or 'the program'} calls {', '.join(operations) or 'an operation'}, which has no C interface",
            hint='give the operation a C shim (aot_inductor.custom_ops_to_c_shims), or use the route "cache"',
            details={"region": region, "operations": operations},
        )
