"""The parts of benchmarks.gpu without a network: bandwidth of copies, what prefetch costs a step, cache="device"."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import torch.utils.data

import penstock
from benchmarks import cifar, machine
from benchmarks.contestants import penstock_loader, torch_loader
from benchmarks.gpu_training import DEVICE, IMAGES, WAIT, WARM, one_ahead, timed
from benchmarks.question import SPEED, Contestant, Measure, Numbers, Role, Running, Setup, Table, Target, lower

MB = 1_000_000
RATE = Measure("gb_per_s", "GB/s")
STEP = lower("ms_per_step", "ms")

# --- bandwidth --------------------------------------------------------------------------------------------------------


def size_of(setup: Setup) -> int:
    return int(setup.variant.split()[1]) * MB


def turns_of(setup: Setup) -> int:
    """Batches of a turn: as many as 40 GB/s would bring in its time, 4000 at most."""
    return min(4000, max(8, round(setup.facts["seconds"] * 40e9 / size_of(setup))))


def elapsed_ms(work: Callable[[], object]) -> float:
    """The time that the device takes for what `work` queues on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def bare_copies(setup: Setup) -> Running:
    """copy_(non_blocking=True) from four pinned tensors to four of the device on one stream, timed by events."""
    size, turns = size_of(setup), turns_of(setup)
    host = [torch.ones(size, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
    copies = [torch.empty(size, dtype=torch.uint8, device=DEVICE) for _ in range(4)]

    def work() -> None:
        for number in range(turns):
            copies[number % 4].copy_(host[number % 4], non_blocking=True)

    def epoch() -> Numbers:
        with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
            return {RATE.key: turns * size / elapsed_ms(work) / 1e6}

    return Running(epoch)


def arriving(batches: Iterable[Any], size: int) -> Numbers:
    """Take batches as they come; the first ones are not measured."""
    count = 0
    began = 0.0
    for batch in batches:
        del batch
        if count == WARM:
            torch.cuda.synchronize()
            began = time.perf_counter()
        count += 1
    torch.cuda.synchronize()
    return {RATE.key: (count - WARM - 1) * size / (time.perf_counter() - began) / 1e9}


def fetched(setup: Setup, pinned: bool) -> Running:
    size = size_of(setup)
    host = [torch.ones(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(4)]

    def epoch() -> Numbers:
        source = itertools.islice(itertools.cycle(host), turns_of(setup) + WARM + 1)
        return arriving(penstock.prefetch(source, "cuda"), size)

    return Running(epoch)


def loader_of_bytes(setup: Setup) -> Running:
    """penstock.DataLoader(device="cuda") over rows of a tensor in memory, 16 a batch: gathered into pinned memory."""
    size = size_of(setup)
    dataset = torch.utils.data.TensorDataset(torch.ones(64, size // 16, dtype=torch.uint8))
    samples = 16 * (turns_of(setup) + WARM + 1)
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=samples)
    loader = penstock_loader(setup, dataset, batch_size=16, sampler=sampler, shuffle=None, device="cuda")
    return Running(lambda: arriving(loader, size), loader.explain)


PINNED = 'penstock.prefetch(batches, "cuda") of four pinned tensors in turn.'
PAGEABLE = "The same of four pageable tensors, which the feeding thread copies into pinned memory first."
COPIES = (
    Contestant("bare pinned copies", Role.BARE, bare_copies),
    Contestant("prefetch, pinned", Role.PENSTOCK, partial(fetched, pinned=True), PINNED),
    Contestant("prefetch, pageable", Role.PENSTOCK, partial(fetched, pinned=False), PAGEABLE),
    Contestant("DataLoader", Role.PENSTOCK, loader_of_bytes),
)


def bandwidth(setup: Setup) -> list[Table]:
    """Bytes that arrive on the device a second, where nothing else is done, for batches of five sizes."""
    target = Target("prefetch, pinned", 0.9, "bare pinned copies", RATE)
    asked = {1: 12, 4: 30, 16: 45, 64: 50}
    return [
        Table(
            f"bandwidth {size} MB",
            f"copies to the device, batches of {size} MB; nothing else is done",
            COPIES,
            (
                *((target,) if size >= 16 else ()),
                *((Target("DataLoader", asked[size], measure=RATE),) if size in asked else ()),
            ),
            (RATE,),
        )
        for size in ((1, 4, 16) if setup.facts["quick"] else (1, 4, 16, 64, 256))
    ]


# --- overhead ---------------------------------------------------------------------------------------------------------


@cache
def ten_milliseconds(kind: str) -> Callable[[Any, Any], None]:
    """A step that keeps the current stream busy for 10 ms, as it was calibrated here."""
    weights = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)

    def work(amount: int) -> None:
        if kind == "pause":
            torch.cuda._sleep(amount)
        else:
            for _ in range(amount):
                torch.mm(weights, weights)

    trial = 20_000_000 if kind == "pause" else 100
    for _ in range(20):  # the clock comes up
        work(trial)
    torch.cuda.synchronize()
    amount = max(1, round(trial * 10 / elapsed_ms(lambda: work(trial))))
    return lambda images, labels: work(amount)


def stepping(setup: Setup, batches: Callable[[Iterable[Any]], Iterable[Any]], pinned: bool = True) -> Running:
    host = [
        (torch.ones(64, 3, 224, 224, dtype=torch.uint8, pin_memory=pinned), torch.zeros(64, dtype=torch.int64))
        for _ in range(4)
    ]
    step = ten_milliseconds(setup.variant.split()[1])
    steps = max(8, round(setup.facts["seconds"] / 0.01)) + WARM

    def epoch() -> Numbers:
        numbers = timed(batches(itertools.islice(itertools.cycle(host), steps)), step, 1)
        return {STEP.key: 1e3 / numbers[IMAGES.key], WAIT.key: numbers[WAIT.key]}

    return Running(epoch)


def same_batch(setup: Setup) -> Running:
    """No batch is brought: the loop goes over a list."""
    return stepping(setup, lambda source: source)


def fed_pinned(setup: Setup, pinned: bool = True) -> Running:
    """penstock.prefetch(endless batches in pinned memory, "cuda")."""
    return stepping(setup, lambda source: penstock.prefetch(source, "cuda"), pinned)


def fed_by_apex(setup: Setup) -> Running:
    """The pattern of NVIDIA Apex's data_prefetcher around the pinned batches."""
    return stepping(setup, lambda source: one_ahead(source, lambda images: images))


FED_PAGEABLE = 'penstock.prefetch(endless batches in pageable memory, "cuda").'
STEPS = (
    Contestant("replayed batch", Role.BARE, same_batch),
    Contestant("prefetch, pinned", Role.PENSTOCK, fed_pinned),
    Contestant("prefetch, pageable", Role.PENSTOCK, partial(fed_pinned, pinned=False), FED_PAGEABLE),
    Contestant("Apex pattern", Role.PEER, fed_by_apex),
)


def overhead(setup: Setup) -> list[Table]:
    """A step of 10 ms that reads nothing of its batch, with and without batches being brought for it."""
    targets = tuple(Target(f"prefetch, {kind}", 1.01, "replayed batch", STEP) for kind in ("pinned", "pageable"))
    return [
        Table(
            f"overhead {kind}", f"a 10 ms step of {what}; batches of 64x3x224x224 uint8", STEPS, targets, (STEP, WAIT)
        )
        for kind, what in (("pause", "torch.cuda._sleep"), ("matmul", "bfloat16 matrix products"))
    ]


# --- cache="device" ---------------------------------------------------------------------------------------------------


def has_torchvision() -> bool:
    return machine.version("torchvision") != "not installed"


def images(setup: Setup) -> Any:
    """torchvision's CIFAR10 without its files; where torchvision is missing, the images as rows of an array."""
    rng = np.random.default_rng(0)
    samples = 2_500 if setup.facts["quick"] else 50_000
    pixels = rng.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, samples)
    if not has_torchvision():
        return penstock.Arrays(pixels, labels)
    from torchvision import datasets

    dataset: Any = datasets.CIFAR10.__new__(datasets.CIFAR10)
    datasets.VisionDataset.__init__(dataset, "nowhere", transform=cifar.recipe("float32"))
    dataset.train = True
    dataset.data = pixels.transpose(0, 2, 3, 1)  # as the class makes it: a view of planes
    dataset.targets = labels.tolist()
    return dataset


def passes(setup: Setup, loader: Any, put: Callable[[Any], Any] = lambda batch: batch) -> Running:
    """Whole epochs for as long as a turn lasts, or one."""

    def epoch() -> Numbers:
        count = 0
        torch.cuda.synchronize()
        began = time.perf_counter()
        while count == 0 or time.perf_counter() - began < setup.facts["seconds"]:
            for batch in loader:
                x, _ = put(batch)
                count += len(x)
            torch.cuda.synchronize()
        return {SPEED.key: count / (time.perf_counter() - began)}

    return Running(epoch, getattr(loader, "explain", None))


def cifar_torch(setup: Setup) -> Running:
    """torch.utils.data.DataLoader, pin_memory=True, workers kept; .to(device, non_blocking=True) in the loop."""
    loader = torch_loader(setup, images(setup), batch_size=256, pin_memory=True)
    return passes(setup, loader, lambda batch: [field.to(DEVICE, non_blocking=True) for field in batch])


def cifar_penstock(setup: Setup, device: Any = None) -> Running:
    """penstock.DataLoader; the batches stay in host memory."""
    return passes(setup, penstock_loader(setup, images(setup), batch_size=256, seed=0, device=device))


FED = """penstock.DataLoader(device="cuda"): the host's path, to the device."""
CACHED = 'penstock.DataLoader(device=penstock.Feed("cuda", cache="device")).'
FEED = penstock.Feed("cuda", cache="device")
CACHE = (
    Contestant("torch, pinned", Role.TORCH, cifar_torch),
    Contestant("penstock in host memory", Role.ASIDE, cifar_penstock),
    Contestant("penstock to the device", Role.BARE, partial(cifar_penstock, device="cuda"), FED),
    Contestant("penstock cached there", Role.PENSTOCK, partial(cifar_penstock, device=FEED), CACHED),
)


def cached(setup: Setup) -> list[Table]:
    what = "RandomCrop(32, padding=4), flip, ToTensor, Normalize" if has_torchvision() else "rows as they are, uint8"
    targets = tuple(Target(CACHE[i].name, rate, measure=SPEED) for i, rate in ((2, 650_000), (3, 2_500_000)))
    title = f"50,000 images of 3x32x32 in memory; {what}; batch 256, shuffled"
    return [Table("cache", title, CACHE, targets)]
