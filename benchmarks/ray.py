"""Batches that a filler on a second Ray node makes, beside the same batches of local threads, on the same CPUs.

The cluster is of this machine: a head without CPUs, where the trainer is, and one node. Rows lie in memory, so that
making a batch is one copy of it, and what a filler costs beside that can be seen. "Memory copies" are copies of a batch
into memory that was written before, measured in turn with the others.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.question import (
    Contestant,
    Facts,
    Measure,
    Numbers,
    Options,
    Question,
    Role,
    Running,
    Setup,
    Table,
    Target,
    lower,
)

#: The fields of both kinds of samples: an image of 3 x 224 x 224, and a small row.
SHAPES = {"large": (3, 224, 224), "small": (16,)}
ROWS = {"large": 128, "small": 65_536}
BATCHES = {"large": 40, "small": 400}
STORE = 300 << 20


def prepare(options: Options) -> Setup:
    """Rows in memory of the contestants' own processes."""
    return Setup("", 0, workers=1, facts={"shapes": SHAPES, "quick": options.quick})


#: When Ray gives up a node that does not answer.
SOON = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


@contextmanager
def cluster(settings: dict[str, int]) -> Iterator[Any]:
    """A Ray cluster of this machine, which this process is connected to. settings: of Ray."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "_system_config": settings}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, resources={"filler": 1}, object_store_memory=STORE, include_dashboard=False)
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def rows(kind: str) -> Any:
    torch.manual_seed(0)
    return torch.utils.data.TensorDataset(torch.rand(ROWS[kind], *SHAPES[kind]))


def kind_of(setup: Setup) -> str:
    return setup.variant.split()[0]


def batches_per_second(setup: Setup, dataset: Any, **options: Any) -> Running:
    """Batches of one pass over indices with replacement, the first four not counted, in seconds each."""
    import penstock

    kind = kind_of(setup)
    count = BATCHES[kind] // (4 if setup.facts["quick"] else 1)
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=64 * (count + 4))
    loader: Any = penstock.DataLoader(dataset, 64, sampler=sampler, num_workers=1, persistent_workers=True, **options)

    def epoch() -> Numbers:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        crew = getattr(getattr(batches, "filler", None), "_crew", None)
        pids = [os.getpid()] + [one.facts.pid for one in getattr(crew, "at_work", ())]
        began, cpu_before = time.perf_counter(), cpu_seconds(pids)
        for _ in batches:
            pass
        each, cpu = (time.perf_counter() - began) / count, (cpu_seconds(pids) - cpu_before) / count
        return {"batch_ms": 1e3 * each, "cpu_ms": 1e3 * cpu, "samples_per_s": 64 / each}

    return Running(epoch, loader.explain)


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of some processes, the kernel's included."""
    found = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += int(fields[11]) + int(fields[12])
    return found / os.sysconf("SC_CLK_TCK")


def threads(setup: Setup) -> Running:
    """penstock.DataLoader, one native thread of this process."""
    return batches_per_second(setup, rows(kind_of(setup)))


def filler(setup: Setup) -> Running:
    """penstock.DataLoader(worker_method=penstock.Ray(...)), one filler with one native thread on another node."""
    import penstock

    context = cluster({})
    context.__enter__()
    running = batches_per_second(setup, rows(kind_of(setup)), worker_method=penstock.Ray(resources={"filler": 1}))
    return dataclasses.replace(running, epoch=holding(running.epoch, context))


def holding(epoch: Any, held: Any) -> Any:
    """A function that keeps what it needs."""

    def again() -> Any:
        assert held is not None
        return epoch()

    return again


def copies(setup: Setup) -> Running:
    """torch.Tensor.copy_ of a batch, into one of eight that were written before, in turn."""
    sources = [torch.rand(64, *SHAPES[kind_of(setup)]) for _ in range(4)]
    targets = [torch.rand(64, *SHAPES[kind_of(setup)]) for _ in range(8)]
    torch.set_num_threads(1)
    repeats = 64 if kind_of(setup) == "large" else 64_000

    def epoch() -> Numbers:
        began, cpu_before = time.perf_counter(), time.thread_time()
        for number in range(repeats):
            targets[number % 8].copy_(sources[number % 4])
        each = (time.perf_counter() - began) / repeats
        cpu = (time.thread_time() - cpu_before) / repeats
        return {"batch_ms": 1e3 * each, "cpu_ms": 1e3 * cpu, "samples_per_s": 64 / each}

    return Running(epoch)


class Waiting(torch.utils.data.Dataset[int]):
    """Samples of a millisecond."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return index


def children(process: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def recovery(setup: Setup, *, node: bool, how: int = signal.SIGKILL) -> Running:
    """Seconds without a batch after a filler, or its whole node, gets a signal: the longest wait of the next 100
    batches. Two fillers, one on each node; samples of 1 ms, batches of 16."""
    import penstock

    with_nodes = cluster(SOON if how == signal.SIGSTOP else {})
    made = with_nodes.__enter__()

    def epoch() -> Numbers:
        if len(made.worker_nodes) < 2:
            made.add_node(num_cpus=1, resources={"filler": 1}, object_store_memory=STORE, include_dashboard=False)
        method = penstock.Ray(resources={"filler": 1})
        batches: Any = iter(penstock.DataLoader(Waiting(), 16, num_workers=2, worker_method=method))
        for _ in range(10):
            next(batches)
        facts = batches.filler._crew.at_work[0].facts
        victim, pids = None, [facts.pid]
        if node:
            victim = next(one for one in made.worker_nodes if one.node_id.startswith(facts.node))
            raylet = victim.all_processes["raylet"][0].process.pid
            pids = [raylet, *children(raylet)] if how == signal.SIGSTOP else [raylet]  # its end is that of its workers
        began = time.perf_counter()
        for pid in pids:
            os.kill(pid, how)
        longest, last = 0.0, began
        for _ in range(100):
            next(batches)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        if how == signal.SIGSTOP:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        batches.close()
        if victim is not None:
            made.remove_node(victim, allow_graceful=False)
        return {"recovery_s": longest}

    return Running(holding(epoch, with_nodes))


def filler_killed(setup: Setup) -> Running:
    """The filler's process gets SIGKILL."""
    return recovery(setup, node=False)


def node_killed(setup: Setup) -> Running:
    """The node's raylet gets SIGKILL, which ends its workers."""
    return recovery(setup, node=True)


def node_stopped(setup: Setup) -> Running:
    """The node's raylet and its workers get SIGSTOP; Ray gives the node up after three health checks of 500 ms each."""
    return recovery(setup, node=True, how=signal.SIGSTOP)


def machine() -> Facts:
    """The version of Ray."""
    import ray

    return {"ray": ray.__version__}


BATCH = lower("batch_ms", "ms/batch")
RECOVERY = lower("recovery_s", "s")
MEASURES = (BATCH, lower("cpu_ms", "ms of CPU/batch"), Measure("samples_per_s", "samples/s"))
LOCAL = Contestant("threads", Role.ASIDE, threads, packages=("penstock-loader",))
FILLER = Contestant("filler", Role.PENSTOCK, filler, packages=("penstock", "ray"))
COPY = Contestant("memory copy", Role.BARE, copies)
TABLES = (
    Table("large batches", "64 float32 images of 3x224x224, 38.5 MB a batch", (LOCAL, FILLER, COPY), (), MEASURES),
    Table("small batches", "64 rows of 16 float32, 4 KB a batch", (LOCAL, FILLER, COPY), (), MEASURES),
    Table(
        "recovery",
        "the longest wait for a batch when one of two fillers is killed",
        (
            Contestant("filler killed", Role.PENSTOCK, filler_killed, packages=("penstock", "ray")),
            Contestant("node killed", Role.PENSTOCK, node_killed, packages=("penstock", "ray")),
            Contestant("node stopped", Role.PENSTOCK, node_stopped, packages=("penstock", "ray")),
        ),
        (
            Target("filler killed", 5, None, RECOVERY),
            Target("node killed", 5, None, RECOVERY),
            Target("node stopped", 5, None, RECOVERY),
        ),
        (RECOVERY,),
    ),
)
QUESTION = Question("ray", "fillers of a Ray cluster", TABLES, prepare, machine)
