"""Every option of torch.compile honoured or refused with a reason, never ignored (route `package`)."""

import platform
from collections.abc import Mapping
from typing import Any

from aot.errors import InvalidSpec
from aot.schema.capability import Capability
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Purpose, Recipe, Regions, Route

_OURS = "it is part of what makes an artifact portable and bindable, so this product sets it"
_PROFILE = "the profile decides it: ask for another profile"
_MODE = "CUDA graphs are captured when an artifact is loaded: set mode to reduce-overhead or max-autotune"
_UNSAFE = "with weights outside the code it gives silently wrong results for the next checkpoint"
_FORM = "a bundle stores the shared object and its kernels as files of their own"

REFUSED: dict[str, str] = {
    "always_keep_tensor_constants": _UNSAFE,
    "joint_graph_constant_folding": _UNSAFE,
    "cpp.weight_prepack": _UNSAFE + "; set freeze = true to pack the weights of one checkpoint",
    "freezing": "set freeze = true in the recipe, which ties the bundle to its weights",
    "freezing_discard_parameters": "set freeze = true in the recipe, which ties the bundle to its weights",
    "aot_inductor.use_runtime_constant_folding": _UNSAFE,
    "aot_inductor.package_constants_in_so": _OURS + "; set freeze = true for weights inside",
    "aot_inductor.package_constants_on_disk_format": _OURS,
    "aot_inductor.force_mmap_weights": _OURS,
    "aot_inductor.package": _FORM,
    "aot_inductor.package_cpp_only": _FORM,
    "aot_inductor.output_path": _FORM,
    "aot_inductor.embed_kernel_binary": _FORM,
    "aot_inductor.model_name_for_generated_files": _OURS,
    "aot_inductor.metadata": _OURS,
    "aot_inductor.dump_aoti_minifier": "it writes the program into files of the worker",
    "aot_inductor.enable_line_tables": "line tables hold paths of the builder",
    "aot_inductor.debug_compile": "debug symbols hold paths of the builder",
    "aot_inductor.debug_symbols": "debug symbols hold paths of the builder",
    "aot_inductor.cross_target_platform": _PROFILE,
    "aot_inductor_mode.compile_standalone": _FORM,
    "cpp_wrapper": "this route always has a C++ wrapper",
    "cpp.march": _PROFILE,
    "cpp.simdlen": _PROFILE,
    "cpp.vec_isa_ok": _PROFILE,
    "cpp.cxx": _PROFILE,
    "cpp.threads": _PROFILE,
    "cpp.dynamic_threads": _PROFILE,
    "cuda.arch": _PROFILE,
    "cuda.version": _PROFILE,
    "triton.cudagraphs": _MODE,
    "triton.cudagraph_trees": _MODE,
}

# Variables that would change generated code, or reach around the sandbox, behind the recipe's back.
_RESERVED_VARIABLES: dict[str, str] = {
    "PATH": "the compiler comes from the profile",
    "CXX": "the compiler comes from the profile",
    "CC": "the compiler comes from the profile",
    "HOME": "the child has a home of its own",
    "TMPDIR": "the child has a temporary directory of its own",
    "PWD": "the child has a working directory of its own",
    "PYTHONPATH": "put the code into the source tree",
    "PYTHONHOME": "the worker's Python is part of the profile",
    "PYTHONHASHSEED": "it is fixed, so that equal inputs give equal bytes",
    "LD_PRELOAD": "it would replace parts of the toolchain",
    "LD_LIBRARY_PATH": "it would replace parts of the toolchain",
    "OMP_NUM_THREADS": "the profile pins threads",
    "ATEN_CPU_CAPABILITY": "the profile decides it",
    "ONEDNN_MAX_CPU_ISA": "the profile decides it",
    "MKL_ENABLE_INSTRUCTIONS": "the profile decides it",
    "TRITON_CACHE_DIR": "caches are private to a build",
}
_RESERVED_PREFIXES = ("AOT_", "TORCHINDUCTOR_", "TORCH_COMPILE_", "LD_")
_VECTOR_BITS = {"x86-64": 0, "x86-64-v2": 0, "x86-64-v3": 256, "x86-64-v4": 512}


def check_recipe(recipe: Recipe) -> None:
    """Raises InvalidSpec for what the route `package` cannot do, naming what can."""
    if recipe.purpose is Purpose.TRAINING:
        raise InvalidSpec(
            "route package compiles for inference only, the recipe asks for training",
            hint='set routes = ["cache"], which keeps the backward pass',
        )
    if Route.PACKAGE not in recipe.routes:
        raise InvalidSpec("the recipe does not allow the route package", hint='add "package" to routes')
    if recipe.freeze and recipe.regions is Regions.AUTO:
        raise InvalidSpec(
            "freeze = true with regions = auto would put one block's weights into the code of all of them",
            hint='set regions = "whole" for a frozen build',
        )
    for name in recipe.options:
        if name in REFUSED:
            raise InvalidSpec(f"option {name} cannot be set: {REFUSED[name]}", hint="leave it out of options")
    for name in recipe.environment:
        reason = _RESERVED_VARIABLES.get(name)
        if reason is None and name.startswith(_RESERVED_PREFIXES):
            reason = "settings of the compiler go into the recipe's options, where they are part of the key"
        if reason:
            raise InvalidSpec(f"environment variable {name} cannot be set: {reason}", hint="leave it out")


def check_options(options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Compare options with Inductor's own configuration, `known` by name with defaults. Raises InvalidSpec."""
    import difflib

    for name, value in options.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            raise InvalidSpec(
                f"inductor has no option {name}",
                hint=f"did you mean {' or '.join(close)}?" if close else "see torch._inductor.list_options()",
            )
        default = known[name]
        kinds = (int, float) if type(default) is float else (type(default),)
        if default is not None and value is not None and type(value) not in kinds:
            wanted, found = type(default).__name__, type(value).__name__
            raise InvalidSpec(f"option {name} must be a {wanted}, found {found} {value!r}")


def inductor_settings(recipe: Recipe, profile: Profile) -> dict[str, Any]:
    """Return the whole Inductor configuration of one build, the recipe's options last."""
    settings: dict[str, Any] = {
        "always_keep_tensor_constants": True,
        "joint_graph_constant_folding": False,
        "aot_inductor.model_name_for_generated_files": "model",
        "aot_inductor.enable_line_tables": False,
        "max_autotune": recipe.mode in (Mode.MAX_AUTOTUNE, Mode.MAX_AUTOTUNE_NO_CUDAGRAPHS),
        "coordinate_descent_tuning": recipe.mode in (Mode.MAX_AUTOTUNE, Mode.MAX_AUTOTUNE_NO_CUDAGRAPHS),
        "cpp.dynamic_threads": profile.threads is None,
    }
    if profile.threads is not None:
        settings["cpp.threads"] = profile.threads
    if recipe.freeze:
        settings |= {"freezing": True, "aot_inductor.package_constants_in_so": True}
        settings |= {"max_autotune_gemm_backends": "CPP,ATEN"} if profile.capability.family == "cpu" else {}
    else:
        settings |= {"freezing": False, "aot_inductor.package_constants_in_so": False, "cpp.weight_prepack": False}
    settings |= cpu_settings(profile)
    return settings | dict(recipe.options)


def cpu_capability(profile: Profile) -> Capability:
    """What C++ is compiled for: the profile's CPU level; beside a GPU the least that a host of one has."""
    if profile.capability.family == "cpu":
        return profile.capability
    return Capability("cpu:armv8-a" if platform.machine() == "aarch64" else "cpu:x86-64-v2")


def cpu_settings(profile: Profile) -> dict[str, Any]:
    """The instruction set of the profile, never the builder's own."""
    march = cpu_capability(profile).target
    return {"cpp.march": march, "cpp.simdlen": _VECTOR_BITS.get(march, 128)}


def host_limits(profile: Profile) -> dict[str, str]:
    """Variables that keep a builder of a higher level from tuning and packing for itself."""
    levels = {
        "x86-64-v4": ("avx512", "AVX512_CORE", "AVX512"),
        "x86-64-v3": ("avx2", "AVX2", "AVX2"),
        "x86-64-v2": ("default", "SSE41", "SSE4_2"),
        "x86-64": ("default", "SSE41", "SSE4_2"),
    }
    level = levels.get(profile.capability.target)
    if level is None:
        return {}
    return dict(zip(("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"), level, strict=True))


def mode_notes(recipe: Recipe, profile: Profile) -> tuple[str, ...]:
    """What a mode or flag means here, for the report."""
    notes = []
    on_cpu = profile.capability.family == "cpu"
    if on_cpu and recipe.mode in (Mode.REDUCE_OVERHEAD, Mode.MAX_AUTOTUNE):
        notes.append(f"mode {recipe.mode}: there are no CUDA graphs on a CPU; honoured as tuning only")
    if on_cpu and recipe.mode is not Mode.DEFAULT and not recipe.freeze:
        notes.append(
            "Inductor tunes CPU kernels for constant weights only: freeze = true tunes, at the price of one "
            "bundle for each checkpoint"
        )
    if not recipe.fullgraph:
        notes.append("fullgraph = false allows graph breaks; an exported program has none")
    return tuple(notes)


def captures_graphs(recipe: Recipe, profile: Profile) -> bool:
    """True when the loader is to capture a CUDA graph."""
    return profile.capability.family == "cuda" and recipe.mode in (Mode.REDUCE_OVERHEAD, Mode.MAX_AUTOTUNE)
