"""Trains a small network on handwritten digits that lie on disk, one file a sample.

This is the script of a well-known tutorial. Penstock changes the import and the two lines that name
the data: `TensorFolder` replaces a hand-written `Dataset`, and `penstock.DataLoader` replaces
`torch.utils.data.DataLoader`.

    python examples/train.py [--epochs N] [--batch-size N] [--workers N] [--data FOLDER] [--device NAME]
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms
from torchvision.transforms.functional import to_pil_image
from tqdm import tqdm

import penstock

# ---------------------------------------------------------------- the tutorial


def train(data: Path, epochs: int, batch_size: int, workers: int, device: torch.device) -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True

    # `partition` holds the list of IDs of each split, `labels` the label of each ID; data/ID.pt holds the sample.
    partition = json.loads((data / "partition.json").read_text())
    labels = json.loads((data / "labels.json").read_text())

    params: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": True,
        "num_workers": workers,
        "pin_memory": device.type == "cuda",
    }
    training_set = penstock.TensorFolder(data, ids=partition["train"], labels=labels)
    training = penstock.DataLoader(training_set, **params)
    validation_set = penstock.TensorFolder(data, ids=partition["validation"], labels=labels)
    validation = penstock.DataLoader(validation_set, **params)

    model = make_model().to(device)
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=epochs * len(training))

    for epoch in range(1, epochs + 1):
        model.train()
        with tqdm(total=len(training_set), desc=f"epoch {epoch:2d}/{epochs}", unit=" samples") as bar:
            for x, y in training:
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
                loss = loss_function(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
                bar.update(len(y))

        model.eval()
        correct = 0
        with torch.no_grad():
            for x, y in validation:
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
                correct += int((model(x).argmax(1) == y).sum())

    total = len(validation_set)
    print(f"\nvalidation accuracy: {correct / total:.1%} ({correct} of {total} digits, on {device})\n")
    print(training.explain(), flush=True)


def make_model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10)),
    )


# ---------------------------------------------------------------- the same data through torch's loader


class TutorialDataset(Dataset[tuple[torch.Tensor, int]]):
    """The tutorial's hand-written dataset, which `TensorFolder` replaces."""

    def __init__(self, data: Path, ids: Sequence[str], labels: dict[str, int]) -> None:
        self.data, self.ids, self.labels = data, ids, labels

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = self.ids[index]
        return torch.load(self.data / f"{sample}.pt"), self.labels[sample]


def compare(data: Path, batch_size: int, workers: int, rounds: int = 5) -> None:
    """Prints samples/s of both loaders on the same files, with the same parameters."""
    ids = json.loads((data / "partition.json").read_text())["train"]
    labels = json.loads((data / "labels.json").read_text())
    to_tensor = transforms.Compose(
        [transforms.Resize(32), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
    )
    photos = datasets.ImageFolder(str(data / "images" / "train"), to_tensor)
    params: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": workers}
    # torch's worker processes live from epoch to epoch, so that their start is not counted.
    kept = params | {"persistent_workers": workers > 0}

    print(f"\nsamples/s, {workers} workers, median of {rounds} epochs   torch's loader    Penstock    ratio")
    report(
        "one .pt file a sample",
        DataLoader(TutorialDataset(data, ids, labels), **kept),
        penstock.DataLoader(penstock.TensorFolder(data, ids=ids, labels=labels), **params),
        len(ids),
        rounds,
    )
    report(
        "torchvision's ImageFolder", DataLoader(photos, **kept), penstock.DataLoader(photos, **params), len(ids), rounds
    )


def report(name: str, reference: Iterable[object], loader: Iterable[object], samples: int, rounds: int) -> None:
    """Runs epochs of both loaders in turn; the first epoch of each is not counted."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for each, times in zip((reference, loader), seconds, strict=True):
            start = time.perf_counter()
            for _ in each:
                pass
            times.append(time.perf_counter() - start)
    rates = [samples / statistics.median(times[1:]) for times in seconds]
    print(f"{name:<42} {rates[0]:>14,.0f} {rates[1]:>11,.0f} {rates[1] / rates[0]:>7.1f}x", flush=True)


# ---------------------------------------------------------------- the files


def write_digits(data: Path) -> None:
    """Writes scikit-learn's 1,797 scans once: FOLDER/ID.pt (1x8x8 float32 in 0..1), partition.json and labels.json,
    and the same scans as images in FOLDER/images/<split>/<digit>/ID.jpg.
    """
    last = data / "labels.json"
    if last.exists():
        return
    digits = load_digits()
    ids = [f"digit-{index:04d}" for index in range(len(digits.target))]
    labels = {name: int(label) for name, label in zip(ids, digits.target, strict=True)}
    shuffled = random.Random(0).sample(ids, len(ids))
    partition = {"train": shuffled[:1437], "validation": shuffled[1437:]}
    split_of = {name: split for split, names in partition.items() for name in names}

    data.mkdir(parents=True, exist_ok=True)
    scans = torch.from_numpy(digits.images).to(torch.float32).div_(16).unsqueeze_(1)
    for name, scan in zip(tqdm(ids, desc=f"writing {data}", unit=" files"), scans, strict=True):
        torch.save(scan.clone(), data / f"{name}.pt")  # a clone: torch.save writes the whole storage of a view
        image = data / "images" / split_of[name] / str(labels[name]) / f"{name}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        to_pil_image(scan).save(image, quality=95)
    (data / "partition.json").write_text(json.dumps(partition))
    # labels.json is written last and renamed into place: a folder that holds it is complete.
    unfinished = data / "labels.json.part"
    unfinished.write_text(json.dumps(labels))
    unfinished.replace(last)


# ---------------------------------------------------------------- the command line


def number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a whole number of at least {least} is needed, not {text!r}")
        return int(text)

    return parse


def device(text: str) -> torch.device:
    try:
        chosen = torch.device(text)
    except RuntimeError:
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"cpu, cuda or cuda:N is needed, not {text!r}")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise argparse.ArgumentTypeError(
            f"torch finds {torch.cuda.device_count()} CUDA devices here, and not {text!r}: use cpu"
        )
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a small network from files on disk through Penstock.")
    cpus = len(os.sched_getaffinity(0))
    parser.add_argument("--epochs", type=number(1), default=10, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=number(1), default=64, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--workers",
        type=number(0),
        default=min(6, cpus),
        metavar="N",
        help="0 loads in the main thread (default: %(default)s)",
    )
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="FOLDER", help="(default: %(default)s)")
    parser.add_argument(
        "--device",
        type=device,
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu, cuda or cuda:N (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    try:
        write_digits(options.data)
    except OSError as error:
        parser.error(f"argument --data: the digits cannot be written to {str(options.data)!r}: {error.strerror}")

    torch.set_num_threads(1)  # the network is too small to gain from more; the loader uses the other CPUs
    train(options.data, options.epochs, options.batch_size, options.workers, options.device)
    compare(options.data, options.batch_size, options.workers)


if __name__ == "__main__":
    main()
