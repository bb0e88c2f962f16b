"""What may be slower than torch's loader, because little or nothing can be won: changing the import line must cost
nothing in any process.

Each round is a fresh process of each loader, in turn: four epochs (of a small dataset, four series of epochs), of which
the second-best counts. Medians and the worst processes are compared, each with torch's. Beside other programs, which
each process starts in sessions of their own, means are.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils.data
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Subset, TensorDataset

from benchmarks.contestants import Samples
from benchmarks.question import (
    SPEED,
    Contestant,
    Host,
    Options,
    Over,
    Question,
    Role,
    Running,
    Setup,
    Table,
    Target,
    lower,
    made,
)

EPOCHS = 4
#: The least median, and the least worst process over torch's worst.
MEDIAN, WORST = 0.97, 0.75
CPU = lower("cpu_us", "us of CPU a sample")


class Stream(torch.utils.data.IterableDataset[Any]):
    """Small tensors; each of several workers gives its part."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, self.size, step):
            yield torch.full((16,), float(i))


def light(index: int) -> torch.Tensor:
    return torch.full((3, 64, 64), float(index))


def small_dict(index: int) -> dict[str, Any]:
    return {"id": index, "weight": float(index), "even": index % 2 == 0}


def text(index: int) -> str:
    return f"the sample of number {index}"


def sequence(index: int) -> torch.Tensor:
    return torch.full((4 + index % 28,), float(index))


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(samples, batch_first=True)


def pair(index: int) -> tuple[torch.Tensor, int]:
    return torch.full((3,), float(index)), index


def one_millisecond(index: int) -> torch.Tensor:
    until = time.perf_counter() + 1e-3
    while time.perf_counter() < until:
        pass
    return torch.full((16,), float(index))


def tenth_of_a_millisecond(index: int) -> torch.Tensor:
    until = time.thread_time() + 1e-4
    while time.thread_time() < until:
        pass
    return torch.full((16,), float(index))


def rows(size: int) -> TensorDataset:
    return TensorDataset(torch.arange(size, dtype=torch.float32))


def few_rows(size: int) -> TensorDataset:
    return TensorDataset(torch.zeros(size, 3), torch.arange(size))


def subset_of_rows(size: int) -> Subset[Any]:
    return Subset(few_rows(100 * size), [*range(size)])


def of(sample: Callable[[int], Any]) -> Callable[[int], Any]:
    return partial(Samples, sample=sample)


@dataclasses.dataclass(frozen=True)
class Case:
    """What is gone through, and how often."""

    title: str
    dataset: Callable[[int], Any]
    size: int
    options: dict[str, Any] = dataclasses.field(default_factory=lambda: {"batch_size": 64})
    times: int = 1
    """Epochs that are measured as one."""
    pinned: bool = False
    anew: bool = False
    """Each epoch is that of a new loader."""
    beside: Callable[[int], Any] | None = None
    """A dataset that another loader reads in each epoch, before this one."""
    least: float = MEDIAN
    """The least median over torch's."""


def large_rows(size: int) -> TensorDataset:
    return TensorDataset(torch.zeros(256, 3, 224, 224))


SMALL = {"batch_size": 10, "shuffle": True}
CASES = {
    "light": Case("Samples of 48 KB that cost little", of(light), 12_800),
    "dicts": Case("Small dictionaries of numbers", of(small_dict), 64_000),
    "strings": Case("Strings", of(text), 256_000),
    "padding": Case("A padding collate_fn", of(sequence), 64_000, {"batch_size": 64, "collate_fn": padded}),
    "iterable": Case("An iterable dataset", Stream, 64_000),
    "unbatched": Case("batch_size=None", of(text), 64_000, {"batch_size": None}),
    "batch_1": Case("Batches of one", of(small_dict), 16_000, {"batch_size": 1}),
    "batch_16": Case("Batches of 16", of(small_dict), 64_000, {"batch_size": 16}),
    "few": Case("64 samples of a class of one's own, epoch after epoch", of(pair), 64, {"batch_size": 16}, 600),
    "few_rows": Case("A TensorDataset of 64 rows, epoch after epoch", few_rows, 64, {"batch_size": 16}, 600),
    "rows": Case("A TensorDataset of 4-byte rows", rows, 128_000),
    "python": Case("A millisecond of Python a sample", of(one_millisecond), 320, {"batch_size": 16}),
    "pinned": Case(
        "Pinned, which a copy stands in for", of(light), 6_400, {"batch_size": 64, "pin_memory": True}, 1, True
    ),
    "short": Case("24 samples an epoch, in workers that begin anew", of(pair), 24, {"batch_size": 8}, 20, least=0.9),
    "new_rows": Case("A new loader for each pass over 20 rows", few_rows, 20, SMALL, 600, anew=True, least=0.8),
    "new_subset": Case("A new loader for each pass over a part", subset_of_rows, 20, SMALL, 600, anew=True, least=0.8),
    "new_own": Case("A new loader for 20 samples of a class", of(pair), 20, SMALL, 600, anew=True, least=0.8),
    "few_subset": Case("A Subset of 20 rows, epoch after epoch", subset_of_rows, 20, SMALL, 600),
    "two_loaders": Case("Workers that begin anew beside native rows", of(pair), 640, beside=large_rows),
    "compute": Case("0.1 ms of Python a sample", of(tenth_of_a_millisecond), 6_400, {"batch_size": 32}),
}
WORKERS: dict[str, dict[str, Any]] = {
    "default": {},
    "none": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "by_name": {"num_workers": 2, "worker_method": "process"},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}
#: Workers of the cases whose small epochs would measure the start of processes, or that differ by `worker_method`.
OTHERS = {
    "few": ("default", "none", "persistent"),
    "few_rows": ("default", "none", "persistent"),
    "rows": (*WORKERS,),
    "light": ("default", "none", "processes", "persistent"),
    "iterable": ("none", "processes", "persistent"),
    "short": ("processes",),
    "new_rows": ("default", "none"),
    "new_subset": ("default", "none"),
    "new_own": ("default",),
    "few_subset": ("default", "none"),
    "two_loaders": ("processes",),
    "compute": (),
}

# --- beside other programs, each in a session of its own --------------------------------------------------------------

LOOP = "while True: pass"
BURSTS = "import time\nwhile True:\n end = time.time() + 0.02\n while time.time() < end: pass\n time.sleep(0.02)"
STARTS = """
import os, subprocess, sys
while True:
    subprocess.run([sys.executable, "-c", "import torch"])
    subprocess.run([sys.executable, "-c", "import os\\nfor _ in range(20): os.fork() or os._exit(0); os.wait()"])
"""
#: Programs that run three times each.
PROGRAMS = {"loops": (LOOP,), "bursts": (BURSTS,), "starts": (STARTS, LOOP)}
#: Cases and who makes their batches.
BESIDE = (("compute", "persistent"), ("light", "threads"), ("photos", "default"))


@contextmanager
def running(programs: tuple[str, ...]) -> Iterator[None]:
    """Let programs run three times each, those that start processes at the lowest priority."""
    started = [
        subprocess.Popen(
            [*(["nice", "-n", "15"] if program is STARTS else []), sys.executable, "-c", program],
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        for program in programs
        for _ in range(3)
    ]
    try:
        time.sleep(0.5 * bool(started))
        yield
    finally:
        for one in started:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def stand_in_for_pinning() -> None:
    """Have pinning copy, as with an accelerator whose driver is quick."""
    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "set_device_index": lambda index: None,
    }
    vars(torch.accelerator).update(stand_ins)
    vars(torch)["Tensor"].pin_memory = lambda self, device=None: self.clone()


def cpu_seconds() -> float:
    """CPU time of this process and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def loop(name: str, setup: Setup) -> Running:
    case_name, workers, *programs = setup.variant.split("-")
    case = CASES[case_name] if case_name in CASES else photos(setup)
    size = setup.facts["sizes"].get(case_name, case.size)
    options = {**case.options, **WORKERS[workers]}
    if case.pinned:
        stand_in_for_pinning()
    if name == "torch":
        kind: Any = torch.utils.data.DataLoader
        options.pop("worker_method", None)
        if case_name == "photos":
            options["num_workers"] = 2
    else:
        import penstock

        kind = penstock.DataLoader
    dataset = case.dataset(size)
    loader = None if case.anew else kind(dataset, **options)
    other = () if case.beside is None else kind(case.beside(size), batch_size=64, num_workers=2)
    times = max(1, round(case.times * setup.facts["share"]))

    def epochs() -> tuple[float, float]:
        began, ran = time.perf_counter(), cpu_seconds()
        for _ in range(times):
            for _ in other:
                pass
            for _ in kind(dataset, **options) if loader is None else loader:
                pass
        return time.perf_counter() - began, cpu_seconds() - ran

    def measured() -> dict[str, float]:
        with running(PROGRAMS[programs[0]] if programs else ()):
            seconds, cpu = (sorted(column)[1] for column in zip(*(epochs() for _ in range(EPOCHS)), strict=True))
        samples = size * times
        return {SPEED.key: samples / seconds, "seconds": seconds, CPU.key: 1e6 * cpu / samples}

    return Running(measured)


def make_photos(folder: Path) -> None:
    from PIL import Image

    (folder / "one").mkdir()
    for number in range(96):
        noise = torch.rand(3, 24, 32, generator=torch.Generator().manual_seed(number))
        large = torch.nn.functional.interpolate(noise[None], scale_factor=16, mode="bicubic")[0].clamp(0, 1)
        Image.fromarray((255 * large).byte().permute(1, 2, 0).numpy()).save(
            folder / "one" / f"{number}.jpg", quality=90
        )


def photos(setup: Setup) -> Case:
    """Photos under torchvision's ImageFolder."""
    from torchvision import datasets, transforms

    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    folder = datasets.ImageFolder(setup.data, transforms.Compose(steps))
    return Case("", lambda size: folder, len(folder), {"batch_size": 32})


def prepare(options: Options) -> Setup:
    """Photos; all other samples are made when they are asked for."""
    share = 0.05 if options.quick else 1.0
    sizes = {name: case.size if case.times > 1 else max(64, round(case.size * share)) for name, case in CASES.items()}
    data = made(options.cache / "no_regret_photos", make_photos)
    return Setup(str(data), 0, facts={"sizes": sizes, "share": share, "epochs": EPOCHS})


def table(case: str, workers: str, programs: str = "") -> Table:
    contestants = (
        Contestant("torch", Role.TORCH, partial(loop, "torch"), "torch.utils.data.DataLoader"),
        Contestant("penstock", Role.PENSTOCK, partial(loop, "penstock"), "the import line changed"),
    )
    said = ", ".join(f"{name}={value!r}" for name, value in WORKERS[workers].items()) or "no num_workers="
    if programs:
        title = f"{CASES[case].title if case in CASES else 'Photos'}; {said}; beside {programs}, three times each"
        targets: tuple[Target, ...] = (Target("penstock", MEDIAN, "torch", over=Over.MEAN),)
    else:
        title, least = f"{CASES[case].title}; {said}", CASES[case].least
        targets = (Target("penstock", least, "torch"), Target("penstock", WORST, "torch", over=Over.WORST))
    name = "-".join([case, workers, *([programs] if programs else [])])
    return Table(name, title, contestants, targets, (SPEED, CPU), Host.FRESH)


TABLES = (
    *(table(case, workers) for case in CASES for workers in OTHERS.get(case, ("none", "processes"))),
    *(table(*case, programs) for case in BESIDE for programs in PROGRAMS),
)
QUESTION = Question("no_regret", "Never slower than torch", TABLES, prepare)
