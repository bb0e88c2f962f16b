"""The tutorial's script: samples in data/ID.pt, lists of IDs in `partition`, a label for each ID in `labels`.

    python examples/tutorial/main.py [--epochs N] [--samples N]

The import of DataLoader is the line that differs from the tutorial's. Where there is no folder `data`, one is made of
random tensors, whose mean tells their label.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from my_classes import Dataset

from penstock import DataLoader


def write_samples(count: int) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Write data/ID.pt, 3x64x64 float32, and return `partition` and `labels`."""
    folder = Path("data")
    labels = {f"id-{number}": number % 2 for number in range(count)}
    if not folder.exists():
        print(f"There is no folder data: {count} random samples are written there.")
        folder.mkdir()
        for ID, label in labels.items():
            torch.save(torch.randn(3, 64, 64) + 0.1 * label, folder / f"{ID}.pt")
    IDs = list(labels)
    return {"train": IDs[: count * 3 // 4], "validation": IDs[count * 3 // 4 :]}, labels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2000, help="how many are written where there are none")
    options = parser.parse_args()

    # CUDA for PyTorch
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda:0" if use_cuda else "cpu")
    torch.backends.cudnn.benchmark = True

    # Parameters
    params: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": 2}

    # Datasets
    partition, labels = write_samples(options.samples)

    # Generators
    training_set = Dataset(partition["train"], labels)
    training_generator = DataLoader(training_set, **params)

    validation_set = Dataset(partition["validation"], labels)
    validation_generator = DataLoader(validation_set, **params)

    # The model, which the tutorial leaves to its reader
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 2)).to(device)
    loss_function = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    # Loop over epochs
    for epoch in range(options.epochs):
        # Training
        for local_batch, local_labels in training_generator:
            # Transfer to GPU
            local_batch, local_labels = local_batch.to(device), local_labels.to(device)

            # Model computations
            loss = loss_function(model(local_batch), local_labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        # Validation
        correct = 0
        with torch.set_grad_enabled(False):
            for local_batch, local_labels in validation_generator:
                # Transfer to GPU
                local_batch, local_labels = local_batch.to(device), local_labels.to(device)

                # Model computations
                correct += int((model(local_batch).argmax(1) == local_labels).sum())
        print(f"epoch {epoch + 1}: validation accuracy {correct / len(validation_set):.1%}")
    print(training_generator.explain())


if __name__ == "__main__":
    main()
