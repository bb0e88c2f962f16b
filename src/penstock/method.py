"""worker_method=: who calls a dataset that only Python can read, and why "auto" took whom."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset

from penstock.composed import natively_in_this_process
from penstock.cpus import usable_cpus
from penstock.errors import InvalidOption
from penstock.fetch import Fetch, Task
from penstock.measure import ENOUGH, Measured, draws_of, measure, some_indices

T = TypeVar("T")

#: How long trying a few samples may take before processes are chosen without, in seconds.
PATIENCE_SECONDS = 60.0


class Method(Enum):
    """Who calls the dataset."""

    PROCESS = "process"
    THREAD = "thread"
    AUTO = "auto"


def method_of(value: object) -> Method | None:
    """Return the method of a worker_method= argument; "multiprocessing", torch's word, is "process".

    Raises InvalidOption.
    """
    if value is None:
        return None
    try:
        return Method("process" if value == "multiprocessing" else value)
    except ValueError:
        raise InvalidOption(
            f"worker_method={value!r}: it is 'process', 'thread', 'auto', or None for torch's processes"
        ) from None


def shares(value: object, method: Method | None) -> bool:
    """Return a share_dataset= argument. Raises InvalidOption."""
    if not isinstance(value, bool):
        raise InvalidOption(f"share_dataset={value!r}: it is True or False")
    if value and method not in (Method.THREAD, Method.AUTO):
        raise InvalidOption(
            "share_dataset=True is for worker_method='thread' or 'auto': worker processes share nothing"
        )
    return value


@dataclass(frozen=True)
class Choice:
    """What "auto" came to."""

    method: Method
    why: str


def choose(measured: Measured, workers: int, cpus: int, *, seeded: bool) -> Choice:
    """Return the method that is foretold to be the faster, and the figures behind it.

    seeded: the loader has a seed, and global generators must be functions of the sample, which threads cannot give.
    """
    threads, processes = measured.threads(workers, cpus), measured.processes(workers, cpus)
    figures = (
        f"one thread fetches {measured.one:,.0f} samples/s and two {measured.two:,.0f}; foretold for {workers}: "
        f"{threads:,.0f} in threads, {processes:,.0f} in processes"
    )
    if seeded and measured.draws:
        return Choice(
            Method.PROCESS,
            f"processes: with seed= the draws from {and_join(measured.draws)} must follow the sample; {figures}",
        )
    if threads >= ENOUGH * processes:
        return Choice(Method.THREAD, f"threads: {figures}")
    return Choice(Method.PROCESS, f"processes: {figures}")


def try_out(fetch: Fetch, batch_size: int, workers: int, *, seeded: bool) -> Choice:
    """Return the method for a dataset, after fetching a few of its samples on one thread and on two."""
    if isinstance(fetch.dataset, IterableDataset):
        return Choice(Method.PROCESS, "processes: an iterable dataset cannot be tried without going through it")
    if workers == 0:
        return Choice(Method.THREAD, "the caller's thread, as num_workers=0 says")
    try:
        size = len(fetch.dataset)
        if size == 0:
            return Choice(Method.THREAD, "threads: the dataset is empty")
        measured = _apart(lambda: measure(fetch, Task(None, 0, 0), some_indices(size), batch_size))
    except Exception as error:  # the dataset's own, or it has no length, or takes other indices
        return Choice(Method.PROCESS, f"processes: trying a few samples failed, {error}")
    return choose(measured, workers, usable_cpus(), seeded=seeded)


def _apart(work: Callable[[], T]) -> T:
    """Return what a function returns in a forked child: files it opens and what it counts end there.

    A file that a dataset opens at its first sample would be shared, with its position, by all processes forked
    later. Raises RuntimeError for what it raises, or if it takes too long.
    """
    reader, writer = multiprocessing.connection.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)  # OpenMP's threads do not exist in the child
            natively_in_this_process()
            try:
                answer: Any = work()
            except Exception as error:
                answer = _Raised(f"{type(error).__name__}: {error}")
            writer.send((isinstance(answer, _Raised), answer))
        finally:
            os._exit(0)
    writer.close()
    try:
        if not reader.poll(PATIENCE_SECONDS):
            raise RuntimeError(f"its samples took longer than {PATIENCE_SECONDS:.0f} s")
        raised, answer = reader.recv()
    except EOFError:
        raise RuntimeError("the process that tried them ended without a word") from None
    finally:
        reader.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if raised:
        raise RuntimeError(answer)
    return answer  # type: ignore[no-any-return]


class _Raised(str):
    """What an exception said, in place of an answer."""


def draws_in_threads(fetch: Fetch) -> tuple[str, ...]:
    """Return which global generators a dataset draws from, as its first sample shows."""
    try:
        return _apart(lambda: draws_of(fetch, Task(None, 0, 0), 0))
    except Exception:  # whatever ails the dataset is raised where its batch is
        return ()


def and_join(names: tuple[str, ...]) -> str:
    """Return names as in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
