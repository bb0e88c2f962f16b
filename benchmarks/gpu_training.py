"""The part of benchmarks.gpu that trains: images/s of a ResNet-50 step, and the share of its time that it waits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch.utils.data
from torch import nn

import penstock
from benchmarks.contestants import penstock_loader, torch_loader
from benchmarks.photos import CHANNELS, SIZE, image_folder
from benchmarks.question import Contestant, Measure, Numbers, Role, Running, Setup, Table, Target, lower
from benchmarks.resnet import resnet50

IMAGES = Measure("images_per_s", "images/s")
WAIT = lower("waiting", "share of time")
WARM = 4  # steps of a turn that are not measured
DEVICE = torch.device("cuda", 0)

Step = Callable[[torch.Tensor, torch.Tensor], object]


# --- the step ---------------------------------------------------------------------------------------------------------


@cache
def training_step() -> Step:
    """One step of SGD with momentum on a batch of images in bfloat16 and their labels; one network for all."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = resnet50().to(DEVICE, dtype=torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images).float(), labels).backward()
        optimizer.step()

    return step


@cache
def seconds_a_step(batch: int) -> float:
    """How long a step takes that waits for nothing, about."""
    images, labels = still(batch)
    for _ in range(8):  # cuDNN chooses its algorithms
        training_step()(images, labels)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(5):
        training_step()(images, labels)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / 5


def still(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch on the device."""
    images = torch.randn(batch, 3, SIZE, SIZE, device=DEVICE).to(torch.bfloat16, memory_format=torch.channels_last)
    return images, torch.randint(0, 1000, (batch,), device=DEVICE)


def steps_of(setup: Setup) -> int:
    """The steps that are measured in a turn."""
    return max(4, round(setup.facts["seconds"] / seconds_a_step(setup.batch)))


def timed(batches: Iterable[Any], step: Step, samples: int, *, seconds: float = float("inf")) -> Numbers:
    """Run a step on each batch, or for so many seconds; the first ones are not measured.

    What the device's current stream did between two steps (it waited, copied, converted) counts as waiting.
    """
    ended: list[torch.cuda.Event] = []
    begun: list[torch.cuda.Event] = []
    began = 0.0
    for number, (images, labels) in enumerate(batches):
        if number >= WARM:
            begun.append(marked())
        step(images, labels)
        del images, labels
        if number == WARM - 1:
            torch.cuda.synchronize()
            began = time.perf_counter()
        if number >= WARM - 1:
            ended.append(marked())
        if begun and time.perf_counter() - began > seconds:
            break
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    if not begun:
        raise RuntimeError(f"fewer than {WARM + 1} batches: nothing to measure")
    waited = sum(end.elapsed_time(begin) for end, begin in zip(ended, begun, strict=False)) / 1e3
    return {IMAGES.key: samples * len(begun) / seconds, WAIT.key: waited / seconds}


def marked() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


# --- the contestants --------------------------------------------------------------------------------------------------


@cache
def images_in_memory(kind: str, quick: bool) -> torch.utils.data.TensorDataset:
    """As many images as 1.2 GB hold as float32, drawn from again and again."""
    samples = 128 if quick else 2048
    pixels = torch.randint(0, 256, (samples, 3, SIZE, SIZE), dtype=torch.uint8)
    if kind == "float32":
        pixels = normalised(pixels)
    return torch.utils.data.TensorDataset(pixels, torch.randint(0, 1000, (samples,)))


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in CHANNELS)
    return (pixels / 255 - mean) / std


def given(setup: Setup) -> dict[str, Any]:
    """The same for every loader: whole batches, as many as a turn has steps, drawn with replacement."""
    kind = setup.variant.split()[-1]
    dataset = image_folder(setup.data) if kind == "photos" else images_in_memory(kind, setup.facts["quick"])
    samples = (steps_of(setup) + WARM) * setup.batch
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=samples)
    return {"dataset": dataset, "sampler": sampler, "shuffle": None, "drop_last": True}


def prepared(images: torch.Tensor) -> torch.Tensor:
    """Images on the device as the step takes them."""
    if images.dtype == torch.uint8:
        images = normalised(images)
    return images.to(torch.bfloat16, memory_format=torch.channels_last)


def training(setup: Setup, batches: Callable[[], Iterable[Any]], loader: Any = None) -> Running:
    """A turn of steps on the batches, which `loader` explains."""
    return Running(lambda: timed(batches(), training_step(), setup.batch), getattr(loader, "explain", None))


def replayed(setup: Setup) -> Running:
    """One batch that is on the device already, again and again."""
    batch = still(setup.batch)
    return training(setup, lambda: (batch for _ in range(steps_of(setup) + WARM)))


def torch_pinned(setup: Setup) -> Running:
    """torch.utils.data.DataLoader, pin_memory=True, workers kept; .to(device, non_blocking=True) and the conversion in
    the loop."""
    loader = torch_loader(setup, pin_memory=True, **given(setup))

    def batches() -> Iterator[Any]:
        for images, labels in loader:
            yield prepared(images.to(DEVICE, non_blocking=True)), labels.to(DEVICE, non_blocking=True)

    return training(setup, batches)


def apex(setup: Setup) -> Running:
    """The same loader behind the pattern of NVIDIA Apex's data_prefetcher: the next batch is copied and converted on a
    side stream, begun in the loop when the one before is taken; record_stream on what is handed over."""
    loader = torch_loader(setup, pin_memory=True, **given(setup))
    return training(setup, lambda: one_ahead(loader, prepared))


def one_ahead(loader: Iterable[Any], make: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[Any]:
    side = torch.cuda.Stream(DEVICE)
    source = iter(loader)

    def preload() -> Any:
        batch = next(source, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            images, labels = (field.to(DEVICE, non_blocking=True) for field in batch)
            return make(images), labels

    following = preload()
    while following is not None:
        current = torch.cuda.current_stream(DEVICE)
        current.wait_stream(side)
        taken = following
        for field in taken:
            field.record_stream(current)
        following = preload()
        yield taken
        del taken


def penstock_fed(setup: Setup) -> Running:
    """penstock.DataLoader(device=penstock.Feed("cuda", dtype=torch.bfloat16, channels_last=True)); uint8 images in
    memory are normalised by transform=."""
    feed = penstock.Feed("cuda", dtype=torch.bfloat16, channels_last=True)
    if setup.variant.endswith("uint8"):
        feed = dataclasses.replace(feed, transform=lambda batch: (prepared(batch[0]), batch[1]))
    loader = penstock_loader(setup, device=feed, **given(setup))
    return training(setup, lambda: loader, loader)


CONTESTANTS = (
    Contestant("replayed batch", Role.BARE, replayed),
    Contestant("torch, pinned", Role.TORCH, torch_pinned),
    Contestant("torch, Apex pattern", Role.PEER, apex),
    Contestant("penstock", Role.PENSTOCK, penstock_fed),
)
TARGETS = (Target("penstock", 0.995, "replayed batch", IMAGES), Target("penstock", 1.0, "torch, Apex pattern", IMAGES))


def tables(setup: Setup) -> list[Table]:
    """Three tables: the same images in memory as float32 and as uint8, and photos where a folder is given."""
    return [
        Table(f"training {kind}", f"ResNet-50, bfloat16, channels_last; {what}", CONTESTANTS, targets, (IMAGES, WAIT))
        for kind, what, targets in (
            ("float32", "normalised float32 images in memory", TARGETS),
            ("uint8", "uint8 images in memory, normalised on the device", TARGETS),
            ("photos", "JPEG photos, RandomResizedCrop(224), flip, normalise", ()),
        )
        if kind != "photos" or setup.data
    ]
