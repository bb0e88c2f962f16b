"""What clocks and counters cost on the fastest paths: the loaders of arrays.py and tensor_files.py with and without.

Single epochs of one loader with and without them alternate, in one process, and each second one comes first: processes
differ from each other by more than is looked for. The table shows the epochs with them, and what a pair of epochs takes
more with them than without: the median of the pairs of a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from benchmarks import arrays, tensor_files
from benchmarks.contestants import over, penstock_loader
from benchmarks.question import SPEED, Contestant, Options, Question, Role, Running, Setup, Table, Target, lower

COST = lower("cost_percent", "% of the time")
#: Of all threads of the process: it shows a cost that a machine with idle CPUs hides.
CPU_COST = lower("cpu_cost_percent", "% of the CPU time")
ROUND_SECONDS, QUICK_ROUND_SECONDS = 15.0, 0.5


def pairs(dataset: Callable[[Setup], Any], setup: Setup) -> Running:
    """Rounds of pairs of epochs."""
    each = over(penstock_loader(setup, dataset(setup), seed=0))
    limit = setup.facts["round_seconds"]

    def epoch(counted: bool) -> tuple[float, float]:
        count(counted)
        began, ran = time.perf_counter(), time.process_time()
        each.epoch()
        return time.perf_counter() - began, time.process_time() - ran

    def measured() -> dict[str, float]:
        began = time.perf_counter()
        found: list[tuple[tuple[float, float], tuple[float, float]]] = []
        while (spent := time.perf_counter() - began) < limit or not found:
            if len(found) % 2:
                with_all = epoch(True)
                found.append((with_all, epoch(False)))
            else:
                without = epoch(False)
                found.append((epoch(True), without))
        count(True)
        seconds = median(one[0] for one, _ in found)
        cost, cpu_cost = (100 * median(one[i] / other[i] - 1 for one, other in found) for i in (0, 1))
        return {SPEED.key: setup.samples / seconds, "seconds": spent, COST.key: cost, CPU_COST.key: cpu_cost}

    return Running(measured, each.explain)


def count(enabled: bool) -> None:
    """Switch what is always on, for passes that begin: the clocks of stages, the loop's clock, the live recording."""
    import penstock._native
    import penstock.loader
    from penstock.loop_times import LoopClock
    from penstock.observe import Observer

    penstock._native.count_stages(enabled)
    vars(penstock.loader)["LoopClock"] = LoopClock if enabled else lambda meter: Observer()


def table(name: str, title: str, dataset: Callable[[Setup], Any], how: str) -> Table:
    one = Contestant("penstock", Role.PENSTOCK, partial(pairs, dataset), how)
    return Table(name, title, (one,), (Target("penstock", 1, None, COST),), (SPEED, COST, CPU_COST))


def prepare(options: Options) -> Setup:
    """The files of tensor_files."""
    setup = tensor_files.prepare(options)
    seconds = QUICK_ROUND_SECONDS if options.quick else ROUND_SECONDS
    return replace(setup, facts={**setup.facts, "round_seconds": seconds})


TABLES = (
    table("arrays", arrays.TITLE, arrays.arrays, arrays.ARRAYS),
    table("TensorDataset", arrays.TITLE, arrays.tensors, arrays.TENSORS),
    table("pt", tensor_files.TITLE, partial(tensor_files.folder_of, "pt"), tensor_files.PT),
    table(
        "npy", tensor_files.TITLE.replace("ID.pt", "ID.npy"), partial(tensor_files.folder_of, "npy"), tensor_files.NPY
    ),
)
QUESTION = Question("always_on", "The cost of being always on", TABLES, prepare)
