"""The part of benchmarks.gpu that says how many cores a GPU needs: images/s of a training step by the cores it may use.

Each turn runs on the first so many cores of the process, all its threads and the worker processes that it starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import threading
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import penstock
from benchmarks.contestants import penstock_loader, torch_loader
from benchmarks.gpu_training import DEVICE, IMAGES, WAIT, WARM, Step, one_ahead, prepared, still, timed, training_step
from benchmarks.photos import image_folder
from benchmarks.question import Contestant, Measure, Numbers, Role, Running, Setup, Table, Target

UTIL = Measure("gpu_util", "% as nvidia-smi shows it")
CORES = sorted(os.sched_getaffinity(0))
COUNTS = (1, 2, 4, 8, 16)
#: Images a second that the small network takes.
RATE = 20_000


# --- the machine ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_cores(number: int) -> Iterator[None]:
    """Have all threads of this process run on its first cores only, as `taskset --all-tasks` does."""

    def move(cores: Iterable[int]) -> None:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread.name), cores)

    move(CORES[:number])
    try:
        yield
    finally:
        move(CORES)


class Utilization:
    """The GPU-Util of nvidia-smi, looked at five times a second. Source: NVML's nvmlDeviceGetUtilizationRates."""

    def __init__(self) -> None:
        self._seen: list[int] = []
        self._over = threading.Event()

    def __enter__(self) -> Utilization:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def mean(self) -> float:
        """Return the mean, in percent; nan where the driver's library is not there."""
        return sum(self._seen) / len(self._seen) if self._seen else float("nan")

    def _look(self) -> None:
        try:
            library, handle, rates = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_uint * 2)()
        except OSError:
            return
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)):
            return
        while not self._over.wait(0.2):
            if library.nvmlDeviceGetUtilizationRates(handle, rates) == 0:
                self._seen.append(rates[0])


# --- the steps --------------------------------------------------------------------------------------------------------


@cache
def small_step(batch: int) -> Step:
    """A step of SGD on a small network, and a pause of the stream: RATE images a second."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 64, 16, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000)
    model = nn.Sequential(*layers).to(DEVICE, dtype=torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(images: torch.Tensor, labels: torch.Tensor, cycles: int = 0) -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images).float(), labels).backward()
        optimizer.step()
        if cycles:
            torch.cuda._sleep(cycles)

    def seconds(cycles: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(5):
            step(*still(batch), cycles)
        begin.record()
        for _ in range(10):
            step(*still(batch), cycles)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e4

    alone, trial = seconds(0), 2_000_000
    cycles = max(0, round(trial * (batch / RATE - alone) / max(1e-9, seconds(trial) - alone)))
    return partial(step, cycles=cycles)


def step_of(setup: Setup) -> Step:
    return training_step() if setup.variant.split()[1] == "ResNet-50" else small_step(setup.batch)


# --- the contestants --------------------------------------------------------------------------------------------------


def cores_of(setup: Setup) -> int:
    return int(setup.variant.split()[-1])


def given(setup: Setup) -> dict[str, Any]:
    """Photos, drawn with replacement, as many as the step takes in a turn at the most."""
    dataset = image_folder(setup.data)
    most = max(8, round(setup.facts["seconds"] * RATE / setup.batch)) + WARM
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=most * setup.batch)
    return {"dataset": dataset, "sampler": sampler, "shuffle": None, "drop_last": True}


def running(setup: Setup, batches: Any, explain: Any = None) -> Running:
    """Turns of the seconds that are asked for, or a little more, whatever the rate."""

    def epoch() -> Numbers:
        with on_cores(cores_of(setup)), Utilization() as used:
            numbers = timed(batches(), step_of(setup), setup.batch, seconds=setup.facts["seconds"])
        return {**numbers, UTIL.key: used.mean()}

    return Running(epoch, explain)


def on(setup: Setup) -> Setup:
    """The same with a worker for each core."""
    return dataclasses.replace(setup, workers=cores_of(setup))


def replayed(setup: Setup) -> Running:
    """One batch that is on the device already, again and again."""
    batch = still(setup.batch)

    def endless() -> Iterator[Any]:
        while True:
            yield batch

    return running(setup, endless)


def torch_pinned(setup: Setup) -> Running:
    """torch.utils.data.DataLoader, pin_memory=True, a worker a core, kept; .to(device, non_blocking=True)."""
    loader = torch_loader(on(setup), pin_memory=True, **given(setup))

    def batches() -> Iterator[Any]:
        for images, labels in loader:
            yield prepared(images.to(DEVICE, non_blocking=True)), labels.to(DEVICE, non_blocking=True)

    return running(setup, batches)


def apex(setup: Setup) -> Running:
    """The same loader behind the pattern of NVIDIA Apex's data_prefetcher."""
    loader = torch_loader(on(setup), pin_memory=True, **given(setup))
    return running(setup, lambda: one_ahead(loader, prepared))


def fed(setup: Setup, decode: Any = "cpu") -> Running:
    """penstock.DataLoader(device=penstock.Feed("cuda", dtype=torch.bfloat16, channels_last=True)), a thread a core."""
    feed = penstock.Feed("cuda", dtype=torch.bfloat16, channels_last=True, decode=decode)
    loader = penstock_loader(on(setup), device=feed, **given(setup))
    return running(setup, lambda: loader, loader.explain)


DECODED = """The same with decode="gpu"."""
CONTESTANTS = (
    Contestant("replayed batch", Role.BARE, replayed),
    Contestant("torch, pinned", Role.TORCH, torch_pinned),
    Contestant("torch, Apex pattern", Role.PEER, apex),
    Contestant("penstock", Role.PENSTOCK, fed),
    Contestant("penstock, decode='gpu'", Role.ASIDE, partial(fed, decode="gpu"), DECODED),
)


def tables(setup: Setup, network: str) -> list[Table]:
    """A table for each number of cores."""
    what = {"ResNet-50": "ResNet-50, bfloat16", "small": f"a network that takes {RATE:,} images/s"}[network]
    return [
        Table(
            f"cores {network} {count}",
            f"{what}; JPEG photos, RandomResizedCrop(224), flip, normalise; {count} of {len(CORES)} cores",
            CONTESTANTS,
            (Target("penstock", 0.97, "replayed batch", IMAGES),),
            (IMAGES, WAIT, UTIL),
        )
        for count in COUNTS
        if count <= len(CORES)
    ]
