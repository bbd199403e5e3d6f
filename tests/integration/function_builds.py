"""One build of the route `function` that its tests share: two example sets, an open batch, state that guards read."""

from functools import cache
from pathlib import Path

from aot.bundle import StoredBundle, write_bundle
from aot.compile.run import Compiled
from aot.qualify import Proof, qualify
from aot.schema.recipe import Recipe, Route
from tests.builders import altered
from tests.integration import compiled as builds

RECIPE = Recipe(routes=(Route.FUNCTION,))

PROGRAM = """
import torch
from torch import nn

LIMIT = 4.0


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.outer = nn.Linear(32, 4)
        self.scale = 2.0
        self.register_buffer("mean", torch.full((16,), 0.5))

    def forward(self, x, mask=None):
        y = self.norm(torch.relu(self.inner(x - self.mean))) * self.scale
        if mask is not None:
            y = y * mask
        return {"logits": self.outer(y).clamp(-LIMIT, LIMIT), "rows": x.shape[0]}


def make():
    module = Head()
    examples = [((torch.randn(4, 16),), {}), ((torch.randn(4, 16), torch.ones(4, 32)), {})]
    batch = {0: "batch"}
    return {
        "module": module,
        "examples": examples,
        "dimensions": {"batch": (2, 8)},
        "dynamic_shapes": {"x": batch, "mask": batch},
    }
"""


@cache
def head() -> tuple[Compiled, builds.Source]:
    place = builds.scratch_directory("function")
    source = builds.write_source(place / "tree", PROGRAM)
    return builds.build(source, place / "scratch", recipe=RECIPE, shared=builds.shared_headers()), source


@cache
def stored() -> StoredBundle:
    """The build as an unproven bundle."""
    compiled, _ = head()
    place = builds.scratch_directory("function-bundle")
    return builds.bundle_of(compiled, place, name="head", recipe=RECIPE)


@cache
def proven() -> Proof:
    bundle, (_, source) = stored(), head()
    return qualify(
        bundle.directory,
        source=source,
        spec=bundle.manifest.spec,
        profile=bundle.manifest.profile,
        scratch=builds.scratch_directory("function-proof") / "proof",
        sandbox=builds.sandbox(),
        limits=builds.LIMITS,
    )


def proven_bundle(place: Path) -> StoredBundle:
    """The proven bundle, as it would be uploaded."""
    bundle, proof = stored(), proven()
    manifest = altered(bundle.manifest, artifacts=proof.artifacts, qualification=proof.qualification)
    files = {blob.digest: bundle.blob_path(blob.digest) for blob in bundle.manifest.blobs}
    return write_bundle(place, manifest=manifest, files=files)
