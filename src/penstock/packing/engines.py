"""Who writes the shards of a packing: the protocol, and threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol

from penstock.packing.finishing import ShardRecord
from penstock.packing.shard_work import ShardWork
from penstock.system.cpus import usable_cpus


@dataclass(frozen=True)
class Packing:
    """How far a packing is."""

    samples: int
    of: int
    bytes: int
    """Of the shards that are written, whole and in part."""


@dataclass(eq=False)
class Progress:
    """Adds up how far a packing is, and tells of it. Any thread may call any method; one is told at a time."""

    of: int
    tell: Callable[[Packing], None] | None
    samples: int = 0
    bytes: int = 0
    """Of what is written, samples and bytes of shards that are kept included."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, samples: int, size: int) -> None:
        """Count what was written."""
        with self._lock:
            self.samples += samples
            self.bytes += size
            if self.tell is not None:
                self.tell(Packing(self.samples, self.of, self.bytes))

    def in_work(self, samples: int, size: int) -> None:
        """Tell of what is written of shards that are not finished, beside what is counted."""
        with self._lock:
            if self.tell is not None:
                self.tell(Packing(self.samples + samples, self.of, self.bytes + size))


class Engine(Protocol):
    """Writes shards."""

    def write(self, work: ShardWork, shards: Sequence[int], progress: Progress) -> dict[int, ShardRecord]:
        """Write these shards; return the record of each. Raises what writing one raises."""


@dataclass(frozen=True)
class ThreadEngine:
    """Threads of this process, which take a shard each."""

    workers: int | None
    """None: one a core, or a single one where the dataset is not Penstock's."""

    def write(self, work: ShardWork, shards: Sequence[int], progress: Progress) -> dict[int, ShardRecord]:
        """Write these shards; return the record of each. Raises what writing one raises."""
        stop = threading.Event()

        def after(added: int, samples: int = 1) -> None:
            if stop.is_set():
                raise _Stopped
            progress.add(samples, added)

        def write(shard: int) -> ShardRecord:
            try:
                return work.write(shard, after)
            except BaseException:
                stop.set()
                raise

        threads = self.workers or (usable_cpus() if all(leaf.safe for leaf in work.contents.leaves) else 1)
        with ThreadPoolExecutor(min(threads, max(1, len(shards))), "penstock-pack") as pool:
            running = {shard: pool.submit(write, shard) for shard in shards}
            try:
                wait(running.values(), return_when=FIRST_EXCEPTION)
                _raise_first(list(running.values()))
                return {shard: future.result() for shard, future in running.items()}
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)


def _raise_first(futures: list[Future[ShardRecord]]) -> None:
    """Raise the error that made the others stop."""
    for future in futures:
        error = future.exception() if future.done() and not future.cancelled() else None
        if error is not None and not isinstance(error, _Stopped):
            raise error


class _Stopped(Exception):
    """Another thread failed: this one stops."""
