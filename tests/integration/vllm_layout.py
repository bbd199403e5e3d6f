"""Writes and reads a compile cache as vLLM's documentation and interfaces lay it out, with real Inductor artifacts.

    VLLM_CACHE_ROOT/torch_compile_cache/<hash>/rank_<i>_<j>/
        inductor_cache/  triton_cache/                    torch's own caches, moved there by vLLM
        backbone/                                         the model; other parts have directories of their own
            cache_key_factors.json                        what <hash> is made of
            computation_graph.py  transformed_code.py     for people who debug
            vllm_compile_cache.py                         {(range, graph, compiler): (key, place)}, places absolute
            artifact_compile_range_<a>_<b>_subgraph_<n>   one graph: a file ("binary") or a directory ("unpacked")

Says on stdout how many graphs it compiled and how many it loaded, and how far they are from eager. Nothing of vLLM is
in here: standalone_compile and CompiledArtifact are torch's, and the layout is that of docs.vllm.ai, design of the
torch.compile integration, and of vllm.compilation.backends and compiler_interface, 0.11 to 0.17.
"""

import ast
import hashlib
import json
import os
import pprint
from pathlib import Path

# Before torch is imported, as an engine does before it compiles.
FACTORS = {"code_hash": "c0de", "compiler_hash": "1nduct0r", "config_hash": "c0nf16", "env": {}}
HASH = hashlib.sha256(json.dumps(FACTORS, sort_keys=True).encode()).hexdigest()[:10]
RANK = Path(os.environ["VLLM_CACHE_ROOT"]) / "torch_compile_cache" / HASH / "rank_0_0"
for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "inductor_cache"), ("TRITON_CACHE_DIR", "triton_cache")):
    (RANK / name).mkdir(parents=True, exist_ok=True)
    os.environ[variable] = str(RANK / name)

import torch  # noqa: E402
from torch._inductor import CompiledArtifact, standalone_compile  # noqa: E402

BACKBONE = RANK / "backbone"
TABLE = BACKBONE / "vllm_compile_cache.py"
FORMATS = ("binary", "unpacked")


class Part(torch.nn.Module):
    """One piece of a model that is split at its attention."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.nn.functional.gelu(x) * (self.number + 2))


def compile_all(x: torch.Tensor) -> dict[tuple[tuple[int, int], int, str], tuple[str, str]]:
    """Compile each part, save it beside the others, and return the table of what was saved where."""
    table = {}
    for number, form in enumerate(FORMATS):
        graph = torch.fx.symbolic_trace(Part(number))
        key = f"artifact_compile_range_1_8_subgraph_{number}"
        compiled = standalone_compile(graph, [x], dynamic_shapes="from_example_inputs")
        compiled.save(path=str(BACKBONE / key), format=form)
        table[((1, 8), number, "inductor_standalone")] = (key, str(BACKBONE / key))
        (BACKBONE / "computation_graph.py").write_text(graph.code)
    (BACKBONE / "transformed_code.py").write_text("# what Dynamo has made of forward\n")
    (BACKBONE / "cache_key_factors.json").write_text(json.dumps(FACTORS))
    TABLE.write_text(pprint.pformat(table))
    return table


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    BACKBONE.mkdir(parents=True, exist_ok=True)
    there = TABLE.exists()
    table = ast.literal_eval(TABLE.read_text()) if there else compile_all(x)
    worst = 0.0
    with torch.no_grad():
        for (_, number, _), (_, place) in table.items():
            loaded = CompiledArtifact.load(path=place, format=FORMATS[number])
            [found] = loaded(x)
            worst = max(worst, (found - Part(number)(x)).abs().max().item())
    counts = (0, len(table)) if there else (len(table), 0)
    print(f"compiled {counts[0]} loaded {counts[1]} error {worst:.3g}")


if __name__ == "__main__":
    main()
