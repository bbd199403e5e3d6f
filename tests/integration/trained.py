"""Processes that train one model: mixed precision, a layer computed again backwards, a compiled optimizer.

`python -m torch.distributed.run --nproc-per-node 2 trained.py FILE [cuda]` appends the losses to FILE as one line: on
gloo, or on NCCL with a card for each rank. Started without a launcher it is one process, which trains alone.
"""

import os
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


def join(device: str) -> bool:
    """Join the other ranks, where a launcher has started some; return whether it has."""
    local = os.environ.get("LOCAL_RANK")
    if local is None:
        return False
    if device == "cuda":
        # The only card that this rank sees, so its first: a card's number is in the code, and the ranks' must be equal.
        cards = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(8)))
        os.environ["CUDA_VISIBLE_DEVICES"] = cards.split(",")[int(local)]
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return True


def main(place: Path, device: str) -> None:
    together = join(device)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Net().to(device)
    model = torch.compile(DistributedDataParallel(net) if together else net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    step = torch.compile(optimizer.step)
    rank, losses = dist.get_rank() if together else 0, []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        x, y = torch.randn(8, 16, generator=generator), torch.randint(4, (8,), generator=generator)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        step()
        total = loss.detach().clone()
        if together:
            dist.all_reduce(total)
        losses.append(f"{total.item():.6f}")
    if rank == 0:
        with place.open("a") as file:
            file.write(" ".join(losses) + "\n")
    if together:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu")
