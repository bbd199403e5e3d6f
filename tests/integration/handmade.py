"""Bundles whose shared object is written by hand, for tests of loading and proving that need no real build."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import torch

from aot.bundle import StoredBundle, write_bundle
from aot.environment import observe_node
from aot.facts import read_elf
from aot.facts.kernels import read_code_facts
from aot.schema.artifact import (
    Artifact,
    CallSpec,
    ConstantKind,
    ConstantMeta,
    CoverageKind,
    Leaf,
    LeafKind,
    TensorMeta,
)
from aot.schema.digest import Digest
from aot.schema.factor import Fingerprint
from aot.schema.guard import InputGuard
from aot.schema.profile import Profile
from aot.schema.recipe import Dimension, Recipe
from aot.schema.report import Qualification
from aot.schema.spec import File
from tests.builders import a_coverage, a_fingerprint, a_manifest, a_profile, a_spec, a_toolchain, altered, an_artifact

HERE = Path(__file__).parent
FACTORY = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((4,), 1.5))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x * self.scale + self.calls

def make():
    return {
        "module": Scaled(),
        "args": (torch.randn(3, 4),),
        "dimensions": {"batch": (1, 32)},
        "dynamic_shapes": {"x": {0: "batch"}},
    }
"""


class OnDisk(NamedTuple):
    """A source as a builder opens it."""

    tree: Path | None
    entry: str
    program: Path | None = None
    weights: tuple[Path, ...] = ()


def write_source(place: Path, text: str = FACTORY) -> OnDisk:
    place.mkdir(parents=True, exist_ok=True)
    (place / "scaled.py").write_text(text)
    return OnDisk(tree=place, entry="scaled:make")


def this_profile(level: str = "") -> Profile:
    """The profile of this host's torch and CPU, or of a lower `level`, which a proof then runs on an emulator."""
    own = observe_node().cpu
    assert own is not None
    toolchain = a_toolchain(torch=str(torch.__version__))
    return a_profile("here", capability=f"cpu:{level}" if level else str(own), toolchain=toolchain)


def build_library(place: Path, *faults: str) -> Path:
    """Compile the hand-written object with the given macros."""
    place.mkdir(parents=True, exist_ok=True)
    library = place / "handmade.so"
    torch_libraries = Path(torch.__file__).parent / "lib"
    macros = [f"-D{fault}" for fault in faults]
    command = ["gcc", "-shared", "-fPIC", "-O1", *macros, str(HERE / "handmade.c"), "-o", str(library)]
    subprocess.run([*command, f"-L{torch_libraries}", "-ltorch_cpu"], check=True, capture_output=True)
    return library


def describe_library(library: Path, profile: Profile, **deviations: object) -> Artifact:
    content = library.read_bytes()
    elf = read_elf(library)
    fields: dict[str, object] = {
        "files": (File(path="lib/handmade.so", digest=Digest.of(content), size_bytes=len(content)),),
        "input_guards": (
            InputGuard(kind="device", input=0, value="cpu"),
            InputGuard(kind="dtype", input=0, value="float32"),
            InputGuard(kind="rank", input=0, low=2),
            InputGuard(kind="range", input=0, dim=0, low=1, high=32),
            InputGuard(kind="size", input=0, dim=1, low=4),
            InputGuard(kind="stride", input=0, strides=(4, 1)),
            InputGuard(kind="no-grad"),
        ),
        "inputs": (TensorMeta(path="args[0]", dtype="float32", shape=("batch", 4), stride=(4, 1)),),
        "outputs": (TensorMeta(path="output", dtype="float32", shape=("batch", 4), stride=(4, 1)),),
        "constants": (
            ConstantMeta(name="scale", kind=ConstantKind.PARAMETER, dtype="float32", shape=(4,), stride=(1,)),
            ConstantMeta(
                name="calls", kind=ConstantKind.BUFFER, dtype="float32", shape=(1,), stride=(1,), mutated=True
            ),
        ),
        "coverage": a_coverage(),
        "call": a_call(),
        "elf": elf,
        "code": read_code_facts(library),
        "speeds": (),
    }
    return an_artifact(capability=profile.capability, torch=profile.toolchain.torch, **(fields | deviations))


def a_call() -> CallSpec:
    from torch.utils._pytree import tree_structure, treespec_dumps

    leaf = Leaf(kind=LeafKind.TENSOR, path="args[0]")
    return CallSpec(
        in_spec=treespec_dumps(tree_structure(((0,), {}))),
        out_spec=treespec_dumps(tree_structure(0)),
        inputs=(leaf,),
        outputs=(Leaf(kind=LeafKind.TENSOR, path="output"),),
        parameters=("x",),
    )


def write_handmade(
    place: Path,
    *faults: str,
    recipe: Recipe | None = None,
    fingerprint: Fingerprint | None = None,
    profile: Profile | None = None,
    **deviations: object,
) -> StoredBundle:
    """Write a bundle of one hand-written artifact with the given faults."""
    library = build_library(place / "build", *faults)
    profile = profile or this_profile()
    artifact = describe_library(library, profile, **deviations)
    return _write(place, [(artifact, library)], recipe or Recipe(), fingerprint, profile)


def write_two(place: Path, *, right: tuple[str, ...], wrong: tuple[str, ...]) -> StoredBundle:
    """Write a bundle of two artifacts: one for batch 1 to 32, and after it one for batch 4 alone."""
    wide, narrow = build_library(place / "wide", *right), build_library(place / "narrow", *wrong)
    only_four = a_coverage(kind=CoverageKind.BUCKET, dimensions=(Dimension(name="batch", low=4, high=4),))
    four = describe_library(narrow, this_profile(), coverage=only_four)

    def at_four(guard: InputGuard) -> InputGuard:
        return altered(guard, low=4, high=4) if guard.kind == "range" else guard

    artifacts = [
        (describe_library(wide, this_profile()), wide),
        (altered(four, input_guards=tuple(map(at_four, four.input_guards))), narrow),
    ]
    return _write(place, artifacts, Recipe())


def _write(
    place: Path,
    artifacts: list[tuple[Artifact, Path]],
    recipe: Recipe,
    fingerprint: Fingerprint | None = None,
    profile: Profile | None = None,
) -> StoredBundle:
    profile = profile or this_profile()
    manifest = a_manifest(
        a_spec("scaled", profile=profile.name, recipe=recipe),
        profile=profile,
        artifacts=tuple(artifact for artifact, _ in artifacts),
        canaries=(),
        qualification=Qualification(),
        # Without factors nothing is compared: what the fingerprint is worth has tests of its own.
        fingerprint=fingerprint or altered(a_fingerprint(), factors=()),
    )
    files = {artifact.files[0].digest: library for artifact, library in artifacts}
    return write_bundle(place / "bundle", manifest=manifest, files=files)
