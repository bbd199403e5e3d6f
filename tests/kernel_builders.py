"""Values for tests of the route `kernel`, as `tests.builders` has them for models."""

from typing import Any

from aot.compile.kernels.run import KERNEL_RECIPE
from aot.schema.artifact import Artifact, Coverage, CoverageKind, Kernel, Launch, LaunchArgument
from aot.schema.capability import Capability
from aot.schema.guard import HostGuard
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile, kernel_profile_name
from aot.schema.recipe import Route
from aot.schema.report import Qualification
from aot.schema.spec import KernelSignature, KernelSource, Spec
from tests.builders import a_blob, a_file, a_manifest, a_profile, a_toolchain

TRITON = "3.9.0"


def a_signature(name: str = "f32", **deviations: Any) -> KernelSignature:
    """Of `add(x, y, out, n, BLOCK: tl.constexpr)`."""
    fields: dict[str, Any] = {
        "name": Name(name),
        "types": {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"},
        "constants": {"BLOCK": 1024},
        "divisible": ("x", "y", "out"),
    }
    return KernelSignature(**(fields | deviations))


def a_kernel_source(**deviations: Any) -> KernelSource:
    fields: dict[str, Any] = {
        "tree": a_blob(b"kernel tree"),
        "entry": "kernels:add",
        "signatures": (a_signature(),),
    }
    return KernelSource(**(fields | deviations))


def a_kernel_profile(capability: str = "cuda:sm_90", *, triton: str = TRITON, **deviations: Any) -> Profile:
    name = kernel_profile_name(Capability(capability), triton)
    toolchain = a_toolchain(triton=triton)
    return a_profile(name, capability=capability, **({"toolchain": toolchain} | deviations))


def a_kernel_spec(profile: Profile | None = None, **deviations: Any) -> Spec:
    fields: dict[str, Any] = {
        "namespace": Namespace("default"),
        "name": Name("add"),
        "source": a_kernel_source(),
        "profile": (profile or a_kernel_profile()).name,
        "recipe": KERNEL_RECIPE,
    }
    return Spec(**(fields | deviations))


def a_kernel_artifact(capability: str = "cuda:sm_90a", *, driver: str = "580.65.06", **deviations: Any) -> Artifact:
    kind = "cubin" if capability.startswith("cuda") else "hsaco"
    guards = [HostGuard(kind="capability", value=capability)]
    guards += [HostGuard(kind="driver", value=driver)] if kind == "cubin" else []
    fields: dict[str, Any] = {
        "region": "f32",
        "instances": (),
        "route": Route.KERNEL,
        "capability": Capability(capability),
        "coverage": Coverage(kind=CoverageKind.EXACT),
        "files": (a_file(f"{kind}/f32.{kind}", b"code object"),),
        "host_guards": tuple(guards),
        "kernels": (Kernel(name="add", choice="num_stages=3, num_warps=4"),),
        "tuned": False,
        "launch": Launch(
            entry="add",
            arguments=tuple(
                LaunchArgument(name=name, type=kind) for name, kind in (("x", "*fp32"), ("out", "*fp32"), ("n", "i32"))
            ),
            threads=128,
            shared_bytes=0,
        ),
    }
    return Artifact(**(fields | deviations))


def a_kernel_manifest(capability: str = "cuda:sm_90", **deviations: Any) -> Manifest:
    """As it is pushed: untuned, and nothing proven."""
    profile = deviations.pop("profile", a_kernel_profile(capability))
    spec = deviations.pop("spec", a_kernel_spec(profile))
    code = {"cuda:sm_90": "cuda:sm_90a"}.get(capability, capability)
    fields = {"artifacts": (a_kernel_artifact(code),), "qualification": Qualification(), "canaries": ()}
    return a_manifest(spec, profile=profile, **(fields | deviations))
