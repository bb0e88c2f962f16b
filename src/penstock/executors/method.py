"""worker_method=: who calls a dataset that only Python can read, and why "auto" took whom.

"auto" has both executors fetch a few batches of the loader's own, in turn, and compares their times. They are the real
ones: torch's worker processes with a Fetch in them, and the crew of threads. What a pass pays for each batch they pay
here, the way from a process to this one included; how long their start takes is seen by the first batch. The batches
are the loader's, or smaller where those would take longer than there is time.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from penstock.executors.buffers import Buffers
from penstock.executors.copies import NotCopied
from penstock.executors.fetch import Fetch
from penstock.executors.filler import IN_FLIGHT, PassInput, PassResources
from penstock.executors.iterator import Pass
from penstock.executors.threads import ThreadFiller
from penstock.executors.workers.own_fetch import Init, OwnFetches
from penstock.executors.workers.processes import ProcessPass
from penstock.executors.workers.worker_thread import WORKER_INFO, ThreadWorkerInfo, as_worker
from penstock.hooks.calls import natively_in_this_process
from penstock.order.batches import with_sample_numbers
from penstock.recipe.keyed_methods import HOOKS
from penstock.recipe.patches import Lease
from penstock.settings import Method
from penstock.state.delivery import Task
from penstock.system.randomness import generator_states, generators_drawn_from, generators_kept
from penstock.system.words import and_join

T = TypeVar("T")

#: How long a trial may take in all, in seconds: what is not known then is not waited for.
LIMIT_SECONDS = 1.0
#: More for each worker, which must be started.
LIMIT_EACH_SECONDS = 0.02
#: How many times as fast as processes threads must be at least, to be chosen: code may do in a thread what shows in no
#: trial.
WORTH_THREADS = 1.3
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


@dataclass(frozen=True)
class Choice:
    """What "auto" came to."""

    method: Method
    why: str


def choose(found: Measurement, samples: int | None, *, seeded: bool) -> Choice:
    """Return threads where they are so much faster that it pays, else processes, and the figures behind it.

    Args:
        found: what a trial found.
        samples: of an epoch, for which workers are started anew; None: their start does not count.
        seeded: the loader has a seed, and global generators must be functions of the sample, which threads cannot give.
    """
    if seeded and found.draws:
        return Choice(
            Method.PROCESS, f"processes: with seed= the draws from {and_join(found.draws)} must follow the sample"
        )
    threads, processes = found.threads, found.processes
    if threads is None or processes is None:
        return Choice(
            Method.PROCESS,
            f"processes: a sample took {found.sample_seconds:.2g} s, and beside that neither start nor transfer counts",
        )
    figures = (
        f"tried for a moment, threads fetched {1 / threads.sample:,.0f} samples/s after a start of "
        f"{1e3 * threads.start:.0f} ms, processes {1 / processes.sample:,.0f} after {1e3 * processes.start:.0f} ms"
    )
    ratio = processes.sample / threads.sample
    if samples is not None:
        ratio = processes.epoch(samples) / threads.epoch(samples)
        figures += (
            f"; an epoch of {samples:,} samples takes {threads.epoch(samples):.2g} s and "
            f"{processes.epoch(samples):.2g} s so"
        )
    if ratio >= WORTH_THREADS:
        return Choice(Method.THREAD, f"threads: {figures}; threads are {ratio:.1f} times as fast")
    return Choice(Method.PROCESS, f"processes: {figures}; threads pay from {WORTH_THREADS} times as fast on")


def try_out(trial: Trial, samples: int | None, *, seeded: bool) -> Choice:
    """Return the method for a dataset, after both have fetched some batches of it for a moment.

    It takes at most LIMIT_SECONDS, and LIMIT_EACH_SECONDS more for each worker, whatever the samples take.

    Args:
        trial: what is tried.
        samples, seeded: as `choose` takes them.
    """
    dataset = trial.fetch.dataset
    if isinstance(dataset, IterableDataset):
        return Choice(Method.PROCESS, "processes: an iterable dataset cannot be tried without going through it")
    if trial.workers == 0:
        return Choice(Method.THREAD, "the caller's thread, as num_workers=0 says")
    if multiprocessing.current_process().daemon:
        return Choice(Method.THREAD, "threads: this process is a worker, and may have no worker processes")
    try:
        if len(dataset) == 0:
            return Choice(Method.THREAD, "threads: the dataset is empty")
        OwnFetches(trial.fetch, trial.init, shared=trial.shared)
    except NotCopied as error:
        return not_copied(error)
    except TypeError as error:
        return Choice(Method.PROCESS, f"processes: a few samples cannot be tried, {error}")
    seconds = LIMIT_SECONDS + LIMIT_EACH_SECONDS * trial.workers
    try:
        found, over = _apart(lambda: try_both(trial), seconds)
    except NotCopied as error:  # as its first samples show
        return not_copied(error)
    except _Failed as error:  # the dataset's own, or it takes other indices
        return Choice(Method.PROCESS, f"processes: trying a few samples failed, {error}")
    if over and (not found or found[-1].threads is None):
        return Choice(Method.PROCESS, f"processes: a trial of both was not over after {seconds:.1f} s")
    return choose(found[-1], samples, seeded=seeded)


def not_copied(error: NotCopied) -> Choice:
    """Return the choice for a dataset that threads cannot have copies of."""
    return Choice(Method.PROCESS, f"processes: {error.what}, and each thread needs a copy of the dataset")


class _Failed(Exception):
    """What went wrong in the child."""


def _apart(work: Callable[[], Iterable[T]], seconds: float) -> tuple[list[T], bool]:
    """Return what a generator yields in a forked child within some time, and whether that was over before its end.

    Files that it opens and what it counts end with the child, and so do all processes that it starts: a file that a
    dataset opens at its first sample would be shared, with its position, by all processes forked later. Raises
    NotCopied as it does, and _Failed for what else it raises.
    """
    reader, writer = multiprocessing.connection.Pipe(duplex=False)
    deadline = time.monotonic() + seconds
    pid = os.fork()
    if pid == 0:
        try:
            reader.close()
            _work_apart(work, writer)
        finally:
            os._exit(0)
    with contextlib.suppress(OSError):  # the child does so too, and may have ended
        os.setpgid(pid, pid)
    writer.close()
    found: list[T] = []
    try:
        while reader.poll(max(0.0, deadline - time.monotonic())):
            what, content = reader.recv()
            if what == "refused":
                raise NotCopied(content)
            if what == "failed":
                raise _Failed(content)
            if what == "end":
                return found, False
            found.append(content)
        return found, True
    except (EOFError, OSError):
        raise _Failed("the process that tried them ended without a word") from None
    finally:
        reader.close()
        for kill in (os.killpg, os.kill):  # the workers too
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _work_apart(work: Callable[[], Iterable[Any]], writer: Connection) -> None:
    """Send what a generator yields to the parent."""
    os.setpgid(0, 0)  # its workers are ended with it
    warnings.simplefilter("ignore")  # the loader itself gives them
    torch.set_num_threads(1)  # OpenMP's threads do not exist in the child
    natively_in_this_process()
    try:
        with Lease(HOOKS, WORKER_INFO):
            for found in work():
                writer.send(("found", found))
        writer.send(("end", None))
    except NotCopied as error:
        writer.send(("refused", error.what))
    except Exception as error:
        writer.send(("failed", f"{type(error).__name__}: {error}"))


def draws_in_threads(fetch: Fetch) -> tuple[str, ...]:
    """Return which global generators a dataset draws from, as its first sample shows."""
    try:
        found, _ = _apart(lambda: [_draws_as_thread(fetch)], LIMIT_SECONDS)
    except _Failed:  # whatever ails the dataset is raised where its batch is
        return ()
    return found[0] if found else ()


def _draws_as_thread(fetch: Fetch) -> tuple[str, ...]:
    """Return the same, where get_worker_info() says that this is a worker thread, with generators of its own."""
    with as_worker(ThreadWorkerInfo(0, 1, 0, fetch.dataset)):
        return draws_of(fetch, Task(None, 0, 0), 0)


# --- the trial --------------------------------------------------------------------------------------------------------


def draws_of(fetch: Fetch, task: Task, index: Any) -> tuple[str, ...]:
    """Return which global generators one sample, or its collate_fn, draws from; they are given back as they were."""
    with generators_kept():
        before = generator_states()
        sample = fetch.sample(task, index)
        if fetch.batched and not fetch.stacks:
            with contextlib.suppress(Exception):  # what ails it is raised at its batch
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
    runs = _in_processes(trial, batches), _in_threads(trial, own, batches)  # processes first: no thread is forked then
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


class _Run:
    """One executor, pass after pass with the same workers.

    Args:
        batches: of each pass.
        begin: returns the iterator of a pass, given that of the pass before, or None.
    """

    def __init__(self, batches: _Batches, begin: Callable[[Any], Any]) -> None:
        self.batches = batches
        self.best = float("inf")
        """Seconds a sample in the fastest round."""
        self._begin = begin
        self._iterator: Any = None

    def first(self) -> float:
        """Start the workers, have them fetch a batch each, and return the seconds till the first one."""
        began = time.perf_counter()
        self.batches.until = 0.0
        self._iterator = self._begin(None)
        next(self._iterator)
        seconds = time.perf_counter() - began
        for _ in self._iterator:
            pass
        return seconds

    def round(self, seconds: float) -> float:
        """Fetch for about so long, and return how long it took."""
        began = time.perf_counter()
        self.batches.until = began + seconds
        self._iterator = self._begin(self._iterator)
        for _ in self._iterator:
            pass
        spent = time.perf_counter() - began
        self.best = min(self.best, spent / (self.batches.given * self.batches.count))
        return spent

    def end(self) -> None:
        """End the workers."""
        if self._iterator is not None:
            self._iterator._shutdown_workers()


def _in_threads(trial: Trial, own: OwnFetches, batches: _Batches) -> _Run:
    resources = PassResources(
        workers=trial.workers,
        in_flight=trial.in_flight,
        buffers=Buffers(pinned=False, keep=2 * (IN_FLIGHT + 2)),
        persistent=True,
    )

    def begin(before: Pass | None) -> Pass:
        pass_input = PassInput(with_sample_numbers(iter(batches), 0, batched=trial.fetch.batched), None, 0, 0)
        if before is None:
            filler = ThreadFiller(trial.fetch, resources, 0, init=trial.init, own=own)
            return Pass(filler, pass_input, eager=True)
        before.begin(pass_input, eager=True)
        return before

    return _Run(batches, begin)


def _in_processes(trial: Trial, batches: _Batches) -> _Run:
    sampler: Any = batches
    init: Any = trial.init
    loader = _Loader(
        trial.fetch.dataset,
        **({"batch_sampler": sampler} if trial.fetch.batched else {"batch_size": None, "sampler": sampler}),
        num_workers=trial.workers,
        collate_fn=trial.fetch.collate_fn,
        worker_init_fn=init,
        prefetch_factor=trial.prefetch_factor,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    loader.fetch = trial.fetch
    return _Run(batches, lambda before: iter(loader))


class _Loader(torch.utils.data.DataLoader[Any]):
    """torch's loader, with our worker processes."""

    fetch: Fetch

    def _get_iterator(self) -> Any:
        return ProcessPass(self, self.fetch, key=lambda: (0, 0), composes=self.fetch.composes)


def some_indices(size: int, count: int = 256) -> list[int]:
    """Return indices that are spread over a dataset of a size."""
    chosen: list[int] = np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64)).tolist()
    return chosen
