"""Entries of graphs with kernels of Triton's in them, of torch's own classes and as torch pickles them: on any machine.

caches   where a program compiles: `triton/<key>/` has what Triton writes of each kernel
graph    a CompiledFxGraph whose bundle was collected from there, by torch itself
"""

import base64
import hashlib
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import triton
from torch._inductor import config
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.runtime.autotune_cache import AutotuneCache
from torch._inductor.runtime.hints import DeviceProperties, HeuristicType
from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedCudaKernel
from torch._inductor.runtime.triton_compat import Config
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, StaticTritonCompileResult
from torch._inductor.triton_bundler import StaticallyLaunchedAutotuner, TritonBundle, TritonBundleEntry, TritonBundler

from aot.capture.pickled import name_of

_CARD = DeviceProperties(type="cuda", index=0, multi_processor_count=132, cc=90, major=9, warp_size=32)
STAGES = ("cubin", "json", "llir", "ptx", "source", "ttgir", "ttir")


def add(in0):
    """What a kernel of Triton's is made of; nobody compiles it."""


def digest_of(kernel: str) -> str:
    return hashlib.sha256(kernel.encode()).hexdigest()


def key_of(kernel: str) -> str:
    return base64.b32encode(bytes.fromhex(digest_of(kernel))).decode().rstrip("=")


def write_kernels(caches: Path, kernels: Sequence[str], *, triton: str = "triton") -> None:
    """Leave what Triton leaves of each kernel: its stages, and their places."""
    for kernel in kernels:
        place = caches / triton / key_of(kernel)
        place.mkdir(parents=True, exist_ok=True)
        for stage in STAGES:
            (place / f"add.{stage}").write_bytes(f"{kernel} as {stage}".encode() * 50)
        children = {f"add.{stage}": f"{place}/add.{stage}" for stage in STAGES}
        (place / "__grp__add.json").write_text(json.dumps({"child_paths": children}))


def a_tuner(
    name: str,
    kernels: Sequence[str],
    *,
    caches: Path = Path("/gone"),
    cache: bool = True,
    descends: bool = False,
) -> StaticallyLaunchedAutotuner:
    """A tuner as torch stores it: nothing is chosen yet, and it knows where that will be written."""
    results = []
    for number, kernel in enumerate(kernels):
        launched = object.__new__(StaticallyLaunchedCudaKernel)
        vars(launched).update(name="add", hash=digest_of(kernel), cubin_path=None, cubin_raw=None, function=None)
        vars(launched).update(module=None, arg_names=["in0", "out0"], num_warps=4, shared=0)
        chosen = Config({"XBLOCK": 64 << number}, num_warps=4, num_stages=1)
        results.append(StaticTritonCompileResult(launched, chosen, {"device": 0, "device_type": "cuda"}, {}))
    place = f"{caches}/inductor/{name[:2]}/{name}"
    tuner = CachingAutotuner(
        triton.jit(add),
        {"signature": {"in0": "*fp32"}, "constants": {}, "device": _CARD},
        [result.config for result in results],
        AutotuneCache("configs", (None, f"{place}-choice.best_config")).save if cache else None,
        [],
        True,
        HeuristicType.POINTWISE,
        inductor_meta={"kernel_name": "add", "coordinate_descent_tuning": descends},
        filename=f"{place}.py",
    )
    # What compiling would have left.
    tuner.compile_results, tuner.configs, tuner.precompile_time_taken_ns = results, None, len(str(caches))
    tuner.fn.file_name = tuner.filename
    with mock.patch.object(TritonBundler, "_static_autotuners", []), mock.patch.dict("os.environ"):
        TritonBundler.put_static_autotuner(f"source of {name}", tuner)
        (stored,) = TritonBundler._static_autotuners
    return stored


def write_choice(caches: Path, name: str, number: int, **more: Any) -> str:
    """Leave what tuning wrote of a tuner's choice; return its path below the caches."""
    path = f"inductor/{name[:2]}/{name}-choice.best_config"
    (caches / path).parent.mkdir(parents=True, exist_ok=True)
    choice = {"XBLOCK": 64 << number, "num_warps": 4, "num_stages": 1, "configs_hash": "configs", **more}
    (caches / path).write_text(json.dumps(choice))
    return path


def collected_by_torch(
    caches: Path, kernels: Sequence[str], tuners: Sequence[StaticallyLaunchedAutotuner], *, triton: str = "triton"
) -> TritonBundle:
    """What torch collects of these kernels, as often as each was loaded."""
    with on_a_card(caches / triton):
        TritonBundler.begin_compile()
        TritonBundler._entries = [TritonBundleEntry(key_of(name), 0, f"{caches}/{triton}") for name in kernels]
        TritonBundler._static_autotuners = list(tuners)
        return TritonBundler.collect()[0]


def on_a_card(triton: Path) -> Any:
    """As torch is set where kernels are bundled, with Triton's cache there."""
    stack = mock.patch.dict("os.environ", TRITON_CACHE_DIR=str(triton))
    settings = config.patch(bundle_triton_into_fx_graph_cache=True, use_static_triton_launcher=True)
    return _Both(stack, settings)


class _Both:
    def __init__(self, one: Any, other: Any) -> None:
        self._all = (one, other)

    def __enter__(self) -> None:
        for each in self._all:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self._all):
            each.__exit__(*error)


def a_graph(bundle: TritonBundle, **fields: Any) -> bytes:
    graph = object.__new__(CompiledFxGraph)
    vars(graph).update(source_code="# AOT ID: ['0_inference']\n", _time_taken_ns=5, compiled_fn_runner=None)
    vars(graph).update(_triton_bundle=bundle, **fields)
    return pickle.dumps(graph)


def write_graph(caches: Path, content: bytes, *, below: str = "inductor", key: str = "fkey") -> str:
    path = f"{below}/fxgraph/ke/{key}/{name_of(content)}"
    (caches / path).parent.mkdir(parents=True, exist_ok=True)
    (caches / path).write_bytes(content)
    return path


def bundle_in(content: bytes) -> TritonBundle:
    return pickle.loads(content)._triton_bundle


def kernels_in(content: bytes) -> Mapping[str, tuple[str, ...]]:
    """The keys of the kernels in an entry, and the files of each."""
    return {
        kernel.kernel_hash: tuple(sorted(file.filename for file in kernel.artifacts))
        for kernel in bundle_in(content).kernel_artifacts
    }


def candidates_in(content: bytes) -> list[list[str]]:
    """The hashes of each tuner's candidates."""
    tuners = bundle_in(content).static_autotuners
    return [[result.kernel.hash for result in tuner.kernel.compile_results] for tuner in tuners]
