"""One process, several GPUs: nn.DataParallel takes the batches as the loader gives them.

    python examples/data_parallel.py [--epochs N] [--samples N]

The loader brings each batch to the first GPU, and copies the next batches ahead; DataParallel splits each batch among
all GPUs. Without GPUs the same lines train on the CPU. Several processes, as in ddp.py, are faster.
"""

import argparse

import torch
from torch.utils.data import TensorDataset

import penstock


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    x = torch.randn(options.samples, 8)
    dataset = TensorDataset(x, x.sum(1, keepdim=True))
    loader = penstock.DataLoader(dataset, batch_size=100, shuffle=True, num_workers=2, device=device)
    model = torch.nn.DataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    print(loader.explain())
    for epoch in range(options.epochs):
        total = torch.zeros((), device=device)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(inputs)
        print(f"epoch {epoch}: mean loss {total.item() / options.samples:.4f} on {len(model.device_ids) or 'no'} GPUs")


if __name__ == "__main__":
    main()
