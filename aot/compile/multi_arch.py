"""The option `aot_inductor.emit_multi_arch_kernel`: kernels as fat binaries, machine code with PTX beside it.

Inductor has nvcc (torch 2.11) or fatbinary beside it (2.13) pack them (torch/_inductor/codecache.py,
`_compile_fatbin`): both are of the CUDA toolkit, which neither torch nor Triton bring. What comes out is read from the
bytes (aot.facts.targets): only PTX that a newer card takes makes an artifact fit there, and Triton writes PTX for
sm_90 and newer with the suffix `a`, for that architecture alone.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from aot.compile.toolchain import SEARCH_PATH
from aot.errors import BackendFailed, InvalidSpec
from aot.facts.targets import Fallback
from aot.schema.capability import Capability
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe

MULTI_ARCH = "aot_inductor.emit_multi_arch_kernel"
# Below site-packages, where NVIDIA's own wheels put the toolkit's programs.
_WHEELS = ("cu13/bin", "cuda_nvcc/bin")


def wants_multi_arch(recipe: Recipe) -> bool:
    return bool(recipe.options.get(MULTI_ARCH))


def check_multi_arch(recipe: Recipe, profile: Profile, *, search_path: str = SEARCH_PATH) -> None:
    """Raises InvalidSpec for a profile that has no fat binaries, and BackendFailed where nvcc is not installed."""
    if not wants_multi_arch(recipe):
        return
    if profile.capability.family != "cuda":
        raise InvalidSpec(
            f"option {MULTI_ARCH} is for cards of NVIDIA, the profile is {profile.capability}",
            hint="leave it out of options, or ask for a profile of such a card",
        )
    require_toolkit(f"option {MULTI_ARCH}", "the option", search_path=search_path)


def require_toolkit(wish: str, part: str, *, search_path: str) -> Path:
    """Return where nvcc is. Raises BackendFailed where it is nowhere: `wish` needs it, without `part` nothing does."""
    if (toolkit := find_toolkit(search_path=search_path)) is None:
        raise BackendFailed(
            f"{wish} needs nvcc of the CUDA toolkit, and this worker has none: looked in {search_path} "
            "and among NVIDIA's wheels",
            hint="install the toolkit of torch's CUDA release on the worker (nvidia-cuda-nvcc, or /usr/local/cuda), "
            f"or leave {part} out",
            details={"backend": "nvcc", "region": "", "log": ""},
        )
    return toolkit


def find_toolkit(*, search_path: str = SEARCH_PATH) -> Path | None:
    """Return the directory that nvcc and fatbinary are in, links followed: a sandbox shows no /etc/alternatives."""
    spec = find_spec("nvidia")  # looks, and imports nothing
    wheels = [Path(place) / below for place in (spec and spec.submodule_search_locations) or () for below in _WHEELS]
    for directory in (*map(Path, search_path.split(":")), *wheels):
        if os.access(directory / "nvcc", os.X_OK):
            return (directory / "nvcc").resolve().parent
    return None


def multi_arch_note(recipe: Recipe, capability: Capability, fallback: Fallback | None) -> str | None:
    """What the option came to, for the report; None where it was not set."""
    if not wants_multi_arch(recipe):
        return None
    if fallback is None:
        return (
            f"option {MULTI_ARCH}: the kernels have no PTX that a newer card takes (from sm_90 on Triton writes it for "
            f"one architecture alone), so the artifact is for {capability} as without it"
        )
    return (
        f"option {MULTI_ARCH}: tuned for {capability}; cards from {fallback.capability.target} on run it untuned, "
        f"where their driver reads PTX {fallback.ptx}"
    )
