"""worker_method="auto": both executors fetch a few batches of the loader's own, in turn, and their times are compared.

They are the real ones: torch's worker processes with a Fetch in them, and the crew of threads. What a pass pays for
each batch they pay here, the way from a process to this one included; how long their start takes is seen by the first
batch. The batches are the loader's, or smaller where those would take longer than there is time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import torch.utils.data

from penstock.executors.buffers import Buffers
from penstock.executors.fetch import Fetch
from penstock.executors.iterator import IN_FLIGHT, PassInput, PassResources
from penstock.executors.threads import ThreadPass
from penstock.executors.workers.own_fetch import Init, OwnFetches
from penstock.executors.workers.processes import ProcessPass
from penstock.order.batches import with_sample_numbers
from penstock.state.delivery import Task
from penstock.system.randomness import generator_states, generators_drawn_from, generators_kept

#: Time for the rounds where the samples allow it, in seconds; the start of both executors comes on top.
BUDGET_SECONDS = 0.2
#: Rounds, each of processes and of threads; of each the fastest counts, for what else runs can only slow it down.
ROUNDS = 3
#: A trial's batch is made smaller where it would take one worker longer, in seconds.
BATCH_SECONDS = 0.01
#: Samples that take longer, in seconds, are not tried: beside them neither start nor transfer counts.
SLOW_SECONDS = 0.1


@dataclass(frozen=True)
class Trial:
    """What is tried: what a loader fetches with, and its arguments."""

    fetch: Fetch
    batch_size: int
    workers: int
    init: Init | None = None
    in_flight: int | None = None
    """Batches in flight in threads; None: as the pass chooses."""
    prefetch_factor: int | None = None
    """Batches in flight for each process."""
    shared: bool = False
    """All threads use one dataset."""


@dataclass(frozen=True)
class Speed:
    """How an executor did."""

    start: float
    """Seconds till its first batch, less what such a batch takes one worker."""
    sample: float
    """Seconds a sample, in the fastest round."""

    def epoch(self, samples: int) -> float:
        """Return the seconds of an epoch."""
        return self.start + samples * self.sample


@dataclass(frozen=True)
class Measurement:
    """What a trial has found so far."""

    draws: tuple[str, ...]
    """Global generators that the dataset draws from."""
    sample_seconds: float = 0.0
    """Of a single sample."""
    processes: Speed | None = None
    threads: Speed | None = None


def draws_of(fetch: Fetch, task: Task, index: Any) -> tuple[str, ...]:
    """Return which global generators one sample, or its collate_fn, draws from; they are given back as they were."""
    with generators_kept():
        before = generator_states()
        sample = fetch.sample(task, index)
        if fetch.batched and not fetch.stacks:
            with suppress(Exception):  # what ails it is raised at its batch
                fetch.collate(replace(task, given=[index, index]), [sample, sample])
        return generators_drawn_from(before)


def try_both(trial: Trial) -> Iterator[Measurement]:
    """Yield what is found, more and more of it. Raises what the dataset raises, NotCopied where threads are refused.

    The process that calls it must be one that ends then: workers are forked, samples are fetched.
    """
    own = OwnFetches(trial.fetch, trial.init, shared=trial.shared)
    indices = cycle(some_indices(len(trial.fetch.dataset)))
    task = Task(None, 0, 0)
    draws = draws_of(trial.fetch, task, next(indices))  # the first one also opens and imports what later ones need not
    began = time.perf_counter()
    with generators_kept():
        trial.fetch.sample(task, next(indices))
    seconds = time.perf_counter() - began
    yield Measurement(draws, seconds)
    if seconds > SLOW_SECONDS:
        return
    with generators_kept():
        own.try_copy(lambda fetch: fetch.sample(task, next(indices)))
    count = min(trial.batch_size, max(1, int(BATCH_SECONDS / max(seconds, 1e-9))))
    batches = _Batches(indices, count if trial.fetch.batched else None, least=trial.workers)
    runs = _InProcesses(trial, batches), _InThreads(trial, own, batches)  # processes first: no thread is forked then
    try:
        firsts = [run.first() for run in runs]
        spent = 0.0
        for _ in range(ROUNDS):
            for run in runs:
                spent += run.round(BUDGET_SECONDS / ROUNDS / len(runs))
            speeds = [
                Speed(max(0.0, first - batches.count * seconds), run.best)
                for run, first in zip(runs, firsts, strict=True)
            ]
            yield Measurement(draws, seconds, *speeds)
            if spent > BUDGET_SECONDS:
                break  # samples so slow that a round tells enough
    finally:
        for run in runs:
            run.end()


class _Batches:
    """A sampler whose passes end after some time, or at once after one batch for each worker."""

    def __init__(self, indices: Iterator[Any], count: int | None, least: int) -> None:
        self._indices = indices
        self._batched = count is not None
        self._least = least
        self.count = count or 1
        self.until = 0.0
        self.given = 0
        """Batches of the pass."""

    def __iter__(self) -> Iterator[Any]:
        self.given = 0
        while self.given < self._least or time.perf_counter() < self.until:
            self.given += 1
            yield [next(self._indices) for _ in range(self.count)] if self._batched else next(self._indices)

    def __len__(self) -> int:
        raise TypeError("it is not known before")


class _Run(ABC):
    """One executor, pass after pass with the same workers."""

    def __init__(self, batches: _Batches) -> None:
        self.batches = batches
        self.best = float("inf")
        """Seconds a sample in the fastest round."""
        self.iterator: Any = None

    def first(self) -> float:
        """Start the workers, have them fetch a batch each, and return the seconds till the first one."""
        began = time.perf_counter()
        self.batches.until = 0.0
        batches = self.begin()
        next(batches)
        seconds = time.perf_counter() - began
        for _ in batches:
            pass
        return seconds

    def round(self, seconds: float) -> float:
        """Fetch for about so long, and return how long it took."""
        began = time.perf_counter()
        self.batches.until = began + seconds
        for _ in self.begin():
            pass
        spent = time.perf_counter() - began
        self.best = min(self.best, spent / (self.batches.given * self.batches.count))
        return spent

    def end(self) -> None:
        """End the workers."""
        if self.iterator is not None:
            self.iterator._shutdown_workers()

    @abstractmethod
    def begin(self) -> Iterator[Any]:
        """Return a pass over the batches."""


class _InThreads(_Run):
    def __init__(self, trial: Trial, own: OwnFetches, batches: _Batches) -> None:
        super().__init__(batches)
        self._trial = trial
        self._own = own
        self._resources = PassResources(
            workers=trial.workers,
            in_flight=trial.in_flight,
            buffers=Buffers(pinned=False, keep=2 * (IN_FLIGHT + 2)),
            persistent=True,
        )

    def begin(self) -> Iterator[Any]:
        given = with_sample_numbers(iter(self.batches), 0, batched=self._trial.fetch.batched)
        pass_input = PassInput(given, None, 0, 0)
        if self.iterator is None:
            self.iterator = ThreadPass(
                self._trial.fetch, pass_input, self._resources, init=self._trial.init, own=self._own
            )
        else:
            self.iterator.begin(self._trial.fetch, pass_input)
        return self.iterator  # type: ignore[no-any-return]


class _InProcesses(_Run):
    def __init__(self, trial: Trial, batches: _Batches) -> None:
        super().__init__(batches)
        sampler: Any = batches
        init: Any = trial.init
        self._loader = _Loader(
            trial.fetch.dataset,
            **({"batch_sampler": sampler} if trial.fetch.batched else {"batch_size": None, "sampler": sampler}),
            num_workers=trial.workers,
            collate_fn=trial.fetch.collate_fn,
            worker_init_fn=init,
            prefetch_factor=trial.prefetch_factor,
            persistent_workers=True,
            multiprocessing_context="fork",
        )
        self._loader.fetch = trial.fetch

    def begin(self) -> Iterator[Any]:
        self.iterator = iter(self._loader)
        return self.iterator  # type: ignore[no-any-return]


class _Loader(torch.utils.data.DataLoader[Any]):
    """torch's loader, with our worker processes."""

    fetch: Fetch

    def _get_iterator(self) -> Any:
        return ProcessPass(self, self.fetch, key=lambda: (0, 0), composes=self.fetch.composes)


def some_indices(size: int, count: int = 256) -> list[int]:
    """Return indices that are spread over a dataset of a size."""
    chosen: list[int] = np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64)).tolist()
    return chosen
