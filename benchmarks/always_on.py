"""What clocks and counters cost on the fastest paths: the loaders of arrays.py and tensor_files.py with and without."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import arrays, tensor_files
from benchmarks.contestants import over, penstock_loader
from benchmarks.question import SPEED, Contestant, Question, Role, Running, Setup, Table, Target, lower

#: Of all threads of the process: it shows a cost that a machine with idle CPUs hides.
CPU = lower("cpu_us_per_sample", "CPU us/sample")
EPOCHS = 3


def epochs(dataset: Callable[[Setup], Any], setup: Setup) -> Running:
    """Rounds of three epochs."""
    each = over(penstock_loader(setup, dataset(setup), seed=0))

    def measured() -> dict[str, float]:
        began, ran = time.perf_counter(), time.process_time()
        samples = sum(setup.samples for _ in range(EPOCHS) if each.epoch())
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - ran
        return {SPEED.key: samples / seconds, "seconds": seconds, CPU.key: 1e6 * cpu_seconds / samples}

    return Running(measured, each.explain)


def uncounted(dataset: Callable[[Setup], Any], setup: Setup) -> Running:
    """The same without what is always on: the clocks of stages, the loop's clock and the live recording."""
    import penstock._native
    import penstock.loader
    from penstock.insight.publishing import publish
    from penstock.observe import Observer

    penstock._native.count_stages(False)
    vars(penstock.loader)["LoopClock"] = lambda meter: Observer()
    publish(False)
    return epochs(dataset, setup)


def table(name: str, title: str, dataset: Callable[[Setup], Any], how: str) -> Table:
    both = (
        Contestant("penstock", Role.PENSTOCK, partial(epochs, dataset), how),
        Contestant("nothing counted", Role.ASIDE, partial(uncounted, dataset), uncounted.__doc__ or "", ("penstock",)),
    )
    return Table(name, title, both, (Target("penstock", 0.99, "nothing counted"),), (SPEED, CPU))


TABLES = (
    table("arrays", arrays.TITLE, arrays.arrays, arrays.ARRAYS),
    table("TensorDataset", arrays.TITLE, arrays.tensors, arrays.TENSORS),
    table("pt", tensor_files.TITLE, partial(tensor_files.folder_of, "pt"), tensor_files.PT),
    table(
        "npy", tensor_files.TITLE.replace("ID.pt", "ID.npy"), partial(tensor_files.folder_of, "npy"), tensor_files.NPY
    ),
)
QUESTION = Question("always_on", "The cost of being always on", TABLES, tensor_files.prepare)
