"""CUTLASS, where a recipe names it among `max_autotune_gemm_backends`: where it lies, and that none of it is missing.

Inductor renders a source for every candidate and has nvcc compile it (torch/_inductor/codegen/cutlass); the winner's
object goes into the artifact's library. Where it cannot have either, torch logs a warning and tunes without: here the
build is refused. CUTLASS is no part of torch's wheel; it lies where TORCHINDUCTOR_CUTLASS_DIR says.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from msgspec import structs

from aot.compile.multi_arch import MULTI_ARCH, require_toolkit, wants_multi_arch
from aot.compile.options import GEMM_BACKENDS, gemm_backends
from aot.compile.toolchain import SEARCH_PATH
from aot.config import whole_environ
from aot.errors import BackendFailed, InvalidSpec
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe
from aot.schema.report import CompileReport

CUTLASS_DIR = "TORCHINDUCTOR_CUTLASS_DIR"
_ASKED = f"option {GEMM_BACKENDS} names CUTLASS"
# What torch links into its own path, and what it has nvcc look in.
_PARTS = ("python/cutlass_library", "python/cutlass_cppgen", "python/pycute", "include/cutlass", "tools/util/include")
# What the sources include of the toolkit beside the compiler's own headers: a slim one may lack it.
_HEADER = "curand_kernel.h"
# What torch imports of it, in this order (torch/_inductor/codegen/cutlass/utils.py).
_MODULES = (
    *("cutlass_cppgen", "cutlass_library.generator", "cutlass_library.library", "cutlass_library.manifest"),
    "pycute",
)
_VERSION = re.compile(r"^#define CUTLASS_(?:MAJOR|MINOR|PATCH) +(\d+)", re.MULTILINE)


def wants_cutlass(recipe: Recipe) -> bool:
    return "CUTLASS" in gemm_backends(recipe)


def check_cutlass(
    recipe: Recipe, profile: Profile, *, environ: Mapping[str, str] | None = None, search_path: str = SEARCH_PATH
) -> Path | None:
    """Return where CUTLASS lies for a recipe that asks for it, None for any other.

    Raises InvalidSpec where the profile or another option has no room for it, and BackendFailed where it, or nvcc, is
    missing on this worker.
    """
    if not wants_cutlass(recipe):
        return None
    if profile.capability.family != "cuda":
        raise InvalidSpec(
            f"{_ASKED}, which is for cards of NVIDIA; the profile is {profile.capability}",
            hint="name other backends, or ask for a profile of such a card",
        )
    if wants_multi_arch(recipe):
        raise InvalidSpec(
            f"{_ASKED}, whose kernels are for one architecture, and option {MULTI_ARCH} asks for several",
            hint="leave out one of them",
        )
    place = find_cutlass(whole_environ() if environ is None else environ)
    if missing := next((part for part in _PARTS if not (place / part).is_dir()), None):
        raise _failed(
            f"{_ASKED}, and this worker has none: there is no {missing} in {place}",
            f"lay CUTLASS out on the worker and name its directory in {CUTLASS_DIR} (docs/gpu.md), or leave it out",
        )
    _require_header(place, require_toolkit(f"{_ASKED}, which", "CUTLASS", search_path=search_path))
    return place


def _require_header(place: Path, toolkit: Path) -> None:
    """Raises BackendFailed where no source would compile: torch counts such candidates as slow, and takes others."""
    own, targets = toolkit.parent / "include", toolkit.parent / "targets"
    if not any((one / _HEADER).is_file() for one in (own, *targets.glob("*/include"), place / "include")):
        raise _failed(
            f"{_ASKED}, whose sources need {_HEADER}, and this worker has none: looked in {own} and "
            f"{place / 'include'}",
            "install cuRAND's headers with the CUDA toolkit (libcurand-dev), or leave CUTLASS out",
        )


def find_cutlass(environ: Mapping[str, str]) -> Path:
    """Return where torch looks for CUTLASS, as of 2.11: whether it is there is not asked.

    Raises BackendFailed without torch.
    """
    if named := environ.get(CUTLASS_DIR):
        return Path(named).resolve()
    found = find_spec("torch")  # looks, and imports nothing
    for place in (found and found.submodule_search_locations) or ():
        return Path(place).resolve().parent / "third_party" / "cutlass"
    raise _failed(f"{_ASKED}, and torch, which would use it, is not installed", "install torch on the worker")


def report_cutlass(report: CompileReport, place: Path | None) -> CompileReport:
    """Return the report of a build with the CUTLASS at `place` among its toolchain, by the version its header says."""
    if place is None:
        return report
    header = place / "include" / "cutlass" / "version.h"
    version = ".".join(_VERSION.findall(header.read_text())) if header.is_file() else ""
    return structs.replace(report, toolchain={**report.toolchain, "cutlass": version or "unknown"})


def import_cutlass(recipe: Recipe) -> None:
    """Have torch import it, in the compile child. Raises BackendFailed where that fails: torch would go on without."""
    if not wants_cutlass(recipe):
        return
    from torch._inductor.codegen.cutlass.utils import try_import_cutlass

    if try_import_cutlass():
        return
    raise _failed(
        f"{_ASKED}, and torch cannot import it: {_why_not_imported()}",
        "install what is missing on the worker, lay out a CUTLASS of the release that this torch is made for, or "
        "leave it out",
    )


def _why_not_imported() -> str:
    for name in _MODULES:
        try:
            import_module(name)
        except ImportError as error:
            return f"{name}: {error}"
    return "torch does not say why"


def _failed(message: str, hint: str) -> BackendFailed:
    return BackendFailed(message, hint=hint, details={"backend": "cutlass", "region": "", "log": ""})
