"""Several processes, each reading its share of the samples; prints which ones each rank saw.

    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/ddp.py [--epochs N] [--samples N]

DistributedSampler splits the samples among the ranks, as with torch's own loader, and set_epoch draws a new order. The
loader of each rank feeds the GPU of that rank; without GPUs the ranks train on the CPU.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

import penstock


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=24)
    options = parser.parse_args()

    gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    dist.init_process_group("nccl" if gpus else "gloo")
    torch.set_num_threads(1)
    ids = torch.arange(options.samples)
    dataset = TensorDataset(ids, ids.float().unsqueeze(1).expand(-1, 8).contiguous())
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(dataset, shuffle=True, seed=0)
    loader = penstock.DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2, device=device)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    if dist.get_rank() == 0:
        print(loader.explain(), flush=True)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        seen: list[int] = []
        for numbers, x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            seen += numbers.tolist()
        # Each line is one write, because the ranks share a terminal.
        print(f"epoch {epoch} rank {dist.get_rank()} saw {' '.join(map(str, seen))}\n", end="", flush=True)
    # The model holds the group, whose threads would abort in an exit of Python: both end here.
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
