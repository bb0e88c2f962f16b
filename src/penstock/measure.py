"""worker_method="auto": a few samples are fetched on one thread and on two, and the faster method is foretold.

Threads of one process share Python's lock: how much of a sample's time holds it shows in how much faster two
threads are than one (Amdahl's law). Worker processes share nothing, and pay for the way of each batch from one
process to the other instead, which is measured too: shared memory of a batch's size, and a connection for each tensor.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from statistics import median
from typing import Any

import numpy as np
import torch

from penstock.collating import Layout, layout_of
from penstock.fetch import Fetch, Task
from penstock.randomness import drawn_from, kept, states
from penstock.workers.surroundings import one_core_each

#: Time that measuring may take where the samples allow it, in seconds.
BUDGET_SECONDS = 0.2
#: Rounds, each of one thread and of two; medians count.
ROUNDS = 3
#: What threads must reach of the processes' rate to be chosen: they start at once, and hold one copy of the dataset.
ENOUGH = 0.95


@dataclass(frozen=True)
class Measured:
    """What a few samples told."""

    one: float
    """Samples a second on one thread."""
    two: float
    """Samples a second on two."""
    cpu_seconds: float
    """Of one sample."""
    transport_seconds: float
    """Of one sample's way from a worker process to this one, half of it paid on each side."""
    draws: tuple[str, ...]
    """Global generators that the dataset draws from."""

    def threads(self, workers: int, cpus: int) -> float:
        """Return the samples a second that so many threads will fetch."""
        serial = min(1.0, max(0.0, 2 * self.one / self.two - 1))
        scaled = self.one / (serial + (1 - serial) / workers)
        return min(scaled, max(self.one, cpus / self.cpu_seconds))

    def processes(self, workers: int, cpus: int) -> float:
        """Return the samples a second that so many processes will fetch."""
        way = self.transport_seconds / 2
        per_worker = min(workers / (1 / self.one + way), cpus / (self.cpu_seconds + self.transport_seconds))
        return min(per_worker, 1 / way) if way else per_worker


def draws_of(fetch: Fetch, task: Task, index: Any) -> tuple[str, ...]:
    """Return which global generators one sample draws from; they are given back as they were."""
    with kept():
        before = states()
        fetch.sample(task, index)
        return drawn_from(before)


def measure(fetch: Fetch, task: Task, indices: Sequence[Any], batch_size: int) -> Measured:
    """Fetch a few samples on one thread and on two. Raises what the dataset raises.

    Args:
        fetch: calls the dataset.
        task: the pass, for samples that depend on it.
        indices: of samples that may be fetched, over and over.
        batch_size: samples of a batch.
    """
    following = _cycle(indices)
    draws = draws_of(fetch, task, next(following))  # the first one also opens and imports what later ones need not
    with kept():
        began = time.perf_counter()
        sample = fetch.sample(task, next(following))
        layout = layout_of(sample)
        seconds = time.perf_counter() - began
        share = BUDGET_SECONDS / (2 * ROUNDS)
        count = min(max(1, int(share / max(seconds, 1e-6))), 10_000)
        ones: list[float] = []
        twos: list[float] = []
        cpu: list[float] = []
        began = time.perf_counter()
        for _ in range(ROUNDS):
            if ones and time.perf_counter() - began > BUDGET_SECONDS:
                break  # samples so slow that a round tells enough
            rate, spent = _run(fetch, task, following, layout, count, threads=1)
            ones.append(rate)
            cpu.append(spent)
            count = min(max(1, int(share * rate)), 10_000)
            twos.append(_run(fetch, task, following, layout, count, threads=2)[0])
        tensors = _tensors(fetch.collate_fn([sample] * batch_size if fetch.batched else sample))
    way = _memory_seconds(layout.nbytes * batch_size) + len(tensors) * _connection_seconds()
    return Measured(median(ones), median(twos), median(cpu), way / batch_size, draws)


def _cycle(indices: Sequence[Any]) -> Iterator[Any]:
    while True:
        yield from indices


def _run(
    fetch: Fetch, task: Task, following: Iterator[Any], layout: Layout, count: int, *, threads: int
) -> tuple[float, float]:
    """Return (samples a second, CPU seconds a sample) of so many threads that fetch `count` samples each."""
    parts = [[next(following) for _ in range(count)] for _ in range(threads)]
    spent = [0.0] * threads
    errors: list[BaseException] = []

    def work(number: int) -> None:
        one_core_each()
        sink = [torch.empty(field.shape, dtype=field.dtype) for field in layout.fields]
        start.wait()
        began = time.thread_time()
        try:
            for index in parts[number]:
                _write(fetch.sample(task, index), sink)
        except BaseException as error:
            errors.append(error)
        spent[number] = time.thread_time() - began

    start = threading.Barrier(threads + 1)
    crew = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for thread in crew:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in crew:
        thread.join()
    elapsed = time.perf_counter() - began
    if errors:
        raise errors[0]
    return threads * count / elapsed, sum(spent) / (threads * count)


def _write(sample: Any, sink: list[torch.Tensor]) -> None:
    """Copy a sample's tensors, as they are copied into rows."""
    values = sample if isinstance(sample, (tuple, list)) else (sample,)
    for value, row in zip((value for value in values if isinstance(value, torch.Tensor)), sink, strict=False):
        if value.shape == row.shape:
            row.copy_(value)


def _tensors(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _memory_seconds(size: int) -> float:
    """Return the seconds that so many bytes cost on their way through new shared memory, as torch sends them."""
    size = max(1, size)
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        sent = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
        _touch(sent).fill_(1)
        descriptor, _ = sent._share_fd_cpu_()
        received = torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)  # type: ignore[attr-defined]
        int(_touch(received)[::4096].sum())
        times.append(time.perf_counter() - began)
    return median(times)


def _connection_seconds() -> float:
    """Return the seconds of a connection such as torch makes for each tensor, to send its descriptor."""
    key = os.urandom(16)
    times = []
    with Listener("\0penstock-" + key.hex(), authkey=key) as listener:

        def serve() -> None:
            for _ in range(ROUNDS):
                with listener.accept() as connection:
                    connection.send(connection.recv())

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        for _ in range(ROUNDS):
            began = time.perf_counter()
            with Client(listener.address, authkey=key) as connection:
                connection.send((0, 0))
                connection.recv()
            times.append(time.perf_counter() - began)
        server.join()
    return median(times)


def _touch(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def some_indices(size: int, count: int = 256) -> list[int]:
    """Return indices that are spread over a dataset of a size."""
    chosen: list[int] = np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64)).tolist()
    return chosen
