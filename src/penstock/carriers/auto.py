"""worker_method=: who calls a dataset that only Python can read, and why "auto" took whom.

"auto" has one thread, and all threads, make a few of the loader's batches in a forked child. That shows whether
samples hold Python's lock. What worker processes would do follows: each works as one thread does, as far as there are
CPUs, and a batch costs its way to this process. A sample is read once at most: what it takes from a queue is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset

from penstock.carriers.worker_thread import WORKER_INFO, ThreadWorkerInfo, set_for_this_thread
from penstock.hooks.calls import natively_in_this_process
from penstock.loop_model import TRANSFER_SECONDS
from penstock.recipe import drawing
from penstock.recipe.keyed_methods import HOOKS
from penstock.recipe.patches import Lease
from penstock.settings import Method, Settings, known_size
from penstock.showing import said
from penstock.state.delivery import Task
from penstock.system.limits import usable_cpus
from penstock.system.randomness import generator_states, generators_drawn_from
from penstock.system.words import and_join, counted
from penstock.verdict import WORTH_THREADS
from penstock.workers.copies import NotCopied
from penstock.workers.own_workers import OwnWorkers
from penstock.workers.worker import Worker

T = TypeVar("T")

#: How long a trial may take in all, in seconds, and more for each worker: what is not known then is not waited for.
LIMIT_SECONDS, LIMIT_EACH_SECONDS = 1.0, 0.02
#: Rounds of one thread, and of all, which make so many batches in each. The fastest counts: other programs slow others.
ROUNDS, BATCHES_OF_ALL = 2, 2
#: A trial's batch is made smaller where it would take one worker longer, in seconds.
BATCH_SECONDS = 0.01
#: What the start of a worker process takes, in seconds, and a batch in threads.
START_SECONDS, THREAD_BATCH_SECONDS = 0.025, 1e-4


@dataclass(frozen=True)
class Measurement:
    """What a trial has found."""

    draws: tuple[str, ...]
    """Global generators that the dataset draws from."""
    one: float
    """Seconds a sample of one thread."""
    all: float
    """Of all threads at once."""


@dataclass(frozen=True)
class Choice:
    """What "auto" came to."""

    method: Method
    why: str


def choose(found: Measurement, workers: int, size: int, samples: int | None, *, seeded: bool) -> Choice:
    """Return threads where they are so much faster that it pays, else processes, and the figures behind it.

    Args:
        workers, size: of the loader, and of its batches.
        samples: of an epoch, for which workers are started anew; None: their start does not count.
        seeded: the loader has a seed, and global generators must be functions of the sample, which threads cannot give.
    """
    if seeded and found.draws:
        return Choice(
            Method.PROCESS, f"processes: with seed= the draws from {and_join(found.draws)} must follow the sample"
        )
    threads = min(found.one, found.all) + THREAD_BATCH_SECONDS / size
    processes = max(found.one / min(workers, usable_cpus()), TRANSFER_SECONDS / size)
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
    return Choice(Method.PROCESS, f"processes: {why}; threads are used where they are {WORTH_THREADS} times as fast")


def try_out(settings: Settings, worker: Worker, samples: int | None) -> Choice:
    """Return the method for a dataset, after threads have fetched some batches of it for a moment.

    It takes at most LIMIT_SECONDS, and LIMIT_EACH_SECONDS more for each worker, whatever the samples take.

    samples: of an epoch, as `choose` takes them.
    """
    dataset, workers, size = settings.dataset, settings.num_workers, settings.batch_size or 1
    if isinstance(dataset, IterableDataset):
        return Choice(Method.PROCESS, "processes: an iterable dataset cannot be tried without reading it")
    if workers == 0:
        return Choice(Method.THREAD, "the caller's thread, as num_workers=0 says")
    if multiprocessing.current_process().daemon:
        return Choice(Method.THREAD, "threads: this process is a worker, and may have no worker processes")
    seconds = LIMIT_SECONDS + LIMIT_EACH_SECONDS * workers
    try:
        if known_size(dataset) == 0:
            return Choice(Method.THREAD, "threads: the dataset is empty")
        own = OwnWorkers(worker, settings.worker_init_fn, shared=settings.share_dataset)
        found = _apart(lambda: measure(worker, own, workers, size), seconds)
    except NotCopied as error:
        return not_copied(error)
    except drawing.SeededInThread as error:
        return Choice(Method.PROCESS, f"processes: {str(error).partition('. ')[0]}")
    except (TypeError, _Failed) as error:  # the dataset's own, or it takes other indices, or has no length
        return Choice(Method.PROCESS, f"processes: trying a few samples failed, {error}")
    if found is None:
        return Choice(Method.PROCESS, f"processes: a trial of threads was not over after {seconds:.1f} s")
    return choose(found, workers, size, samples, seeded=settings.seed is not None)


def not_copied(error: NotCopied) -> Choice:
    """Return the choice for a dataset that threads cannot have copies of."""
    return Choice(Method.PROCESS, f"processes: {error.what}, and each thread needs a copy of the dataset")


def draws_in_threads(worker: Worker) -> tuple[str, ...]:
    """Return which global generators a dataset draws from, as its first sample shows."""

    def find() -> tuple[str, ...]:
        set_for_this_thread(ThreadWorkerInfo(0, 1, 0, worker.dataset))  # with its own generators, for those who ask
        return _draws_of(worker, 0)

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
    NotCopied and SeededInThread as it does, and _Failed for what else it raises.
    """
    reader, writer = multiprocessing.connection.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            writer.send(_outcome(work))
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
        raise _Failed("the process that tried them ended without an answer") from None
    finally:
        reader.close()
        for kill in (os.killpg, os.kill):  # processes that the dataset has started too
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if error is not None:
        raise error
    return found  # type: ignore[no-any-return]


def _outcome(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what a function returns, and the error that it raises."""
    os.setpgid(0, 0)  # what it starts is ended with it
    warnings.simplefilter("ignore")  # the loader itself gives them
    torch.set_num_threads(1)  # OpenMP's threads do not exist in the child
    natively_in_this_process()
    try:
        with Lease(HOOKS, drawing.SEEDING, WORKER_INFO):
            return work(), None
    except (NotCopied, drawing.SeededInThread) as error:
        return None, error
    except Exception as error:
        return None, _Failed(f"{type(error).__name__}: {said(error)}")


def _draws_of(worker: Worker, index: Any) -> tuple[str, ...]:
    """Return which global generators one sample, or its collate_fn, draws from."""
    before, task = generator_states(), Task(None, 0, 0)
    sample = worker.sample(task, index)
    if worker.batched and not worker.stacks:
        with contextlib.suppress(Exception):  # what ails it is raised at its batch
            worker.collate(task._replace(given=[index, index]), [sample, sample])
    return generators_drawn_from(before)


def measure(worker: Worker, own: OwnWorkers, workers: int, size: int) -> Measurement:
    """Return what a trial finds. Raises what the dataset raises, NotCopied where threads are refused.

    The process that calls it must be one that ends then: samples are fetched.

    Args:
        worker: of the loader.
        own: what each thread fetches with.
        workers, size: threads, and samples of a batch.
    """
    length = len(worker.dataset)
    needed = 2 + ROUNDS * (size + max(BATCHES_OF_ALL * size, workers))
    spread = range(0, length, max(1, length // needed))  # over the dataset; each is read once
    begun = perf_counter()
    draws = _draws_of(worker, spread[0])  # the first one also opens and imports what later ones need not
    for index in spread[1:2]:
        begun = perf_counter()
        worker.sample(Task(None, 0, 0), index)
    seconds = max(perf_counter() - begun, 1e-9)
    size = max(1, min(size, int(BATCH_SECONDS / seconds), len(spread) // (ROUNDS * (1 + BATCHES_OF_ALL))))
    indices = iter(spread[2:])
    one = _in_threads(1, own, indices, size) or seconds
    every = _in_threads(workers, own, indices, max(1, min(size, BATCHES_OF_ALL * size // workers))) or one
    return Measurement(draws, one, every)


def _in_threads(threads: int, own: OwnWorkers, indices: Iterable[Any], size: int) -> float:
    """Return the seconds a sample of so many threads at once, 0 where no index is left. size: samples of a batch."""
    rounds = [[list(islice(indices, size)) for _ in range(threads)] for _ in range(ROUNDS)]
    taken = [own.take() for _ in range(threads)]
    times = []

    def work(number: int, turn: int) -> tuple[float, float]:
        worker, init = taken[number]
        set_for_this_thread(ThreadWorkerInfo(number, threads, number, worker.dataset))
        if init is not None and turn == 0:
            init(number)
        with drawing.beside_others():
            begun = perf_counter()
            if given := rounds[turn][number]:
                _make(worker, given)
            return begun, perf_counter()

    own.begin()
    try:
        with contextlib.ExitStack() as stack:
            pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(threads)]  # a copy stays in its thread
            for turn, batches in enumerate(rounds):
                working = [pool.submit(work, number, turn) for number, pool in enumerate(pools)]
                begun, ended = zip(*(one.result() for one in working), strict=True)
                if any(batches):
                    times.append((max(ended) - min(begun)) / sum(map(len, batches)))
        own.check()
    except Exception as error:
        raise own.explained(error)  # noqa: B904  # it has its cause
    return min(times, default=0.0)


def _make(worker: Worker, given: list[Any]) -> None:
    if worker.batched and not (worker.stacks and worker.one_by_one):
        worker.make(Task(given, 0, 0, range(len(given))))
        return
    for index in given:
        worker.sample(Task(None, 0, 0), index)  # and a crew writes it to its row while caches hold it
