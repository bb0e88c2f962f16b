"""worker_method=: who calls a dataset that only Python can read, and why "auto" took whom.

"auto" has one thread, and all threads, make a few batches of the loader's own in a forked child. That shows whether
samples hold Python's lock. What worker processes would do follows: each works as one thread does, and a batch costs its
way to this process. The batches are the loader's, or smaller where those would take longer than there is time.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import IterableDataset

from penstock.executors.collating import layout_of
from penstock.executors.copies import NotCopied
from penstock.executors.fetch import Fetch
from penstock.executors.workers.own_fetch import Init, OwnFetches
from penstock.executors.workers.worker_thread import WORKER_INFO, ThreadWorkerInfo, as_worker
from penstock.hooks.calls import natively_in_this_process
from penstock.observe import Instant
from penstock.recipe import drawing
from penstock.recipe.keyed_methods import HOOKS
from penstock.recipe.patches import Lease
from penstock.settings import Method
from penstock.state.delivery import Task
from penstock.system.limits import usable_cpus
from penstock.system.randomness import generator_states, generators_drawn_from
from penstock.system.words import and_join, counted

T = TypeVar("T")

#: How long a trial may take in all, in seconds: what is not known then is not waited for.
LIMIT_SECONDS = 1.0
#: More for each worker, which must be started.
LIMIT_EACH_SECONDS = 0.02
#: How many times as fast as processes threads must be at least, to be chosen: code may do in a thread what shows in no
#: trial.
WORTH_THREADS = 1.3
#: Windows of one thread, and of all, and their seconds. The fastest counts: what else runs only slows them down.
ROUNDS, WINDOW_SECONDS = 2, 0.045
#: A trial's batch is made smaller where it would take one worker longer, in seconds.
BATCH_SECONDS = 0.01
#: Samples that take longer, in seconds, are not tried: beside them neither start nor transfer counts.
SLOW_SECONDS = 0.1
#: What the start of a worker process takes, in seconds, the way of a batch from one, and a batch in threads.
START_SECONDS, TRANSFER_SECONDS, THREAD_BATCH_SECONDS = 0.025, 2e-4, 1e-4
#: Bytes a second that a process copies from its samples to their batch; threads do so while caches hold them.
COPIED_BYTES = 5e9


@dataclass(frozen=True)
class Trial:
    """What is tried: what a loader fetches with, and its arguments."""

    fetch: Fetch
    batch_size: int
    workers: int
    init: Init | None = None
    shared: bool = False
    """All threads use one dataset."""


@dataclass(frozen=True)
class Measurement:
    """What a trial has found, in seconds a sample."""

    draws: tuple[str, ...]
    """Global generators that the dataset draws from."""
    sample: float
    """Of a single sample."""
    one: float | None = None
    """Of one thread; None: samples are too slow to be tried."""
    cpu: float = 0.0
    """Of these, on a CPU."""
    all: float = 0.0
    """Of all threads at once."""
    bytes: int = 0
    """Bytes of a sample, where samples are copied to their batch."""


@dataclass(frozen=True)
class Choice:
    """What "auto" came to."""

    method: Method
    why: str


def choose(found: Measurement, trial: Trial, samples: int | None, *, seeded: bool) -> Choice:
    """Return threads where they are so much faster that it pays, else processes, and the figures behind it.

    Args:
        found: what the trial found.
        samples: of an epoch, for which workers are started anew; None: their start does not count.
        seeded: the loader has a seed, and global generators must be functions of the sample, which threads cannot give.
    """
    if seeded and found.draws:
        return Choice(
            Method.PROCESS, f"processes: with seed= the draws from {and_join(found.draws)} must follow the sample"
        )
    if found.one is None:
        return Choice(
            Method.PROCESS,
            f"processes: a sample took {found.sample:.2g} s, and beside that neither start nor transfer counts",
        )
    workers, size = trial.workers, trial.batch_size
    threads = min(found.one, found.all) + THREAD_BATCH_SECONDS / size
    copying = found.bytes / COPIED_BYTES
    cpus = min(workers, usable_cpus())
    processes = max((found.one + copying) / workers, (found.cpu + copying) / cpus, TRANSFER_SECONDS / size)
    start = START_SECONDS * workers
    why = (
        f"tried for a moment, one thread fetched {1 / found.one:,.0f} samples/s and {counted(workers, 'thread')} "
        f"{1 / found.all:,.0f}; processes would fetch about {1 / processes:,.0f} after a start of {1e3 * start:.0f} ms"
    )
    ratio = processes / threads
    if samples is not None:
        epochs = samples * threads, start + samples * processes
        ratio = epochs[1] / epochs[0]
        why += f"; an epoch of {samples:,} samples takes {epochs[0]:.2g} s and {epochs[1]:.2g} s so"
    if ratio >= WORTH_THREADS:
        return Choice(Method.THREAD, f"threads: {why}; threads are {ratio:.1f} times as fast")
    return Choice(Method.PROCESS, f"processes: {why}; threads pay from {WORTH_THREADS} times as fast on")


def try_out(trial: Trial, samples: int | None, *, seeded: bool) -> Choice:
    """Return the method for a dataset, after threads have fetched some batches of it for a moment.

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
    seconds = LIMIT_SECONDS + LIMIT_EACH_SECONDS * trial.workers
    try:
        if len(dataset) == 0:
            return Choice(Method.THREAD, "threads: the dataset is empty")
        own = OwnFetches(trial.fetch, trial.init, shared=trial.shared)
        found = _apart(lambda: measure(trial, own), seconds)
    except NotCopied as error:
        return not_copied(error)
    except TypeError as error:
        return Choice(Method.PROCESS, f"processes: a few samples cannot be tried, {error}")
    except _Failed as error:  # the dataset's own, or it takes other indices
        return Choice(Method.PROCESS, f"processes: trying a few samples failed, {error}")
    if found is None:
        return Choice(Method.PROCESS, f"processes: a trial of threads was not over after {seconds:.1f} s")
    return choose(found, trial, samples, seeded=seeded)


def not_copied(error: NotCopied) -> Choice:
    """Return the choice for a dataset that threads cannot have copies of."""
    return Choice(Method.PROCESS, f"processes: {error.what}, and each thread needs a copy of the dataset")


def draws_in_threads(fetch: Fetch) -> tuple[str, ...]:
    """Return which global generators a dataset draws from, as its first sample shows."""

    def find() -> tuple[str, ...]:
        with as_worker(ThreadWorkerInfo(0, 1, 0, fetch.dataset)):  # with generators of its own, for those who ask
            return _draws_of(fetch, 0)

    try:
        return _apart(find, LIMIT_SECONDS) or ()
    except _Failed:  # whatever ails the dataset is raised where its batch is
        return ()


# --- in a forked child ------------------------------------------------------------------------------------------------


class _Failed(Exception):
    """What went wrong in the child."""


def _apart(work: Callable[[], T], seconds: float) -> T | None:
    """Return what a function returns in a forked child; None: that is not over after so many seconds.

    Files that it opens and what it counts end with the child, and so do all processes that it starts: a file that a
    dataset opens at its first sample would be shared, with its position, by all processes forked later. Raises
    NotCopied as it does, and _Failed for what else it raises.
    """
    reader, writer = multiprocessing.connection.Pipe(duplex=False)
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
    try:
        if not reader.poll(seconds):
            return None
        found, error = reader.recv()
    except (EOFError, OSError):
        raise _Failed("the process that tried them ended without a word") from None
    finally:
        reader.close()
        for kill in (os.killpg, os.kill):  # processes that the dataset has started too
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if error is not None:
        raise error
    return found  # type: ignore[no-any-return]


def _work_apart(work: Callable[[], Any], writer: Connection) -> None:
    """Send what a function returns, or raises, to the parent."""
    os.setpgid(0, 0)  # what it starts is ended with it
    warnings.simplefilter("ignore")  # the loader itself gives them
    torch.set_num_threads(1)  # OpenMP's threads do not exist in the child
    natively_in_this_process()
    try:
        with Lease(HOOKS, WORKER_INFO):
            writer.send((work(), None))
    except NotCopied as error:
        writer.send((None, error))
    except Exception as error:
        writer.send((None, _Failed(f"{type(error).__name__}: {error}")))


def _draws_of(fetch: Fetch, index: Any) -> tuple[str, ...]:
    """Return which global generators one sample, or its collate_fn, draws from."""
    before, task = generator_states(), Task(None, 0, 0)
    sample = fetch.sample(task, index)
    if fetch.batched and not fetch.stacks:
        with contextlib.suppress(Exception):  # what ails it is raised at its batch
            fetch.collate(replace(task, given=[index, index]), [sample, sample])
    return generators_drawn_from(before)


def measure(trial: Trial, own: OwnFetches) -> Measurement:
    """Return what a trial finds. Raises what the dataset raises, NotCopied where threads are refused.

    The process that calls it must be one that ends then: samples are fetched. own: what each thread fetches with.
    """
    fetch, indices = trial.fetch, cycle(some_indices(len(trial.fetch.dataset)))
    draws = _draws_of(fetch, next(indices))  # the first one also opens and imports what later ones need not
    begun = Instant.now()
    sample = fetch.sample(Task(None, 0, 0), next(indices))
    seconds = Instant.now().time - begun.time
    if seconds > SLOW_SECONDS:
        return Measurement(draws, seconds)
    nbytes = layout_of(sample).nbytes if fetch.stacks else 0
    size = min(trial.batch_size, max(1, int(BATCH_SECONDS / max(seconds, 1e-9))))
    one, cpu = min(_in_threads(1, trial, own, indices, size) for _ in range(ROUNDS))
    every, _ = min(_in_threads(trial.workers, trial, own, indices, size) for _ in range(ROUNDS))
    return Measurement(draws, seconds, one, cpu, every, nbytes)


def _in_threads(threads: int, trial: Trial, own: OwnFetches, indices: Iterator[Any], size: int) -> tuple[float, float]:
    """Return the seconds a sample of so many threads at once, and those of a thread on a CPU.

    size: samples of a batch.
    """

    def work(number: int, fetch: Fetch, init: Init | None) -> tuple[Instant, Instant, int]:
        with as_worker(ThreadWorkerInfo(number, threads, number, fetch.dataset)), drawing.beside_others():
            if init is not None:
                init(number)
                fetch.renew()
            begun, now, batches = (start := Instant.now()), start, 0
            while now.time - begun.time < WINDOW_SECONDS:
                _fetch(fetch, [next(indices) for _ in range(size)])
                now, batches = Instant.now(), batches + 1
            return begun, now, batches * size

    own.begin()
    try:
        with ThreadPoolExecutor(threads) as pool:
            working = [pool.submit(work, number, *own.take()) for number in range(threads)]
        begun, ended, samples = zip(*(one.result() for one in working), strict=True)
        own.check()
    except Exception as error:
        raise own.explained(error)  # noqa: B904  # it has its cause
    wall = max(end.time for end in ended) - min(begin.time for begin in begun)
    cpu = sum(end.cpu_time - begin.cpu_time for begin, end in zip(begun, ended, strict=True))
    return wall / sum(samples), cpu / sum(samples)


def _fetch(fetch: Fetch, given: list[Any]) -> None:
    if fetch.batched and not (fetch.stacks and fetch.one_by_one):
        fetch.load(Task(given, 0, 0, range(len(given))))
        return
    for index in given:
        fetch.sample(Task(None, 0, 0), index)  # and a crew writes it to its row while caches hold it


def some_indices(size: int, count: int = 256) -> list[int]:
    """Return indices that are spread over a dataset of a size."""
    chosen: list[int] = np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64)).tolist()
    return chosen
