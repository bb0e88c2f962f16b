"""worker_method=: who calls a dataset that only Python can read, and why "auto" took whom."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset

from penstock.executors.copies import NotCopied
from penstock.executors.fetch import Fetch
from penstock.executors.measure import Measurement, Trial, draws_of, try_both
from penstock.executors.workers.own_fetch import OwnFetches
from penstock.executors.workers.worker_info import WORKER_INFO, ThreadWorkerInfo, as_worker
from penstock.hooks.calls import natively_in_this_process
from penstock.observe import ProcessTimes, StageTime
from penstock.recipe.drawing import HOOKS
from penstock.recipe.patches import Lease
from penstock.settings import Method
from penstock.state.delivery import Task

T = TypeVar("T")

#: How long a trial may take in all, in seconds: what is not known then is not waited for.
LIMIT_SECONDS = 1.0
#: More for each worker, which must be started.
LIMIT_EACH_SECONDS = 0.02
#: How many times as fast as processes threads must be at least, to be chosen: code may do in a thread what shows in no
#: trial.
WORTH_THREADS = 1.3
#: What threads spend on a batch beside fetching and collating its samples, in seconds: twice what was measured.
THREAD_BATCH_SECONDS = 1e-4
#: Batches of worker processes from which on passes are judged: fewer show little but the start of the workers.
FEWEST_BATCHES = 50
#: How many times as fast threads must be at least, so that they are advised.
WORTH_A_CHANGE = 1.2


@dataclass(frozen=True)
class Choice:
    """What "auto" came to."""

    method: Method
    why: str


@dataclass(frozen=True)
class OneThread:
    """What passes in worker processes took, and what one thread would need for the same."""

    processes: float
    """Seconds that the passes took, the loop's own work between the batches included."""
    alone: float
    """Seconds that one thread would need for the same samples, if it and the loop worked in turn."""

    @property
    def factor(self) -> float:
        """How many times as fast threads would be at least: one of them works where more of them do not help."""
        return self.processes / self.alone


def one_thread(times: ProcessTimes, stages: Mapping[str, StageTime], samples: int) -> OneThread | None:
    """Return what is known of threads from passes in worker processes; None: too little.

    Args:
        times, stages: of the loader so far.
        samples: that it handed out so far, by worker processes or in another way.
    """
    if times.batches < FEWEST_BATCHES or times.samples != samples:
        return None
    fetching = sum(stages[stage].seconds for stage in ("getitem", "collate") if stage in stages)
    return OneThread(times.loader + times.loop, fetching + times.loop + times.batches * THREAD_BATCH_SECONDS)


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


def and_join(names: tuple[str, ...]) -> str:
    """Return names as in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
