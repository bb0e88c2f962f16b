"""What writes the shards of a packing: threads of this process, or packers, which are actors of a Ray cluster."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cluster.connection import Facts, connected, files_of, here, pickled, stored
from penstock.cluster.crew import Crew
from penstock.cluster.option import Ray
from penstock.errors import ClusterError, WorkerDied
from penstock.packing.contents import contents_of
from penstock.packing.plan import digest_of
from penstock.packing.shard_writer import ShardRecord, ShardWork
from penstock.sources.naming import names_of
from penstock.system.limits import usable_cpus

#: Files of the dataset that each node is asked for, evenly spread.
_FILES = 16


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
        with self._lock:
            self.samples += samples
            self.bytes += size
            if self.tell is not None:
                self.tell(Packing(self.samples, self.of, self.bytes))


@dataclass(frozen=True)
class ThreadEngine:
    """Threads of this process, which take a shard each."""

    workers: int | None
    """None: one a core, or a single one where the dataset is not Penstock's."""

    def write(self, work: ShardWork, shards: Sequence[int], progress: Progress) -> dict[int, ShardRecord]:
        """Write these shards; return the record of each. Raises what writing one raises."""
        stop = threading.Event()

        def after(added: int, samples: int) -> None:
            if stop.is_set():  # nobody looks at what another thread's error has ended
                raise CancelledError
            progress.add(samples, added)

        threads = self.workers or (usable_cpus() if all(leaf.safe for leaf in work.contents.leaves) else 1)
        with ThreadPoolExecutor(min(threads, max(1, len(shards))), "penstock-pack") as pool:
            running = {pool.submit(work.write, shard, after): shard for shard in shards}
            try:
                return {running[future]: future.result() for future in as_completed(running)}
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)


# --- packers ----------------------------------------------------------------------------------------------------------


class Packer:
    """The actor. Its number is in the names of its temporary files: one that was given up may still write to them."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._work: ShardWork | None = None

    def open(self, job: bytes, stamps: NDArray[np.int64], files: Sequence[tuple[str, int]]) -> Facts:
        """Return what is to be known of the packer before it writes. job: a pickle of what shards are made of."""
        self._job, self._stamps = job, stamps
        return here(files)

    def work(self, shard: int) -> ShardRecord:
        """Write a shard; return its record. Raises ClusterError where this node sees another dataset than the plan."""
        if self._work is None:
            dataset, to_bytes, place, encoding, plan = pickle.loads(self._job)
            contents = contents_of(dataset, to_bytes)
            if digest_of(contents, self._stamps) != plan.digest:
                raise ClusterError(
                    "this node sees other samples, or other labels, than the process that packs: give a dataset on a "
                    "file system that all nodes share, under one path"
                )
            self._work = ShardWork(place, contents, encoding, plan, self._stamps)
        return self._work.write(shard, lambda added, samples: None, f".{self._number}")


@dataclass(frozen=True)
class PackerEngine:
    """Packers of a Ray cluster, which take a shard each."""

    cluster: Ray
    dataset: Any
    to_bytes: Callable[[Any], Any] | None
    workers: int | None
    """Packers at the most; None: as many as the cluster has free."""

    def write(self, work: ShardWork, shards: Sequence[int], progress: Progress) -> dict[int, ShardRecord]:
        """Write these shards; return the record of each.

        Raises:
            InvalidOption: Ray is not installed.
            ClusterUnreachable: the cluster is not there.
            ClusterError: the dataset cannot be pickled; the object store of Ray is full; no packer starts, or a node is
                not fit for the work.
            WorkerDied: packers end again and again at the same shard.
            Exception: what writing a shard raises.
        """
        records: dict[int, ShardRecord] = {}
        if not shards:
            return records
        crew = self._crew(work, len(shards))
        try:
            for shard in shards:
                crew.give(shard, shard)
            while len(records) < len(shards):
                crew.take(1.0)
                for shard, record in crew.answers.items():
                    if isinstance(record, WorkerDied):
                        raise record
                    records[shard] = record
                    progress.add(record.shard.samples, record.shard.bytes)
                crew.answers.clear()
                progress.add(0, 0)  # told twice a second, so that it can stop the packing
        finally:
            crew.close()
        return records

    def _crew(self, work: ShardWork, most: int) -> Crew:
        """Connect, and store what the packers are sent."""
        chosen = range(0, work.contents.size, max(1, -(-work.contents.size // _FILES)))
        files = files_of([*work.place.shared, *(path for _, path in names_of(self.dataset, chosen))])
        ray = connected(self.cluster)
        job = (self.dataset, self.to_bytes, work.place, work.encoding, work.plan)
        sent = pickled(job, self.dataset)
        arguments = stored(ray, sent), stored(ray, work.stamps), files
        workers = self.workers or max(1, int(ray.available_resources().get("CPU", 0) // self.cluster.cpus))
        return Crew(
            ray, self.cluster, Packer, arguments, min(workers, most), what="packer",
            doing=lambda shard: f"wrote shard {shard}",
        )  # fmt: skip


Engine = ThreadEngine | PackerEngine
