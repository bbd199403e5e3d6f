"""Compile: the modules of one installed distribution to one archive, byte for byte the same wherever it is repeated."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from aot.bytecode import child
from aot.bytecode.installed import Installed
from aot.errors import BackendFailed, InvalidInput
from aot.source.archive import END, header_of, padding

SECONDS = 600.0


def compile_distribution(installed: Installed, files: Sequence[str], *, into: Path) -> tuple[str, ...]:
    """Write the bytecode of `files` to the new archive `into`; return those that do not compile and are not in it.

    A member has the source's path and the `.pyc`'s content. Raises InvalidInput for a file that is none of the
    distribution's, BackendFailed where the interpreter fails.
    """
    if foreign := sorted(set(files) - set(installed.files)):
        raise InvalidInput(
            f"{installed.name} {installed.version} has no module {foreign[0]}", hint="build it for what is installed"
        )
    # Not -I: PYTHONHASHSEED decides the order of sets in constants, and must be read.
    flags = ["-S", "-s", "-P", *(["-" + "O" * sys.flags.optimize] if sys.flags.optimize else [])]
    ended = subprocess.run(
        [sys.executable, *flags, child.__file__],
        input="\0".join((str(installed.root), *sorted(files))).encode(),
        env={"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    if ended.returncode != 0:
        raise BackendFailed(
            f"the interpreter could not compile {installed.name}: it ended with {ended.returncode}",
            hint="see the log",
            details={
                "backend": "python",
                "region": installed.name,
                "log": ended.stderr.decode(errors="replace")[-4000:],
            },
        )
    into.parent.mkdir(parents=True, exist_ok=True)
    with into.open("xb") as file:
        return _write(file, sorted(files), ended.stdout)


def _write(file: BinaryIO, files: Sequence[str], output: bytes) -> tuple[str, ...]:
    left_out, position = [], 0
    for path in files:
        size_bytes = int.from_bytes(output[position : position + 8], "big")
        content = output[position + 8 : position + 8 + size_bytes]
        position += 8 + size_bytes
        if not content:
            left_out.append(path)
            continue
        file.write(header_of(path, size_bytes=size_bytes, executable=False))
        file.write(content)
        file.write(padding(size_bytes))
    file.write(END)
    return tuple(left_out)
