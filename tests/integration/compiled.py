"""Sources and builds for tests of `aot.compile`: each build is made once a process, by the real child.

The headers that all of them share outlive the run: the first run on a machine pays about 20 seconds for them.
"""

import atexit
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from aot.bundle import StoredBundle, write_bundle
from aot.compile.program import Program, open_factory
from aot.compile.run import Compiled, compile_source
from aot.compile.strip import strip_program
from aot.compile.toolchain import observe_toolchain
from aot.environment import observe_environment
from aot.runtime.constants import read_tensors
from aot.runtime.container import Container
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.artifact import Artifact, ConstantKind
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.recipe import Dimension, Recipe, Regions
from aot.schema.report import Qualification
from aot.schema.spec import Limits, Spec
from tests.builders import a_manifest, a_spec

LIMITS = Limits(wall_seconds=300, memory_bytes=6 << 30, processes=64, disk_bytes=4 << 30)

# Everything that can go silently wrong with weights outside: a bias of four elements, scalars, a counter, tied
# weights, a plain attribute, a literal, a buffer that no state dict has; and outputs of several kinds.
EVERYTHING = """
import torch
from torch import nn


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.back = nn.Linear(32, 16, bias=False)
        self.second = nn.Linear(16, 4)
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.one = nn.Parameter(torch.tensor([0.5]))
        self.tied = nn.Linear(16, 32, bias=False)
        self.tied.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("positions", torch.arange(4), persistent=False)
        self.gain = torch.tensor([2.0, 3.0, 4.0, 5.0])

    def forward(self, x, *, mask=None):
        self.calls.add_(1)
        self.steps.add_(1)
        hidden = torch.relu(self.first(x) + self.tied(x))
        y = self.second(self.back(hidden)) * self.gain * self.temperature.exp() * (self.one * 2)
        y = y + self.positions + self.calls + self.steps + torch.tensor(0.25)
        return {"y": y if mask is None else y * mask, "rows": x.shape[0]}


def make():
    return {
        "module": Everything(),
        "args": (torch.randn(4, 16),),
        "kwargs": {"mask": torch.ones(4, 1)},
        "dimensions": {"batch": (1, 8)},
        "dynamic_shapes": {"x": {0: "batch"}, "mask": {0: "batch"}},
    }
"""

STATELESS = """
import torch


def make():
    module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    return {"module": module, "args": (torch.randn(4, 16),), "dimensions": {"batch": (2, 8)},
            "dynamic_shapes": {"input": {0: "batch"}}}
"""

STACK = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 4)
        self.down = nn.Linear(4, 16)

    def forward(self, x, **extra):
        return x + self.down(torch.tanh(self.up(self.norm(x)))) * extra["scale"]


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=x.mean())
        return self.head(x)


def make():
    return {"module": Stack(), "args": (torch.randn(4, 16),), "dimensions": {"batch": (2, 8)},
            "dynamic_shapes": {"x": {0: "batch"}}}
"""

PLAIN = Recipe()


@dataclass(frozen=True)
class Source:
    tree: Path | None
    entry: str = "model:make"
    program: Path | None = None
    weights: tuple[Path, ...] = ()


def here(name: str = "here") -> Profile:
    """The profile that this machine is."""
    cpu = observe_environment().node.cpu
    assert cpu is not None
    return Profile(name=Name(name), capability=Capability(cpu), toolchain=observe_toolchain().toolchain)


def shared_headers() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aot-tests"


def sandbox() -> Bubblewrap | None:
    """Bubblewrap where it works; builds come out the same without it."""
    found = find_sandbox()
    return found if isinstance(found, Bubblewrap) else None


def write_source(tree: Path, code: str = EVERYTHING) -> Source:
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "model.py").write_text(code)
    return Source(tree)


def scratch_directory(name: str) -> Path:
    directory = Path(mkdtemp(prefix=f"aot-{name}-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def build(
    source: Source,
    scratch: Path,
    *,
    recipe: Recipe = PLAIN,
    limits: Limits = LIMITS,
    isolated: bool = True,
    shared: Path | None = None,
    profile: Profile | None = None,
    **options: Any,
) -> Compiled:
    spec: Spec = a_spec(recipe=recipe, limits=limits)
    return compile_source(
        source,
        spec,
        profile or here(),
        scratch=scratch,
        sandbox=sandbox() if isolated else None,
        shared_caches=shared,
        **options,
    )


@cache
def everything() -> tuple[Compiled, Source]:
    """EVERYTHING with batch 1..8, in the sandbox where there is one."""
    place = scratch_directory("everything")
    source = write_source(place / "tree")
    return build(source, place / "scratch", shared=shared_headers()), source


@cache
def bucketed() -> tuple[Compiled, Source]:
    """EVERYTHING for batches of 2 and 8 alone."""
    place = scratch_directory("buckets")
    source = write_source(place / "tree")
    recipe = Recipe(dimensions=(Dimension(name="batch", buckets=(2, 8)),))
    return build(source, place / "scratch", recipe=recipe, shared=shared_headers()), source


@cache
def in_regions() -> tuple[Compiled, Source]:
    """STACK by regions: one artifact for its three blocks."""
    place = scratch_directory("regions")
    source = write_source(place / "tree", STACK)
    return build(source, place / "scratch", recipe=Recipe(regions=Regions.AUTO), shared=shared_headers()), source


@cache
def stripped() -> tuple[Compiled, Source]:
    """EVERYTHING as an exported program without its weights, for batches of 2 to 8."""
    place = scratch_directory("stripped")
    source = write_source(place / "tree")
    program = open_module(source, seed=3)
    batch = torch.export.Dim("batch", min=2, max=8)
    exported = torch.export.export(
        program.module,
        program.examples[0].args,
        dict(program.examples[0].kwargs),
        dynamic_shapes={"x": {0: batch}, "mask": {0: batch}},
    )
    torch.export.save(exported, place / "full.pt2")
    strip_program(place / "full.pt2", place / "stripped")
    compiled = build(Source(None, program=place / "stripped"), place / "scratch", shared=shared_headers())
    return compiled, source


UNFROZEN = {"whole": everything, "buckets": bucketed, "regions": in_regions, "stripped": stripped}


def library_of(compiled: Compiled, index: int = 0) -> Path:
    artifact = compiled.artifacts[index]
    return next(compiled.paths[file.digest] for file in artifact.files if file.path == "lib/model.so")


def bundle_of(
    compiled: Compiled,
    place: Path,
    *,
    name: str = "everything",
    profile: Profile | None = None,
    artifacts: tuple[Artifact, ...] = (),
    files: Mapping[Digest, Path] | None = None,
    **spec: Any,
) -> StoredBundle:
    """The build as an unproven bundle, or one of other `artifacts` and `files`; `spec` is what else was asked for."""
    profile = profile or here()
    manifest = a_manifest(
        a_spec(name, profile=profile.name, **spec),
        profile=profile,
        artifacts=artifacts or compiled.artifacts,
        canaries=(),
        qualification=Qualification(),
        fingerprint=compiled.fingerprint,
        compile_report=compiled.report,
    )
    return write_bundle(place / "bundle", manifest=manifest, files=dict(compiled.paths if files is None else files))


def open_module(source: Source, *, seed: int) -> Program:
    """The source's program with the weights of another checkpoint."""
    assert source.tree is not None
    torch.manual_seed(seed)
    sys.modules.pop("model", None)  # of another source
    try:
        program = open_factory(source.tree, source.entry)
    finally:
        sys.path.remove(str(source.tree))
    program.module.requires_grad_(False)
    return program


def constants_for(compiled: Compiled, artifact: Artifact, module: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """Return what the artifact asks for: the live module's own tensors, and the lifted ones of the bundle."""
    stored = next((file for file in artifact.files if file.path.startswith("constants/")), None)
    lifted = read_tensors(compiled.paths[stored.digest]) if stored else {}
    tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    return {
        meta.name: lifted[meta.name] if meta.kind is ConstantKind.CONSTANT else tensors[meta.name]
        for meta in artifact.constants
    }


def bound(compiled: Compiled, module: torch.nn.Module, index: int = 0) -> Container:
    container = Container.open(library_of(compiled, index), device="cpu", num_models=1)
    container.bind(constants_for(compiled, compiled.artifacts[index], module))
    return container
