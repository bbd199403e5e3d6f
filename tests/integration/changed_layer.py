"""A program whose third layer may be another: `python changed_layer.py whole|blocks|training [--changed]`.

`whole` compiles the model as one graph, `blocks` each layer by itself, `training` forward, backward and the optimizer's
step, with mixed precision and one layer recomputed in the backward pass.
"""

import sys
from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, LAYERS, TOKENS = 128, 4, 6, 32


class Layer(torch.nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.project, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        parts = self.project(self.before(x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(self.activation(self.up(self.between(x))))


class Decoder(torch.nn.Module):
    def __init__(self, *, changed: bool) -> None:
        super().__init__()
        plain, other = torch.nn.functional.gelu, torch.nn.functional.silu
        self.layers = torch.nn.ModuleList(Layer(other if changed and i == 2 else plain) for i in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, 64)
        self.recompute = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute and i == 0 else layer(x)
        return self.head(x)


def main(kind: str, *, changed: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = Decoder(changed=changed), torch.randn(2, TOKENS, WIDTH)
    match kind:
        case "training":
            print(f"loss {train(model, x):.6f}")
        case "blocks":
            for layer in model.layers:
                layer.compile()
            print(f"mean {infer(model, x):.6f}")
        case _:
            print(f"mean {infer(torch.compile(model), x):.6f}")


def infer(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    with torch.no_grad():
        return float(model(x).abs().mean())


def train(model: Decoder, x: torch.Tensor) -> float:
    model.recompute = True
    compiled, optimizer = torch.compile(model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = torch.compile(optimizer.step)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = compiled(x).float().square().mean()
        loss.backward()
        step()
    return float(loss)


if __name__ == "__main__":
    main(sys.argv[1], changed="--changed" in sys.argv)
