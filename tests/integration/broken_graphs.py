"""A program whose graph breaks twice: torch.export refuses it, and torch.compile makes several graphs of it."""

import sys

import torch


class Broken(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(32, 48)
        self.second = torch.nn.Linear(48, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.first(x)).softmax(-1)
        if hidden.sum().item() < 0:  # data decides: a graph break
            hidden = -hidden
        print("break", file=sys.stderr)
        return torch.tanh(self.second(hidden)).sum(-1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = Broken().eval(), torch.randn(8, 32)
    with torch.no_grad():
        wanted = model(x)
        found = torch.compile(model)(x)
    print(f"error {(wanted - found).abs().max().item():.3g}")


if __name__ == "__main__":
    main()
