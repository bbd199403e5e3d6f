"""A source as compile and proof meet it: unpacked or stripped, on this disk."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OpenedSource:
    """An unpacked `tree` with its `entry`, or a stripped `program`; and its safetensors files as `weights`."""

    tree: Path | None
    entry: str
    program: Path | None
    weights: tuple[Path, ...]
