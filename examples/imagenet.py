"""Trains a classifier by torchvision's reference recipe, with what is left of it after the crops done on the device.

The recipe is that of torchvision's `references/classification` (the second weights of its ResNet-50):
RandomResizedCrop, flip, TrivialAugmentWide, RandomErasing, MixUp or CutMix, repeated augmentation, label smoothing,
warm-up and a cosine schedule, an average of the weights. Native threads read the photos as far as TrivialAugmentWide;
bytes go to the device; `Feed(transform=)` normalises, erases and mixes there.

    python examples/imagenet.py FOLDER [--epochs N] [--batch-size N] [--workers N] [--model NAME] [--device NAME]

FOLDER holds `train` and `val`, each with one folder a class.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Sampler
from torchvision.datasets import ImageFolder
from torchvision.models import get_model
from torchvision.transforms import InterpolationMode, v2

import penstock

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class RepeatedAugmentation(Sampler[int]):
    """Draws each photo several times in a row, and as many draws an epoch as there are photos."""

    def __init__(self, size: int, repeats: int) -> None:
        self.size, self.repeats = size, repeats

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.size).repeat_interleave(self.repeats)
        return iter(order[: self.size].tolist())


class OnDevice:
    """What is done to a batch of bytes on the device: each image is erased for itself, all are mixed.

    Args:
        classes: of the labels.
        erasing: the probability that an image is erased in part.
        mixup, cutmix: their parameters alpha.
    """

    def __init__(self, classes: int, erasing: float = 0.1, mixup: float = 0.2, cutmix: float = 1.0) -> None:
        self.convert = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
        self.erase = v2.RandomErasing(1.0)
        self.erasing = erasing
        both = [v2.MixUp(alpha=mixup, num_classes=classes), v2.CutMix(alpha=cutmix, num_classes=classes)]
        self.mix = v2.RandomChoice(both)

    def __call__(self, batch: Any) -> Any:
        images, labels = batch
        images = self.convert(images)
        for number in range(len(images)):
            if random.random() < self.erasing:
                images[number] = self.erase(images[number])
        return self.mix(images, labels)


def loaders(options: argparse.Namespace) -> tuple[penstock.DataLoader[Any], penstock.DataLoader[Any], int]:
    """Return the loaders of both sets, and the number of classes."""
    crop, resize = options.crop, options.crop + 48
    training = ImageFolder(
        str(options.data / "train"),
        v2.Compose(
            [
                v2.RandomResizedCrop(crop, interpolation=InterpolationMode.BILINEAR, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR),
                v2.PILToTensor(),
            ]
        ),
    )
    validation = ImageFolder(
        str(options.data / "val"),
        v2.Compose([v2.Resize(resize, antialias=True), v2.CenterCrop(crop + 48), v2.PILToTensor()]),
    )
    classes = len(training.classes)
    device = str(options.device)
    on_device = OnDevice(classes)
    given: dict[str, Any] = {"batch_size": options.batch_size, "num_workers": options.workers}
    return (
        penstock.DataLoader(
            training,
            sampler=RepeatedAugmentation(len(training), options.repeats),
            drop_last=True,
            device=penstock.Feed(device, transform=on_device),
            **given,
        ),
        penstock.DataLoader(
            validation,
            device=penstock.Feed(device, transform=lambda batch: (on_device.convert(batch[0]), batch[1])),
            **given,
        ),
        classes,
    )


def parameters(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters of a model in two groups: those of norms do not decay."""
    norms = [p for part in model.modules() if isinstance(part, nn.BatchNorm2d) for p in part.parameters(recurse=False)]
    held = {id(parameter) for parameter in norms}
    others = [parameter for parameter in model.parameters() if id(parameter) not in held]
    return [{"params": others, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    random.seed(0)
    training, validation, classes = loaders(options)
    device = options.device
    model = get_model(options.model, num_classes=classes).to(device)
    averaging: Any = get_ema_multi_avg_fn
    average = AveragedModel(model, multi_avg_fn=averaging(options.ema_decay), use_buffers=True)
    loss_function = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(parameters(model, 2e-5), lr=options.lr, momentum=0.9)
    steps, warm_up = options.epochs * len(training), max(1, min(5, options.epochs // 2) * len(training))
    schedule = SequentialLR(
        optimizer,
        [LinearLR(optimizer, 0.01, total_iters=warm_up), CosineAnnealingLR(optimizer, max(1, steps - warm_up))],
        [warm_up],
    )
    for epoch in range(1, options.epochs + 1):
        model.train()
        losses = []
        for images, labels in training:
            loss = loss_function(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
            losses.append(loss.detach())
        accuracy = evaluate(average, validation)
        mean = float(torch.stack(losses).mean())
        print(f"epoch {epoch}: mean loss {mean:.3f}, validation accuracy {accuracy:.1%}", flush=True)
    print(training.explain(), flush=True)


def evaluate(model: nn.Module, loader: penstock.DataLoader[Any]) -> float:
    """Return the share of images whose class a model finds."""
    model.eval()
    correct, total = 0, 0
    with torch.inference_mode():
        for images, labels in loader:
            correct += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    return correct / total


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a classifier by torchvision's reference recipe.")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("data", type=Path, metavar="FOLDER", help="the photos: FOLDER/train/CLASS and FOLDER/val/CLASS")
    parser.add_argument("--epochs", type=int, default=600, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--workers", type=int, default=None, metavar="N", help="threads (default: tuned)")
    parser.add_argument("--model", default="resnet50", metavar="NAME", help="of torchvision (default: %(default)s)")
    parser.add_argument("--crop", type=int, default=176, metavar="N", help="side of the crops (default: %(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=4, metavar="N", help="of a photo in a row (default: %(default)s)"
    )
    parser.add_argument("--lr", type=float, default=0.5, metavar="X", help="(default: %(default)s)")
    parser.add_argument("--ema-decay", type=float, default=0.99998, metavar="X", help="(default: %(default)s)")
    parser.add_argument("--device", type=torch.device, default=torch.device(default), help="(default: %(default)s)")
    train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
