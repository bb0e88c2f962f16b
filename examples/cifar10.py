"""Trains a small network on CIFAR10 for a minute, on a CPU or a GPU, and prints its accuracy on the test images.

    python examples/cifar10.py [--seconds N] [--data FOLDER] [--download]

FOLDER holds `cifar-10-batches-py`, as torchvision's CIFAR10 keeps it; `--download` fetches it (170 MB). Where it is not
there, made-up images of ten patterns are written and stand in for it, which says nothing about CIFAR10.
"""

import argparse
import pickle
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torchvision.datasets import CIFAR10
from torchvision.transforms import v2

from penstock import DataLoader, Feed

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def write_made_up(root: Path, samples: int) -> None:
    """Write images of ten noisy patterns into the files of CIFAR10: five of training images and one of test images."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    patterns = draw.integers(0, 160, (10, 3, 4, 4), np.uint8).repeat(8, 2).repeat(8, 3)
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        labels = draw.integers(0, 10, samples // 5)
        images = patterns[labels] + draw.integers(0, 96, (len(labels), 3, 32, 32), np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": images.reshape(len(labels), -1), "labels": labels.tolist()}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"pattern {i}" for i in range(10)]}))


def datasets(options: argparse.Namespace) -> tuple[CIFAR10, CIFAR10]:
    """Return the training images, augmented, and the test images."""
    convert = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    augment = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *convert])
    plain = v2.Compose(convert)
    if options.download or (options.data / "cifar-10-batches-py").exists():
        training = CIFAR10(str(options.data), transform=augment, download=options.download)
        return training, CIFAR10(str(options.data), train=False, transform=plain)
    root = options.data / "made-up"
    print(f"There is no CIFAR10 in {options.data}: made-up images stand in for it. --download fetches the real ones.")
    write_made_up(root, options.samples)
    with mock.patch("torchvision.datasets.cifar.check_integrity", return_value=True):  # they are not the real files
        return CIFAR10(str(root), transform=augment), CIFAR10(str(root), train=False, transform=plain)


def block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on CIFAR10 for a minute.")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="of training (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="FOLDER", help="(default: %(default)s)")
    parser.add_argument("--download", action="store_true", help="fetch CIFAR10 where it is not there")
    parser.add_argument("--samples", type=int, default=50_000, metavar="N", help="made-up ones (default: %(default)s)")
    options = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training, test = datasets(options)
    feed = Feed(device, channels_last=True)
    loader = DataLoader(training, batch_size=options.batch_size, shuffle=True, seed=0, num_workers=1, device=feed)
    tests = DataLoader(test, batch_size=1000, device=feed)
    parts = [*block(3, 24), *block(24, 48), *block(48, 96), nn.Flatten(), nn.Linear(96 * 4 * 4, 10)]
    model = nn.Sequential(*parts).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4)

    begun, epoch, share = time.monotonic(), 0, 0.0
    while share < 1:
        epoch, losses = epoch + 1, []
        for x, y in loader:
            # The rate rises for a fifth of the time, then falls to 0: the schedule is one of time, not of steps.
            share = min(1.0, (time.monotonic() - begun) / options.seconds)
            optimizer.param_groups[0]["lr"] = 0.1 * min(share / 0.2, (1 - share) / 0.8)
            loss = loss_function(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if share == 1:
                break
        print(f"epoch {epoch}: mean loss {float(torch.stack(losses).mean()):.3f}", flush=True)

    model.eval()
    with torch.inference_mode():
        right: Any = sum((model(x).argmax(1) == y).sum() for x, y in tests)
    print(f"\ntest accuracy {int(right) / len(test):.1%} on {len(test):,} images\n\n{loader.explain()}")


if __name__ == "__main__":
    main()
