"""A stand-in for a server that keeps compiler caches below a root of its own, as vLLM does, a directory a rank.

It serves a small Llama of transformers, whose repeated layers are compiled in place. A monitor looks at every
feed-forward's output, which breaks each layer's graph.
"""

import os
import sys
from pathlib import Path

RANK = Path(os.environ["VLLM_CACHE_ROOT"]) / "torch_compile_cache" / "0123456789" / "rank_0_0"


def main() -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(RANK / "inductor_cache")
    os.environ["TRITON_CACHE_DIR"] = str(RANK / "triton_cache")
    import torch
    from transformers import LlamaConfig, LlamaModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 3}
    model = LlamaModel(LlamaConfig(vocab_size=50, **sizes)).eval()
    tokens, seen = torch.arange(12).reshape(1, 12), []
    with torch.no_grad():
        wanted = model(tokens, use_cache=False).last_hidden_state
        for layer in model.layers:
            layer.mlp.register_forward_hook(lambda _module, _inputs, output: seen.append(output.abs().max().item()))
            layer.compile()
        found = model(tokens, use_cache=False).last_hidden_state
    assert len(seen) == len(model.layers)
    print(f"error {(wanted - found).abs().max().item():.3g}", file=sys.stderr)
    assert torch.allclose(wanted, found, atol=1e-5)
    RANK.joinpath("computation_graph.py").touch()


if __name__ == "__main__":
    main()
