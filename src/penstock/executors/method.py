"""worker_method=: who calls a dataset that only Python can read, and why "auto" took whom.

"auto" has one thread, and all threads, make a few batches of the loader's own in a forked child. That shows whether
samples hold Python's lock. What worker processes would do follows: each works as one thread does, as far as there are
CPUs, and a batch costs its way to this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset

from penstock.executors.copies import NotCopied
from penstock.executors.fetch import Fetch
from penstock.executors.workers.own_fetch import Init, OwnFetches
from penstock.executors.workers.worker_thread import WORKER_INFO, ThreadWorkerInfo, set_for_this_thread
from penstock.hooks.calls import natively_in_this_process
from penstock.loop_model import TRANSFER_SECONDS
from penstock.recipe import drawing
from penstock.recipe.keyed_methods import HOOKS
from penstock.recipe.patches import Lease
from penstock.settings import Method, Settings
from penstock.state.delivery import Task
from penstock.system.limits import usable_cpus
from penstock.system.randomness import generator_states, generators_drawn_from
from penstock.system.words import and_join, counted
from penstock.verdict import WORTH_THREADS

T = TypeVar("T")

#: How long a trial may take in all, in seconds, and more for each worker: what is not known then is not waited for.
LIMIT_SECONDS, LIMIT_EACH_SECONDS = 1.0, 0.02
#: Windows of one thread, and of all, and their seconds. The fastest counts: what else runs only slows them down.
ROUNDS, WINDOW_SECONDS = 2, 0.045
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


def try_out(settings: Settings, fetch: Fetch, samples: int | None) -> Choice:
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
        if len(dataset) == 0:
            return Choice(Method.THREAD, "threads: the dataset is empty")
        own = OwnFetches(fetch, settings.worker_init_fn, shared=settings.share_dataset)
        found = _apart(lambda: measure(fetch, own, workers, size), seconds)
    except NotCopied as error:
        return not_copied(error)
    except (TypeError, _Failed) as error:  # the dataset's own, or it takes other indices, or has no length
        return Choice(Method.PROCESS, f"processes: trying a few samples failed, {error}")
    if found is None:
        return Choice(Method.PROCESS, f"processes: a trial of threads was not over after {seconds:.1f} s")
    return choose(found, workers, size, samples, seeded=settings.seed is not None)


def not_copied(error: NotCopied) -> Choice:
    """Return the choice for a dataset that threads cannot have copies of."""
    return Choice(Method.PROCESS, f"processes: {error.what}, and each thread needs a copy of the dataset")


def draws_in_threads(fetch: Fetch) -> tuple[str, ...]:
    """Return which global generators a dataset draws from, as its first sample shows."""

    def find() -> tuple[str, ...]:
        set_for_this_thread(ThreadWorkerInfo(0, 1, 0, fetch.dataset))  # with generators of its own, for those who ask
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
        with Lease(HOOKS, WORKER_INFO):
            return work(), None
    except NotCopied as error:
        return None, error
    except Exception as error:
        return None, _Failed(f"{type(error).__name__}: {error}")


def _draws_of(fetch: Fetch, index: Any) -> tuple[str, ...]:
    """Return which global generators one sample, or its collate_fn, draws from."""
    before, task = generator_states(), Task(None, 0, 0)
    sample = fetch.sample(task, index)
    if fetch.batched and not fetch.stacks:
        with contextlib.suppress(Exception):  # what ails it is raised at its batch
            fetch.collate(task._replace(given=[index, index]), [sample, sample])
    return generators_drawn_from(before)


def measure(fetch: Fetch, own: OwnFetches, workers: int, size: int) -> Measurement:
    """Return what a trial finds. Raises what the dataset raises, NotCopied where threads are refused.

    The process that calls it must be one that ends then: samples are fetched.

    Args:
        fetch: of the loader.
        own: what each thread fetches with.
        workers, size: threads, and samples of a batch.
    """
    length = len(fetch.dataset)
    indices = cycle(range(0, length, -(-length // 256)))  # spread over the dataset
    draws = _draws_of(fetch, next(indices))  # the first one also opens and imports what later ones need not
    begun = perf_counter()
    fetch.sample(Task(None, 0, 0), next(indices))
    size = min(size, max(1, int(BATCH_SECONDS / max(perf_counter() - begun, 1e-9))))
    one, every = (min(_in_threads(count, own, indices, size) for _ in range(ROUNDS)) for count in (1, workers))
    return Measurement(draws, one, every)


def _in_threads(threads: int, own: OwnFetches, indices: Iterator[Any], size: int) -> float:
    """Return the seconds a sample of so many threads at once. size: samples of a batch."""

    def work(number: int, fetch: Fetch, init: Init | None) -> tuple[float, float, int]:
        set_for_this_thread(ThreadWorkerInfo(number, threads, number, fetch.dataset))
        with drawing.beside_others():
            if init is not None:
                init(number)
                fetch.renew()
            begun = now = perf_counter()
            samples = 0
            while now - begun < WINDOW_SECONDS:
                _fetch(fetch, [next(indices) for _ in range(size)])
                now, samples = perf_counter(), samples + size
            return begun, now, samples

    own.begin()
    try:
        with ThreadPoolExecutor(threads) as pool:
            working = [pool.submit(work, number, *own.take()) for number in range(threads)]
        begun, ended, samples = zip(*(one.result() for one in working), strict=True)
        own.check()
    except Exception as error:
        raise own.explained(error)  # noqa: B904  # it has its cause
    return (max(ended) - min(begun)) / sum(samples)  # type: ignore[no-any-return]


def _fetch(fetch: Fetch, given: list[Any]) -> None:
    if fetch.batched and not (fetch.stacks and fetch.one_by_one):
        fetch.load(Task(given, 0, 0, range(len(given))))
        return
    for index in given:
        fetch.sample(Task(None, 0, 0), index)  # and a crew writes it to its row while caches hold it
