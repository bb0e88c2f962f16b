"""What may be slower than torch's loader, because little or nothing can be won: changing the import line must cost
nothing in any process.

Each round is a fresh process of each loader, in turn: four epochs (of a small dataset, four series of epochs), of which
the second-best counts. Medians and the worst processes are compared, each with torch's.
"""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.utils.data
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import TensorDataset

from benchmarks.contestants import Samples
from benchmarks.question import SPEED, Contestant, Host, Options, Question, Role, Running, Setup, Table, Target, lower

EPOCHS = 4
#: The least median, and the least worst process over torch's worst.
MEDIAN, WORST = 0.95, 0.75
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


def rows(size: int) -> TensorDataset:
    return TensorDataset(torch.arange(size, dtype=torch.float32))


def few_rows(size: int) -> TensorDataset:
    return TensorDataset(torch.zeros(size, 3), torch.arange(size))


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
}
WORKERS: dict[str, dict[str, Any]] = {
    "default": {},
    "none": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "by_name": {"num_workers": 2, "worker_method": "process"},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
#: Workers of the cases whose small epochs would measure the start of processes, or that differ by `worker_method`.
OTHERS = {
    "few": ("default", "none", "persistent"),
    "few_rows": ("default", "none", "persistent"),
    "rows": (*WORKERS,),
    "light": ("default", "none", "processes", "persistent"),
    "iterable": ("none", "processes", "persistent"),
}


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
    case_name, workers = setup.variant.split("-")
    case = CASES[case_name]
    options = {**case.options, **WORKERS[workers]}
    if case.pinned:
        stand_in_for_pinning()
    if name == "torch":
        options.pop("worker_method", None)
        loader: Any = torch.utils.data.DataLoader(case.dataset(setup.facts["sizes"][case_name]), **options)
    else:
        import penstock

        loader = penstock.DataLoader(case.dataset(setup.facts["sizes"][case_name]), **options)
    times = max(1, round(case.times * setup.facts["share"]))

    def epochs() -> tuple[float, float]:
        began, ran = time.perf_counter(), cpu_seconds()
        for _ in range(times):
            for _ in loader:
                pass
        return time.perf_counter() - began, cpu_seconds() - ran

    def measured() -> dict[str, float]:
        seconds, cpu = (sorted(column)[1] for column in zip(*(epochs() for _ in range(EPOCHS)), strict=True))
        samples = setup.facts["sizes"][case_name] * times
        return {SPEED.key: samples / seconds, "seconds": seconds, CPU.key: 1e6 * cpu / samples}

    return Running(measured)


def prepare(options: Options) -> Setup:
    """Nothing: all samples are made when they are asked for."""
    share = 0.05 if options.quick else 1.0
    sizes = {name: case.size if case.times > 1 else max(64, round(case.size * share)) for name, case in CASES.items()}
    return Setup("", 0, facts={"sizes": sizes, "share": share, "epochs": EPOCHS})


def table(case: str, workers: str) -> Table:
    contestants = (
        Contestant("torch", Role.TORCH, partial(loop, "torch"), "torch.utils.data.DataLoader"),
        Contestant("penstock", Role.PENSTOCK, partial(loop, "penstock"), "the import line changed"),
    )
    said = ", ".join(f"{name}={value!r}" for name, value in WORKERS[workers].items()) or "no num_workers="
    targets = (Target("penstock", MEDIAN, "torch"), Target("penstock", WORST, "torch", worst=True))
    return Table(f"{case}-{workers}", f"{CASES[case].title}; {said}", contestants, targets, (SPEED, CPU), Host.FRESH)


TABLES = tuple(table(case, workers) for case in CASES for workers in OTHERS.get(case, ("none", "processes")))
QUESTION = Question("no_regret", "Never slower than torch", TABLES, prepare)
