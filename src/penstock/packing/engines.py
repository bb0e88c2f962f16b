"""Who writes the shards of a packing: threads of this process, or packers, which are actors of a Ray cluster."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cluster.connection import Facts, check, connected, files_of, here, no_place, pickled, stored, unseen
from penstock.cluster.dispatch import Dispatcher
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

    def in_work(self, samples: int, size: int) -> None:
        """Tell of what is written of shards that are not finished, beside what is counted."""
        with self._lock:
            if self.tell is not None:
                self.tell(Packing(self.samples + samples, self.of, self.bytes + size))


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
    """The actor. Ray calls `write` in one thread of it and `progress` in another."""

    def __init__(self) -> None:
        self._samples = self._bytes = 0

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

    def write(self, shard: int, attempt: int) -> tuple[ShardRecord, int]:
        """Write a shard; return its record and its number."""
        self._samples = self._bytes = 0
        return self._work.write(shard, self._after, f".{attempt}"), shard

    def _after(self, added: int, samples: int) -> None:
        self._samples += samples
        self._bytes += added

    def progress(self) -> tuple[int, int]:
        """Return the samples and bytes of the shard in work."""
        return self._samples, self._bytes


@dataclass(eq=False)
class _Hired:
    """A packer, and what it was asked last."""

    actor: Any
    asked: Any
    """Ray's reference to the answer; None: it has nothing to do."""
    facts: Facts | None = None
    ready: bool = False
    shard: int | None = None
    done: tuple[int, int] = (0, 0)
    """Samples and bytes of the shard in work, as they were known last."""
    looking: Any = None


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
            for shard in shards:
                self._dispatcher.ask(shard)
            for _ in range(min(len(shards), self._wanted())):
                self._hire()
            while len(records) < len(shards):
                asked = [one.asked for one in self._hired if one.asked is not None]
                ready, _ = self._ray.wait(asked, num_returns=1, timeout=_LOOK)
                for packer in [one for one in self._hired if one.asked in ready]:
                    found = self._answered(packer)
                    if found is not None:
                        record, shard = found
                        records[shard] = record
                        progress.samples += record.shard.samples
                        progress.bytes += record.shard.bytes
                self._look(progress)
                self._assign()
        finally:
            for packer in self._hired:
                self._kill(packer)
            self._hired.clear()
        progress.in_work(0, 0)
        return records

    def _begin(self, work: ShardWork) -> None:
        """Connect, and store what the packers are sent."""
        chosen = range(0, work.contents.size, max(1, -(-work.contents.size // _FILES)))
        files = files_of([*work.place.shared, *(path for _, path in names_of(self.dataset, chosen))])
        self._ray = connected(self.cluster)
        job = PackJob(self.dataset, self.to_bytes, work.place, work.encoding, work.plan)
        sent = pickled(job, type(self.dataset).__qualname__, self.dataset)
        self._arguments = stored(self._ray, sent), stored(self._ray, work.stamps), files
        self._dispatcher = Dispatcher(requests=1)
        self._losses: dict[int, int] = {}
        self._attempts = self._failures = 0
        self._none_since = time.monotonic()

    def _wanted(self) -> int:
        if self.workers is not None:
            return self.workers
        return max(1, int(self._ray.available_resources().get("CPU", 0) // self.cluster.cpus))

    def _hire(self) -> None:
        placed = self._ray.remote(Packer).options(**self.cluster.placement(), max_concurrency=2)
        actor = placed.remote()
        self._hired.append(_Hired(actor, actor.open.remote(*self._arguments)))

    def _answered(self, packer: _Hired) -> tuple[ShardRecord, int] | None:
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
        if not packer.ready:
            packer.ready = True
            self._dispatcher.join(packer)
        else:
            self._dispatcher.done(packer, found[1])
        packer.shard, packer.done, packer.asked, packer.looking = None, (0, 0), None, None
        return found if isinstance(found, tuple) else None

    def _assign(self) -> None:
        for packer, shard in self._dispatcher.assign():
            assert isinstance(packer, _Hired)
            self._attempts += 1
            packer.shard = shard
            packer.asked = packer.actor.write.remote(shard, self._attempts)

    def _lost(self, packer: _Hired, error: Exception) -> None:
        """Have the shard of a lost packer written by another one."""
        self._hired.remove(packer)
        self._kill(packer)
        self._dispatcher.leave(packer)
        why = " ".join(str(error).split())[:400]
        if packer.shard is None:
            self._failures += 1
            if self._failures >= _STARTS:
                what = counted(_STARTS, "packer")
                raise ClusterError(f"{what} failed to start, one after the other: {why}") from error
        else:
            losses = self._losses[packer.shard] = self._losses.get(packer.shard, 0) + 1
            if losses >= _LOSSES:
                raise WorkerDied(
                    f"{_LOSSES} packers ended one after the other while they wrote shard {packer.shard}: one of its "
                    f"samples may end their process. The last one: {why}"
                ) from error
        self._hire()

    def _look(self, progress: Progress) -> None:
        """Ask how far the packers are; raise ClusterError where none has been at work for too long."""
        for packer in self._hired:
            if packer.shard is not None and packer.looking is not None:
                found, _ = self._ray.wait([packer.looking], timeout=0)
                if found:
                    with suppress(self._ray.exceptions.RayError):
                        packer.done = self._ray.get(packer.looking)
                    packer.looking = None
            if packer.shard is not None and packer.looking is None:
                packer.looking = packer.actor.progress.remote()
        if any(packer.ready for packer in self._hired):
            self._none_since = time.monotonic()
        elif time.monotonic() - self._none_since > self.cluster.start_timeout:
            raise no_place(self._ray, self.cluster, "packer")
        progress.in_work(sum(one.done[0] for one in self._hired), sum(one.done[1] for one in self._hired))

    def _kill(self, packer: _Hired) -> None:
        with suppress(Exception):  # it is gone, or Ray is
            if self._ray.is_initialized():
                self._ray.kill(packer.actor)


Engine = ThreadEngine | PackerEngine
