"""Two processes on gloo train one model: mixed precision, a layer computed again backwards, a compiled optimizer.

`python -m torch.distributed.run --nproc-per-node 2 trained.py FILE` appends the losses to FILE as one line.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda part: torch.nn.functional.gelu(self.first(part)), x, use_reentrant=False)
        return self.second(hidden)


def main(place: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Net()
    model = torch.compile(DistributedDataParallel(net))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    step = torch.compile(optimizer.step)
    generator, losses = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(3):
        x, y = torch.randn(8, 16, generator=generator), torch.randint(4, (8,), generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        step()
        dist.all_reduce(total := loss.detach().clone())
        losses.append(f"{total.item():.6f}")
    if dist.get_rank() == 0:
        with place.open("a") as file:
            file.write(" ".join(losses) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
