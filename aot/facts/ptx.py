"""PTX text: NVIDIA's portable assembly, which a driver compiles for the card that it finds.

Source: PTX ISA, "Directives": .version, .target (the first word is the architecture) and .entry.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from aot.errors import MalformedDocument
from aot.facts.image import open_image

_VERSION = re.compile(rb"^\s*\.version\s+(\d+\.\d+)", re.MULTILINE)
_TARGET = re.compile(rb"^\s*\.target\s+sm_(\d+[af]?)\b", re.MULTILINE)
_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")


@dataclass(frozen=True, kw_only=True)
class PtxFacts:
    """`version` is that of the language, which a driver must know: "8.7". `target` as written: "sm_90a"."""

    version: str
    target: str
    kernels: tuple[str, ...]


def read_ptx(path: Path) -> PtxFacts:
    """Return what the text says before its first kernel. Raises MalformedDocument for anything else, and OSError."""
    with open_image(path) as image:
        version, target = next(image.matches(_VERSION), None), next(image.matches(_TARGET), None)
        if version is None or target is None:
            raise _no_ptx(path)
        entries = {match.split()[1].decode() for match in image.matches(_ENTRY)}
        return PtxFacts(
            version=version.split()[1].decode(),
            target=target.split()[1].decode(),
            kernels=tuple(sorted(entries)),
        )


def _no_ptx(path: Path) -> MalformedDocument:
    return MalformedDocument(
        f"{path.name} cannot be read as PTX: it has no .version and .target",
        hint="the file is damaged or of another kind; build or fetch it again",
        details={"path": path.name},
    )
