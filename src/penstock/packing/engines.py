"""Who writes the shards of a packing: threads of this process, or packers, which are actors of a Ray cluster."""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cluster.connection import Facts, check, connected, files_of, here, no_place, pickled, stored, unseen
from penstock.cluster.option import Ray
from penstock.errors import ClusterError, WorkerDied
from penstock.packing.contents import contents_of
from penstock.packing.encoding import Encoding
from penstock.packing.index_writer import ShardRecord
from penstock.packing.places import Place
from penstock.packing.plan import Plan, digest_of_shard
from penstock.packing.shard_writer import ShardWork
from penstock.sample_notes import add_note
from penstock.sources.naming import names_of
from penstock.system.cpus import usable_cpus
from penstock.system.words import counted

#: How often a shard may be lost with its packer, and how often in a row packers may fail to start.
_LOSSES, _STARTS = 3, 3
#: Seconds between looks at how far the packers are.
_LOOK = 0.5
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
        """Count what was written."""
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
            running = {pool.submit(write, shard): shard for shard in shards}
            records = {}
            try:
                for future in as_completed(running):
                    with suppress(_Stopped):  # the error that made it stop comes too
                        records[running[future]] = future.result()
                return records
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)


class _Stopped(Exception):
    """Another thread failed: this one stops."""


# --- packers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackJob:
    """What a packer works with, as it is sent to it."""

    dataset: Any
    to_bytes: Callable[[Any], Any] | None
    place: Place
    encoding: Encoding
    plan: Plan


class Packer:
    """The actor."""

    def open(self, job: bytes, stamps: NDArray[np.int64], files: Sequence[tuple[str, int]]) -> Facts:
        """Return what is to be known of the packer before it writes."""
        facts = here(missing=unseen(files))
        self._job, self._stamps, self._place = job, stamps, facts.place
        return facts

    def prepare(self) -> None:
        """List the dataset. Raises ClusterError where this node does not see what the plan was made of."""
        job: PackJob = pickle.loads(self._job)
        contents = contents_of(job.dataset, job.to_bytes)
        self._work = ShardWork(job.place, contents, job.encoding, job.plan, self._stamps)
        found = [digest_of_shard(contents, self._work.samples(n), self._stamps) for n in range(len(job.plan.ends))]
        if tuple(found) != job.plan.digests:
            raise ClusterError(
                f"{self._place} sees other samples, or other labels, than the process that packs: give a dataset on a "
                "file system that all nodes share, under one path"
            )

    def write(self, shard: int, attempt: int) -> ShardRecord:
        """Write a shard; return its record."""
        return self._work.write(shard, lambda added, samples: None, f".{attempt}")


@dataclass(eq=False)
class _Hired:
    """A packer, and what it was asked last."""

    actor: Any
    asked: Any
    """Ray's reference to the answer; None: it has nothing to do."""
    facts: Facts | None = None
    ready: bool = False
    shard: int | None = None


@dataclass(eq=False)
class PackerEngine:
    """Packers of a Ray cluster, which take a shard each."""

    cluster: Ray
    dataset: Any
    to_bytes: Callable[[Any], Any] | None
    workers: int | None
    """Packers at the most; None: as many as the cluster has free."""
    _hired: list[_Hired] = field(default_factory=list)

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
        self._begin(work)
        try:
            self._waiting = deque(shards)
            for _ in range(min(len(shards), self._wanted())):
                self._hire()
            while len(records) < len(shards):
                asked = [one.asked for one in self._hired if one.asked is not None]
                ready, _ = self._ray.wait(asked, num_returns=1, timeout=_LOOK)
                for packer in [one for one in self._hired if one.asked in ready]:
                    shard, record = packer.shard, self._answered(packer)
                    if shard is not None and record is not None:
                        records[shard] = record
                        progress.add(record.shard.samples, record.shard.bytes)
                progress.add(0, 0)  # told twice a second, so that it can stop the packing
                self._check_start()
                self._assign()
        finally:
            for packer in self._hired:
                self._kill(packer)
            self._hired.clear()
        return records

    def _begin(self, work: ShardWork) -> None:
        """Connect, and store what the packers are sent."""
        chosen = range(0, work.contents.size, max(1, -(-work.contents.size // _FILES)))
        files = files_of([*work.place.shared, *(path for _, path in names_of(self.dataset, chosen))])
        self._ray = connected(self.cluster)
        job = PackJob(self.dataset, self.to_bytes, work.place, work.encoding, work.plan)
        sent = pickled(job, type(self.dataset).__qualname__, self.dataset)
        self._arguments = stored(self._ray, sent), stored(self._ray, work.stamps), files
        self._losses: dict[int, int] = {}
        self._attempts = self._failures = 0
        self._none_since = time.monotonic()

    def _wanted(self) -> int:
        if self.workers is not None:
            return self.workers
        return max(1, int(self._ray.available_resources().get("CPU", 0) // self.cluster.cpus))

    def _hire(self) -> None:
        placed = self._ray.remote(Packer).options(**self.cluster.placement())
        actor = placed.remote()
        self._hired.append(_Hired(actor, actor.open.remote(*self._arguments)))

    def _answered(self, packer: _Hired) -> ShardRecord | None:
        """Return the record of a shard that a packer has written, None where the answer is another one."""
        try:
            found = self._ray.get(packer.asked)
        except self._ray.exceptions.RayTaskError as error:
            raised = error.cause if isinstance(error.cause, Exception) else error
            add_note(raised, "in a packer" if packer.facts is None else f"in a packer on {packer.facts.place}")
            raise raised from error
        except self._ray.exceptions.RayError as error:
            self._lost(packer, error)
            return None
        if packer.facts is None:
            check(found, "the packer")
            packer.facts = found
            packer.asked = packer.actor.prepare.remote()
            return None
        self._failures = 0
        packer.ready, packer.shard, packer.asked = True, None, None
        return found if isinstance(found, ShardRecord) else None

    def _assign(self) -> None:
        for packer in self._hired:
            if packer.ready and packer.asked is None and self._waiting:
                self._attempts += 1
                packer.shard = self._waiting.popleft()
                packer.asked = packer.actor.write.remote(packer.shard, self._attempts)

    def _lost(self, packer: _Hired, error: Exception) -> None:
        """Have the shard of a lost packer written by another one."""
        self._hired.remove(packer)
        self._kill(packer)
        why = " ".join(str(error).split())[:400]
        if packer.shard is None:
            self._failures += 1
            if self._failures >= _STARTS:
                what = counted(_STARTS, "packer")
                raise ClusterError(f"{what} failed to start, one after the other: {why}") from error
        else:
            self._waiting.appendleft(packer.shard)
            losses = self._losses[packer.shard] = self._losses.get(packer.shard, 0) + 1
            if losses >= _LOSSES:
                raise WorkerDied(
                    f"{_LOSSES} packers ended one after the other while they wrote shard {packer.shard}: one of its "
                    f"samples may end their process. The last one: {why}"
                ) from error
        self._hire()

    def _check_start(self) -> None:
        """Raise ClusterError where no packer has been at work for too long."""
        if any(packer.ready for packer in self._hired):
            self._none_since = time.monotonic()
        elif time.monotonic() - self._none_since > self.cluster.start_timeout:
            raise no_place(self._ray, self.cluster, "packer")

    def _kill(self, packer: _Hired) -> None:
        with suppress(Exception):  # it is gone, or Ray is
            if self._ray.is_initialized():
                self._ray.kill(packer.actor)


Engine = ThreadEngine | PackerEngine
