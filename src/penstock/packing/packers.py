"""Packers: actors of a Ray cluster that write the shards of one packing to a place that all nodes share."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
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
from penstock.packing.engines import Progress
from penstock.packing.finishing import ShardRecord
from penstock.packing.place import Place
from penstock.packing.plan import Plan, digest_of_shard
from penstock.packing.shard_work import ShardWork
from penstock.sample_notes import add_note
from penstock.sources.naming import names_of
from penstock.system.words import counted

#: How often a shard may be lost with its packer, and how often in a row packers may fail to start.
_LOSSES, _STARTS = 3, 3
#: Seconds between looks at how far the packers are.
_LOOK = 0.5
#: Files of the dataset that each node is asked for, evenly spread.
_FILES = 16


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

    def _after(self, added: int, samples: int = 1) -> None:
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
            ClusterUnreachable, ClusterError: the cluster, or a node of it, cannot do its part.
            WorkerDied: packers end again and again at the same shard.
            Exception: what writing a shard raises.
        """
        if not shards:
            return {}
        job = PackJob(self.dataset, self.to_bytes, work.place, work.encoding, work.plan)
        chosen = range(0, work.contents.size, max(1, -(-work.contents.size // _FILES)))
        paths = [*work.place.shared, *(path for _, path in names_of(self.dataset, chosen))]
        packers = Packers(self.cluster, job, work.stamps, paths, self.workers, progress.in_work)
        records = {}
        try:
            for shard, record in packers.write(shards):
                records[shard] = record
                progress.samples += record.shard.samples
                progress.bytes += record.shard.bytes
        finally:
            packers.close()
        progress.in_work(0, 0)
        return records


@dataclass(eq=False)
class Packers:
    """The packers of one packing, until `close`.

    Args:
        cluster: where they run.
        job: what they are sent.
        stamps: of all samples, shape (samples, 2).
        paths: of files that each node must see.
        count: packers at the most; None: as many as the cluster has free.
        on_progress: called now and then with the samples and bytes of the shards in work.

    Raises:
        InvalidOption: Ray is not installed.
        ClusterUnreachable: the cluster is not there.
        ClusterError: the dataset cannot be pickled; the object store of Ray is full.
    """

    cluster: Ray
    job: PackJob
    stamps: NDArray[np.int64]
    paths: Sequence[str | None]
    count: int | None
    on_progress: Callable[[int, int], None]
    _hired: list[_Hired] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ray = connected(self.cluster)
        job = pickled(self.job, type(self.job.dataset).__qualname__, self.job.dataset)
        self._arguments = stored(self._ray, job), stored(self._ray, self.stamps), files_of(self.paths)
        self._dispatcher = Dispatcher(requests=1)
        self._losses: dict[int, int] = {}
        self._attempts = self._failures = 0
        self._none_since = time.monotonic()

    def write(self, shards: Sequence[int]) -> Iterator[tuple[int, ShardRecord]]:
        """Write shards; yield the number and the record of each, as they are finished.

        Raises:
            ClusterError: no packer starts, or a node is not fit for the work.
            WorkerDied: packers end again and again at the same shard.
            Exception: what writing a shard raises.
        """
        for shard in shards:
            self._dispatcher.ask(shard)
        for _ in range(min(len(shards), self._wanted())):
            self._hire()
        left = len(shards)
        while left:
            asked = [one.asked for one in self._hired if one.asked is not None]
            ready, _ = self._ray.wait(asked, num_returns=1, timeout=_LOOK)
            for packer in [one for one in self._hired if one.asked in ready]:
                record = self._answered(packer)
                if record is not None:
                    left -= 1
                    yield record[1], record[0]
            self._look()
            self._assign()

    def _wanted(self) -> int:
        if self.count is not None:
            return self.count
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

    def _look(self) -> None:
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
        self.on_progress(sum(one.done[0] for one in self._hired), sum(one.done[1] for one in self._hired))

    def _kill(self, packer: _Hired) -> None:
        with suppress(Exception):  # it is gone, or Ray is
            if self._ray.is_initialized():
                self._ray.kill(packer.actor)

    def close(self) -> None:
        """End the packers."""
        for packer in self._hired:
            self._kill(packer)
        self._hired.clear()
