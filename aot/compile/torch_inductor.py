"""Inductor's private parts that a reproducible, portable build needs, in one place: torch 2.11 to 2.13.

Each is looked up and left alone where a release does not have it; what then suffers is speed or byte-equality,
never correctness, except for the instruction set, whose absence is an error.
"""

import atexit
import contextlib
import functools
import os
import threading
from pathlib import Path
from typing import Any

from aot.compile.torch_commands import compiler_commands
from aot.config import whole_environ
from aot.errors import BackendFailed
from aot.schema.capability import Capability

_REQUIRED = (
    "always_keep_tensor_constants",
    "joint_graph_constant_folding",
    "aot_inductor.package_constants_in_so",
    "cpp.weight_prepack",
    "cpp.simdlen",
)


# Sets above x86-64-v4 by the feature that names them, the larger first (torch/_inductor/cpu_vec_isa.py).
_LARGER = (("amx_tile", "VecAMX"), ("avx512_vnni", "VecAVX512VNNI"))


def load_compiler() -> None:
    """Import what every build needs of the compiler: two seconds that belong to no later phase."""
    import torch._inductor.compile_fx
    import torch._inductor.select_algorithm
    import torch.export._trace
    import torch.utils.cpp_extension  # noqa: F401

    threading.Thread(target=_hash_triton, name="hash-triton", daemon=True).start()


def start_workers() -> None:
    """Have Inductor start the processes that compile kernels, which take some seconds to be there.

    It would start them at the first kernel, and compile one after the other by itself until they are: all kernels of a
    small program, and the first product's candidates of every tuned one (torch 2.11, H200: 2 s of 6.4 s that a block of
    a decoder took). What has started keeps the environment of that moment: called again, this starts others where
    Triton's variables have changed, as a source may have them when it is imported.
    """
    # Without workers Inductor does what it would have done.
    with contextlib.suppress(Exception):
        _start_workers(frozenset(item for item in whole_environ().items() if item[0].startswith("TRITON_")))


@functools.cache
def _start_workers(told: frozenset[tuple[str, str]]) -> None:
    from torch._inductor import async_compile

    async_compile.AsyncCompile.process_pool.cache_clear()
    async_compile.AsyncCompile._ready_future = None
    async_compile.AsyncCompile.use_process_pool()
    # Torch waits for them when a process ends, for seconds where they have just begun to start. Ours end with the
    # child, whose supervisor ends all that it has started.
    atexit.unregister(async_compile.shutdown_compile_workers)


def _hash_triton() -> None:
    """Have Triton compute the key of itself, which it then keeps: a hash over half a gigabyte.

    Inductor asks for it in the midst of the first compile, and waits; beside what is imported and exported it costs
    nothing, for hashing and reading leave the interpreter to others.
    """
    from torch._inductor import codecache

    # Without it, or with one that fails, Inductor does what it would have done.
    with contextlib.suppress(Exception):
        codecache.triton_key()


def known_options() -> dict[str, Any]:
    """Return every Inductor option by name, with the value it has now."""
    from torch._inductor import config

    return dict(config.get_config_copy())


def pin_instruction_set(capability: Capability) -> str:
    """Make Inductor generate for `capability` and for nothing else, without probing; return the set's name.

    Left alone it takes the builder's best set of the wanted width: VNNI, AMX and bf16 instructions are no part of
    x86-64-v4, and code with them dies of SIGILL on the next machine. Probing costs seven seconds and is not needed:
    what the compiler cannot do fails the build.
    """
    from torch._inductor import cpu_vec_isa

    bases = {"x86-64-v3": "VecAVX2", "x86-64-v4": "VecAVX512"}
    name = bases.get(capability.level, "VecNEON" if capability.level.startswith("arm") else "")
    if name == "VecAVX512":
        name = next((larger for feature, larger in _LARGER if feature in capability.features), name)
    if not hasattr(cpu_vec_isa, "valid_vec_isa_list"):
        raise BackendFailed(
            "this torch has no cpu_vec_isa.valid_vec_isa_list, so the instruction set cannot be pinned",
            hint="use a torch release from 2.11 to 2.13",
            details={"backend": "inductor"},
        )
    if name == "VecAMX":
        # Linux gives the registers to a process that asks; Inductor asks while it probes, and tuning runs candidates.
        _ask_for_tiles()
    chosen = [_always(getattr(cpu_vec_isa, name))] if name else []
    cpu_vec_isa.valid_vec_isa_list = lambda: chosen
    return str(chosen[0]) if chosen else "scalar"


def _ask_for_tiles() -> None:
    from aot.runtime.tiles import ask_for_tiles

    ask_for_tiles()


def _always(base: type) -> Any:
    """An instance of an instruction set that counts as usable without having been tried."""
    pinned = type(f"Pinned{base.__name__}", (base,), {"__bool__": lambda self: True, "__hash__": base.__hash__})
    return pinned()


def use_header_directory(headers: Path) -> None:
    """Let Inductor find and put its precompiled headers in `headers`, whatever TMPDIR says."""
    from torch._inductor import codecache

    for name, place in (("_HEADER_DIR", headers), ("_HEADER_LOCK_DIR", headers / "locks")):
        if hasattr(codecache, name):
            setattr(codecache, name, str(place))


def share_headers(shared: Path, headers: Path) -> int:
    """Make every precompiled header of `shared` appear in `headers`, and return how many there are.

    Links, so that what is missing can be built beside them while the shared directory stays read-only.
    """
    headers.mkdir(parents=True, exist_ok=True)
    found = [path for path in shared.iterdir() if path.is_file()] if shared.is_dir() else []
    for path in found:
        with contextlib.suppress(FileExistsError):
            os.symlink(path, headers / path.name)
    return len(found)


def compile_program(program: Any, package: Path, settings: dict[str, Any]) -> None:
    """Compile an exported program into the archive `package`. Raises whatever Inductor raises."""
    import torch
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    settings = _known_settings(settings)
    # Files are named after `model_name_for_generated_files` in a directory named after the graph's code, which says
    # nothing of sizes, and files that exist are not written again: the second bucket would get the first's code.
    for earlier in Path(cache_dir()).glob(f"*/{settings.get('aot_inductor.model_name_for_generated_files')}.*"):
        earlier.unlink()
    with torch.no_grad(), compiler_commands():
        aoti_compile_and_package(program, package_path=str(package), inductor_configs=dict(settings))


def _known_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out what this release does not have, unless results depend on it: then it raises BackendFailed."""
    known = known_options()
    if missing := [name for name in _REQUIRED if name in settings and name not in known]:
        raise BackendFailed(
            f"this torch has no option {missing[0]}, so weights cannot be kept outside safely",
            hint="use a torch release from 2.11 to 2.13",
            details={"backend": "inductor"},
        )
    return {name: value for name, value in settings.items() if name in known}
