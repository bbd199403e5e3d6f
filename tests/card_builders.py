"""A package as from a card, for tests on machines without one: kernels compiled here, and a library of C."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.bundle.hashing import blob_of
from aot.compile.binaries import record_binaries
from aot.compile.host import host_guards
from aot.compile.kernels.kept import KEPT_FILE, KeptKernels, collect_kept, pack_kept
from aot.compile.run import Compiled
from aot.facts import read_elf
from aot.schema.artifact import Artifact, Kernel
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard
from aot.schema.manifest import Manifest
from aot.schema.profile import Profile
from tests.builders import a_file, a_gpu_profile, a_manifest, a_spec, a_toolchain, altered, an_artifact

OF_PROGRAM = (
    HostGuard(kind="deterministic", value="false"),
    HostGuard(kind="default_dtype", value="float32"),
    HostGuard(kind="matmul_precision", value="highest"),
    HostGuard(kind="conv_precision", value="tf32"),
)


@dataclass(frozen=True)
class Package:
    """A proven package, and where each of its blobs lies."""

    manifest: Manifest
    paths: dict[Digest, Path]

    @property
    def artifact(self) -> Artifact:
        return self.manifest.artifacts[0]


def a_card(triton: str, **deviations: Any) -> Profile:
    """An H100 with this release of Triton."""
    toolchain = a_toolchain(torch="2.13.0+cu130", cuda="13.0", triton=triton)
    return a_gpu_profile(**({"toolchain": toolchain} | deviations))


def kept_of(built: Compiled, scratch: Path) -> KeptKernels:
    """What a build of kernels (`tests.integration.cross_builds.build`) in `scratch` leaves for other cards."""
    cubins = {file.path: built.paths[file.digest] for artifact in built.artifacts for file in artifact.files}
    return collect_kept(cubins, scratch / "build" / "cache" / "triton")


def a_package(built: Compiled, kept: KeptKernels | None, place: Path, *, profile: Profile) -> Package:
    """Put what `built` has into a package for `profile`, proven by its manifest's word."""
    place.mkdir(parents=True, exist_ok=True)
    library = place / "model.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-march=x86-64-v2", "-Wl,--build-id=none", "-x", "c", "-", "-o", str(library)],
        input="#include <stdlib.h>\nvoid *run(void) { return malloc(8); }\n",
        text=True,
        check=True,
    )
    files = [a_file("lib/model.so", library.read_bytes())]
    files += [a_file(file.path, built.paths[file.digest].read_bytes()) for one in built.artifacts for file in one.files]
    paths = {blob_of(library).digest: library, **built.paths}
    packed = None
    if kept is not None:
        (place / "kept").write_bytes(pack_kept(kept))
        packed = a_file(KEPT_FILE, pack_kept(kept))
        paths[packed.digest] = place / "kept"
    elf, code = read_elf(library), Capability("cuda:sm_90a")
    torch = profile.toolchain.torch
    artifact = an_artifact(
        capability=code,
        torch=torch,
        files=tuple(files),
        kept=packed,
        elf=elf,
        host_guards=(*host_guards(elf, profile, torch=torch, capability=code, of_module=True), *OF_PROGRAM),
        kernels=(Kernel(name="gemm", choice="BLOCK_M=64", candidates=12, best_us=11.0, next_us=12.5),),
        facts={"mode": "max-autotune", "cuda_graphs": "capture"},
    )
    artifact = record_binaries(artifact, paths, profile)
    spec = a_spec(profile=profile.name)
    return Package(a_manifest(spec, profile=profile, artifacts=(artifact,)), paths)


def without_kept(package: Package) -> Manifest:
    return altered(package.manifest, artifacts=(altered(package.artifact, kept=None),))
