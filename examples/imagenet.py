"""Trains a classifier on ImageNet, or another folder of photos, by torchvision's reference recipe.

The recipe is that of torchvision's `references/classification` (the second weights of its ResNet-50) but for its
repeated augmentation: RandomResizedCrop, flip, TrivialAugmentWide, RandomErasing, MixUp or CutMix, label smoothing,
warm-up and a cosine schedule, an average of the weights. Native threads read the photos as far as TrivialAugmentWide;
bytes go to the device; `Feed(transform=)` normalises, erases and mixes there.

    python examples/imagenet.py FOLDER [--epochs N] [--batch-size N] [--bf16] [--checkpoint FILE] [...]
    torchrun --nproc-per-node 8 examples/imagenet.py FOLDER [...]     one process a GPU; without GPUs, on the CPU

FOLDER holds `train` and `val`, each with one folder a class. A run whose checkpoint exists continues from it, behind
the batch where it was written. (The loader continues with any number of processes, the schedule needs the same.)
"""

import argparse
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.datasets import ImageFolder
from torchvision.models import get_model
from torchvision.transforms import InterpolationMode, v2

import penstock

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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
        for number in torch.nonzero(torch.rand(len(images)) < self.erasing).flatten().tolist():
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
    on_device = OnDevice(classes)
    given: dict[str, Any] = {"batch_size": options.batch_size, "num_workers": options.workers, "shard": "auto"}
    device = str(options.device)
    feed = penstock.Feed(device, transform=on_device, channels_last=True)
    feed_unmixed = penstock.Feed(
        device, transform=lambda batch: (on_device.convert(batch[0]), batch[1]), channels_last=True
    )
    return (
        penstock.DataLoader(training, shuffle=True, seed=0, drop_last=True, device=feed, **given),
        penstock.DataLoader(validation, device=feed_unmixed, **given),
        classes,
    )


def parameters(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters of a model in two groups: those of norms do not decay."""
    norms = [p for part in model.modules() if isinstance(part, nn.BatchNorm2d) for p in part.parameters(recurse=False)]
    held = {id(parameter) for parameter in norms}
    others = [parameter for parameter in model.parameters() if id(parameter) not in held]
    return [{"params": others, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]


class Run:
    """The model, what trains it, and its loaders.

    Attributes:
        epoch, step: that come next, from 0.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.training, self.validation, classes = loaders(options)
        self.model = get_model(options.model, num_classes=classes).to(options.device, memory_format=torch.channels_last)
        self.ranked = DistributedDataParallel(self.model) if dist.is_initialized() else self.model
        averaging: Any = get_ema_multi_avg_fn
        self.average = AveragedModel(self.model, multi_avg_fn=averaging(options.ema_decay), use_buffers=True)
        self.optimizer = torch.optim.SGD(parameters(self.model, 2e-5), lr=options.lr, momentum=0.9)
        steps, warm_up = options.epochs * len(self.training), min(5, options.epochs // 2) * len(self.training)
        first = LinearLR(self.optimizer, 0.01, total_iters=max(1, warm_up))
        rest = CosineAnnealingLR(self.optimizer, max(1, steps - warm_up))
        self.schedule = SequentialLR(self.optimizer, [first, rest], [max(1, warm_up)])
        self.loss_function = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.epoch = self.step = 0
        self.kept = {name: getattr(self, name) for name in ("model", "average", "optimizer", "schedule", "training")}

    def save(self) -> None:
        """Write the checkpoint, in one step."""
        if self.options.checkpoint is None or (dist.is_initialized() and dist.get_rank()):
            return
        states = {name: thing.state_dict() for name, thing in self.kept.items()}
        unfinished = self.options.checkpoint.with_suffix(".part")
        torch.save(states | {"epoch": self.epoch, "step": self.step}, unfinished)
        unfinished.replace(self.options.checkpoint)

    def resume(self) -> None:
        """Continue from the checkpoint, where there is one."""
        if self.options.checkpoint is None or not self.options.checkpoint.exists():
            return
        states = torch.load(self.options.checkpoint, map_location=self.options.device, weights_only=True)
        for name, thing in self.kept.items():
            thing.load_state_dict(states[name])
        self.epoch, self.step = states["epoch"], states["step"]
        print(f"continues in epoch {self.epoch + 1} behind {self.step} of {len(self.training)} steps", flush=True)

    def train(self) -> float:
        """Train for the rest of an epoch, and return its mean loss."""
        self.model.train()
        losses = []
        for images, labels in self.training:
            with torch.autocast(self.options.device.type, torch.bfloat16, enabled=self.options.bf16):
                loss = self.loss_function(self.ranked(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.average.update_parameters(self.model)
            losses.append(loss.detach())
            self.step += 1
            if self.step % self.options.save_every == 0 and self.step < len(self.training):
                self.save()
        self.epoch, self.step = self.epoch + 1, 0
        self.save()
        return float(torch.stack(losses).mean())

    def evaluate(self) -> float:
        """Return the share of the validation photos whose class the averaged model finds."""
        self.average.eval()
        counts = torch.zeros(2, device=self.options.device)  # right, all
        with torch.inference_mode():
            for images, labels in self.validation:
                with torch.autocast(self.options.device.type, torch.bfloat16, enabled=self.options.bf16):
                    found = self.average(images).argmax(1)
                counts += torch.stack([(found == labels).sum(), torch.tensor(len(labels), device=found.device)])
        if dist.is_initialized():
            dist.all_reduce(counts)
        return float(counts[0] / counts[1])


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    run = Run(options)
    run.resume()
    first = not dist.is_initialized() or dist.get_rank() == 0
    while run.epoch < options.epochs:
        loss, accuracy = run.train(), run.evaluate()
        if first:
            print(f"epoch {run.epoch}: mean loss {loss:.3f}, validation accuracy {accuracy:.1%}", flush=True)
    if first:
        print(run.training.explain(), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a classifier by torchvision's reference recipe.")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("data", type=Path, metavar="FOLDER", help="the photos: FOLDER/train/CLASS and FOLDER/val/CLASS")
    parser.add_argument("--epochs", type=int, default=600, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="of a process (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=None, metavar="N", help="threads (default: tuned)")
    parser.add_argument("--model", default="resnet50", metavar="NAME", help="of torchvision (default: %(default)s)")
    parser.add_argument("--crop", type=int, default=176, metavar="N", help="side of the crops (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.5, metavar="X", help="(default: %(default)s)")
    parser.add_argument("--ema-decay", type=float, default=0.99998, metavar="X", help="(default: %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, by autocast")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="written each epoch; a run continues from it")
    parser.add_argument("--save-every", type=int, default=1000, metavar="N", help="also every N steps")
    parser.add_argument("--device", type=torch.device, default=torch.device(default), help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    if "RANK" in os.environ:  # torchrun sets it
        if options.device.type == "cuda":
            options.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(options.device)
        dist.init_process_group("nccl" if options.device.type == "cuda" else "gloo")
    train(options)
    if dist.is_initialized():
        gc.collect()  # the model holds the group, whose threads would abort in an exit of Python
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
