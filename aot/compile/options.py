"""Every option of torch.compile honoured, never ignored (route `package`); `aot.recipes` refuses the others."""

import platform
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from aot.errors import InvalidProfile, InvalidSpec
from aot.recipes import route_notes
from aot.schema.capability import Capability
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe

GEMM_BACKENDS = "max_autotune_gemm_backends"
_FAMILIES = {"triton": ("cuda", "rocm"), "cuda": ("cuda",), "cutlass": ("cuda",), "rocm": ("rocm",)}
# For how many threads loops are planned where they adapt to those that there are: a pod of middle size.
PLANNED_THREADS = 8
_VECTOR_BITS = {"x86-64": 0, "x86-64-v2": 0, "x86-64-v3": 256, "x86-64-v4": 512}


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
        "max_autotune": recipe.mode.tunes,
        "coordinate_descent_tuning": recipe.mode.tunes,
        "cpp.dynamic_threads": profile.threads is None,
    }
    # Inductor plans loops for the threads of the builder, also where it leaves their number to the run: on a worker of
    # one core it would not look for parallel loops. The same plan everywhere gives the same bytes.
    settings["cpp.threads"] = PLANNED_THREADS if profile.threads is None else profile.threads
    if recipe.freeze:
        settings |= {"freezing": True, "aot_inductor.package_constants_in_so": True}
        settings |= {GEMM_BACKENDS: "CPP,ATEN"} if profile.capability.family == "cpu" else {}
    else:
        settings |= {"freezing": False, "aot_inductor.package_constants_in_so": False, "cpp.weight_prepack": False}
        if profile.capability.family == "cpu":
            # It turns convolutions to channels-last, and with weights outside every call would turn the weights too:
            # a ResNet-18 was 1.3 times slower than eager with it, and is 1.2 times faster without.
            settings["layout_optimization"] = False
    settings |= gpu_settings(profile) | cpu_settings(profile)
    return settings | dict(recipe.options)


def gemm_backends(recipe: Recipe) -> tuple[str, ...]:
    """Return the backends that a recipe names for matrix products, as Inductor reads them; none where it names none."""
    named = str(recipe.options.get(GEMM_BACKENDS) or "")
    return tuple(one.strip().upper() for one in named.split(",")) if named else ()


def gpu_settings(profile: Profile) -> dict[str, Any]:
    """What is never wrong on a card."""
    if profile.capability.family == "cpu":
        return {}
    # A reduction that is given more threads than its block has elements loads some elements in several warps. Where
    # its loop stores over what it loads, one warp reads what another has stored: with 8 warps for 32 x 4 elements a
    # mean was wrong in 2 builds of 10, by which configuration the tuning happened to choose (torch 2.11, H100; the
    # barrier of torch/_inductor/codegen/triton.py stands for broadcast loads alone). Eager takes no less memory.
    return {"inplace_buffers": False}


def cpu_capability(profile: Profile) -> Capability:
    """What C++ is compiled for: the profile's CPU level; beside a GPU the least that a host of one has."""
    if profile.capability.family == "cpu":
        return profile.capability
    return Capability("cpu:armv8-a" if platform.machine() == "aarch64" else "cpu:x86-64-v2")


def refuse_other_machine(capability: Capability, *, machine: str | None = None) -> None:
    """Raises InvalidProfile for CPU code of another machine than this one (`machine`, as uname says it).

    A cross compiler is not enough: torch's headers and libraries are made for one machine (docs/explain.md says what
    was tried), and the names of the weights are read from the library by loading it.
    """
    machine = platform.machine() if machine is None else machine
    wanted = "x86_64" if capability.level.startswith("x86") else "aarch64"
    if capability.family == "cpu" and wanted != machine:
        raise InvalidProfile(
            f"code for {capability} is built on {wanted}, this machine is {machine}",
            hint=f"build it on a worker that is {wanted}: torch's headers and libraries here are for {machine} alone",
        )


def cpu_settings(profile: Profile) -> dict[str, Any]:
    """The instruction set of the profile, never the builder's own."""
    level = cpu_capability(profile).level  # features beyond it are flags of their own: see pin_instruction_set
    return {"cpp.march": level, "cpp.simdlen": _VECTOR_BITS.get(level, 128)}


def host_limits(profile: Profile) -> dict[str, str]:
    """Variables that keep a builder of a higher level from tuning and packing for itself."""
    levels = {
        "x86-64-v4": ("avx512", "AVX512_CORE", "AVX512"),
        "x86-64-v3": ("avx2", "AVX2", "AVX2"),
        "x86-64-v2": ("default", "SSE41", "SSE4_2"),
        "x86-64": ("default", "SSE41", "SSE4_2"),
    }
    level = levels.get(profile.capability.level)
    if level is None:
        return {}
    if "amx_tile" in profile.capability.features:
        # oneDNN developer guide, CPU dispatcher control; oneMKL developer guide, MKL_ENABLE_INSTRUCTIONS.
        level = ("avx512", "AVX512_CORE_AMX", "AVX512_E4")
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
    if on_cpu and _VECTOR_BITS.get(profile.capability.level) == 0:
        # torch/_inductor/cpu_vec_isa.py: on x86-64 it knows AVX2, AVX-512 and AMX.
        notes.append(
            f"Inductor writes scalar loops for {profile.capability.target}, since it knows no vector instructions "
            "below AVX2; the C++ compiler vectorises what it can (the artifact's vector_bits says how wide)"
        )
    if "amx_tile" in profile.capability.features and not (recipe.freeze and recipe.mode is not Mode.DEFAULT):
        # torch/_inductor/codegen/cpp_micro_gemm.py: the C++ template alone, which wants a constant second operand.
        notes.append(
            "Inductor writes AMX tiles for tuned products of constant weights alone (freeze = true); elsewhere the "
            "library's products use them, as eager's do (the artifact's isa_used says what its own code needs)"
        )
    if not recipe.fullgraph:
        notes.append("fullgraph = false allows graph breaks; an exported program has none")
    return (*notes, *route_notes(recipe), *_override_notes(recipe, profile))


def _override_notes(recipe: Recipe, profile: Profile) -> Iterator[str]:
    """Yield what an option sets otherwise than the mode, and what it cannot change on this profile."""
    without = inductor_settings(replace(recipe, options={}), profile)
    for name, value in recipe.options.items():
        if name in without and without[name] != value:
            yield f"option {name} = {value!r} overrides {without[name]!r}, which mode {recipe.mode} sets here"
        family = name.partition(".")[0]
        if (owners := _FAMILIES.get(family)) and profile.capability.family not in owners:
            yield f"option {name} changes nothing for {profile.capability}: it is for {' and '.join(owners)}"


def captures_graphs(recipe: Recipe, profile: Profile) -> bool:
    """True when the loader is to capture a CUDA graph."""
    return profile.capability.family == "cuda" and recipe.mode in (Mode.REDUCE_OVERHEAD, Mode.MAX_AUTOTUNE)
