"""The table of caches: which variable moves each, how it lies on disk, what tells its entries apart, and what we know.

One directory holds them all, a subdirectory each by the root's name; a bundle's paths begin with that name. What a
program keeps elsewhere (below HOME, with no variable of its own) is neither captured nor restored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Evidence(StrEnum):
    """What stands behind a row. Only a USED one is certain to be read where it was restored."""

    USED = "used"  # a test restores it elsewhere, and the program reads it and compiles nothing
    FILES = "files"  # a test carries files of its layout there and back, byte for byte
    UNPROVEN = "unproven"  # from its documentation alone


@dataclass(frozen=True)
class CacheRoot:
    """One cache. `below` is where it puts its files under the directory that the variable names.

    `identity` is what the cache itself keys an entry by: what a restore must not get wrong and cannot check.
    """

    name: str
    variable: str
    layout: str
    identity: str
    evidence: Evidence
    below: str = ""


DRIVER = "cuda"
ROOTS: tuple[CacheRoot, ...] = (
    # torch/_inductor/codecache.py. Triton's files of compiled graphs lie in it as well, below triton/<device>.
    CacheRoot(
        "inductor",
        "TORCHINDUCTOR_CACHE_DIR",
        "fxgraph/ab/<key>/<digest>, aotautograd/<key>/<digest>, ab/<name>.{py,cpp,so,best_config}",
        "graph, inputs, torch's sources, configuration, threads, GPU name; neither the CPU's instructions nor Python",
        Evidence.USED,
    ),
    # triton/runtime/cache.py; __grp__*.json names the files of one kernel by absolute paths.
    CacheRoot(
        "triton",
        "TRITON_CACHE_DIR",
        "<key>/<kernel>.{ttir,llir,ptx,cubin,json}, <key>/__grp__<kernel>.json",
        "Triton's sources, the kernel's, the backend with its target, options",
        Evidence.USED,  # on cards: tests/gpu/test_capture_cuda.py
    ),
    # CUDA C++ programming guide, environment variables: PTX that the driver compiled.
    CacheRoot(
        DRIVER,
        "CUDA_CACHE_PATH",
        "<a>/<b>/<digest>, index",
        "the PTX, the driver's version, the card",
        Evidence.USED,  # tests/gpu/test_capture_cuda.py
    ),
    # torch/utils/cpp_extension.py, _get_build_directory
    CacheRoot(
        "extensions",
        "TORCH_EXTENSIONS_DIR",
        "<name>/{build.ninja,<name>.so,*.o}",
        "name, sources by time, Python and CUDA by directory where the variable is not set",
        Evidence.FILES,
    ),
    # vLLM's documentation of torch.compile integration and of environment variables.
    CacheRoot(
        "vllm",
        "VLLM_CACHE_ROOT",
        "torch_compile_cache/<hash>/rank_<i>_<j>/{inductor_cache,triton_cache,<part>/{vllm_compile_cache.py,"
        "computation_graph.py,transformed_code.py,cache_key_factors.json,artifact_compile_range_<a>_<b>_subgraph_<n>}},"
        " torch_compile_cache/torch_aot_compile/<hash>/{inductor_cache,rank_<i>_<j>/model},"
        " flashinfer_autotune_cache/<version>/<architecture>/<hash>/autotune_configs.json, modelinfos/<class>.json",
        "vLLM's configuration, the model's code, compiler settings, rank",
        Evidence.FILES,
    ),
    # FlashInfer's documentation of environment variables: the parent of .cache/flashinfer.
    CacheRoot(
        "flashinfer",
        "FLASHINFER_WORKSPACE_BASE",
        ".cache/flashinfer/<version>/<architectures>/cached_ops/<name>/<name>.so",
        "version, architectures, name of the operation",
        Evidence.UNPROVEN,
    ),
    # DeepGEMM's README, environment variables.
    CacheRoot(
        "deep_gemm",
        "DG_JIT_CACHE_DIR",
        "cache/kernel.<name>.<digest>/kernel.{cu,cubin}",
        "source, compiler's version and flags",
        Evidence.UNPROVEN,
    ),
    # TileLang's documentation of environment variables.
    CacheRoot(
        "tilelang",
        "TILELANG_CACHE_DIR",
        "<key>/{kernel_lib.so,params.pkl,...}, autotuner/<key>/best_config.json",
        "version, the function's source and closure, configuration",
        Evidence.UNPROVEN,
    ),
    # CUTLASS's documentation of the CuTe DSL, environment variables; in the temporary directory where not set.
    CacheRoot("cute_dsl", "CUTE_DSL_CACHE_DIR", "<digest>.mlir", "the kernel's module, version", Evidence.UNPROVEN),
)


def variables_of(directory: Path) -> Mapping[str, str]:
    """Return the variables that put every cache below `directory`."""
    return {root.variable: str(directory / root.name) for root in ROOTS}
