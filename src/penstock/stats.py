"""What a loader has done: counters, and frozen snapshots of them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from penstock.call_counts import CallCounts
from penstock.loop_model import Measured
from penstock.loop_times import LoopMeter, LoopTimes
from penstock.observe import Delivery, Meter, Observer, Reading, StageTime
from penstock.system.locks import ProcessLock
from penstock.verdict import verdict

#: What metrics() has: shares of the waits, in per cent; fields of TierCounts, summed over the tiers; of IndexCounts; of
#: Reading; of ActorCounts.
_QUANTILES = (50, 90, 99)
_OF_TIERS = ("samples", "bytes", "hits", "dropped")
_OF_INDEX = ("photos", "bytes", "hits", "changed")
_OF_READING = ("depth", "ahead", "awaited", "direct", "bytes")
_OF_FILLERS = ("lost", "again", "batches", "bytes", "arriving_seconds")


@dataclass(frozen=True)
class TierCounts:
    """What a tier keeps, and what came from it."""

    samples: int
    """Samples that it keeps, of all datasets of the loader; all processes that share it have put them there."""
    bytes: int
    """Bytes that they take."""
    limit: int
    """The most bytes that it may take."""
    hits: int
    """Samples of this process, and of its forked workers, that came from it."""
    dropped: int
    """Samples that were read from their files anew, as what it had was damaged or of another file."""
    decoded: int
    """How many of these samples are kept as pixels, of cache_decoded=True."""
    error: str | None
    """Why this process keeps no more samples in it, where a write failed; None: no write did."""


@dataclass(frozen=True)
class IndexCounts:
    """What the indexes of JPEG decoder states hold of a loader's photos, and what came of it."""

    photos: int
    """Photos of which a state is known; all processes of the user that read them have added to it."""
    bytes: int
    """Bytes that the indexes take."""
    hits: int
    """Images of this process, and of its forked workers, that were decoded from a known state on."""
    changed: int
    """Images that were decoded from their first row on, as what was known is damaged or of another file."""
    error: str | None
    """Why this process keeps no more states, where a write failed; None: no write did."""


@dataclass(frozen=True)
class ActorCounts:
    """What the fillers of a Ray cluster did for a loader, over all of its passes."""

    nodes: Mapping[str, int]
    """Fillers that are at work now, by their node."""
    lost: int
    """Fillers that were lost, with their process or their node."""
    again: int
    """Batches that were requested again, because their filler was lost."""
    batches: int
    """Batches that came from fillers, errors in their place included."""
    bytes: int
    """Bytes of these."""
    arriving_seconds: float
    """Time in which batches were taken out of Ray's object store."""


@dataclass(frozen=True)
class Stats:
    """A snapshot of a loader's counters, over all of its epochs."""

    batches: int
    """Batches handed to the user."""
    samples: int
    """Samples in those batches: what the sampler gave for each. Of an iterable dataset, what the batch shows; where its
    loader has a collate_fn of its own, batch_size for each batch, so that short ones count as full."""
    wait_seconds: float
    """Time that the user's thread waited for batches (with num_workers=0: filled them): loop.waited."""
    read_by_python: dict[str, int]
    """Samples that the native core left to Pillow, torch.load or numpy, by reason."""
    buffers_lent: int
    """Batch buffers of 64 KiB or more (smaller ones are torch's) that the user, or a batch in flight, holds now."""
    buffers_free: int
    """Batch buffers kept for the next batches."""
    buffers_created: int
    """Batch buffers that were created, because no free one was left."""
    stages: dict[str, StageTime]
    """What the workers spent in each stage, in seconds of all of them together, and its samples. Native threads: open,
    read, check (of a file's CRC), decode, resize, convert, gather, write, and wait (for a reader). Reader threads:
    read_ahead. Python: getitem, collate (within getitem
    where threads fetch whole batches), and iterate over an iterable dataset (not in worker processes). Of batches that
    go to a device: copy, the host's time; work on the device is not in it."""
    calls: dict[str, CallCounts]
    """Calls of costly functions by a dataset's own code, by the function's public name: how many the native core
    answered, and how many it left to the original function, by reason. "torchvision transforms" counts images; one
    whose transforms are done natively in part counts as answered and under what was not."""
    cache: dict[str, TierCounts]
    """What each tier of cache= keeps, by its name: "memory", or the folder. Empty without one, and with fillers of
    a Ray cluster."""
    reading: Reading
    """What reader threads did ahead of native and Python threads, where reads of files block."""
    loop: LoopTimes
    """What the loops over the loader's batches did with their time."""
    measured: Measured | None
    """Why the loops wait, as far as the passes show it; None: they were too short to tell."""
    jpeg_index: IndexCounts | None = None
    """Decoder states of JPEG files, which save decoding rows above a crop; None: no pass used any."""
    fillers: ActorCounts | None = None
    """What fillers of a Ray cluster did; None: worker_method= names no cluster. Their stages are in `stages`."""

    @property
    def verdict(self) -> str:
        """Why the loop waited, in a sentence, and what would help; empty where the passes were too short to tell."""
        return "" if self.measured is None else verdict(self.measured)

    def metrics(self, prefix: str = "penstock/") -> dict[str, float]:
        """Return the counters as a flat dictionary of numbers, for loggers of metrics.

        Times are in seconds, over all passes. docs/metrics.md has the names; those of stages appear with their stage.

        Args:
            prefix: of each name.
        """
        loop, reading = self.loop, self.reading
        found: dict[str, float] = {
            "batches": self.batches,
            "samples": self.samples,
            "wait_seconds": loop.waited,
            "first_wait_seconds": loop.first_waited,
            "work_seconds": loop.worked,
            "device_idle_seconds": loop.device_idle,
            "wait_share": loop.wait_share,
            "longest_wait_seconds": loop.longest_wait,
            "queue_depth": loop.queue_depth,
            **{f"wait_p{share}_seconds": loop.wait_quantile(share / 100) for share in _QUANTILES},
            "read_by_python/samples": sum(self.read_by_python.values()),
            "buffers_lent": self.buffers_lent,
            "buffers_free": self.buffers_free,
            "buffers_created": self.buffers_created,
            "calls/answered": sum(one.answered for one in self.calls.values()),
            "calls/refused": sum(one.calls for counts in self.calls.values() for one in counts.refused.values()),
            **{f"cache/{name}": sum(getattr(tier, name) for tier in self.cache.values()) for name in _OF_TIERS},
            **{f"jpeg_index/{name}": getattr(self.jpeg_index, name, 0) for name in _OF_INDEX},
            **{f"reading/{name}": getattr(reading, name) for name in _OF_READING},
            "fillers/at_work": 0 if self.fillers is None else sum(self.fillers.nodes.values()),
            **{f"fillers/{name}": getattr(self.fillers, name, 0) for name in _OF_FILLERS},
        }
        for stage, spent in self.stages.items():
            found |= {f"stage/{stage}/{name}": value for name, value in spent._asdict().items()}
        return {f"{prefix}{name}": float(value) for name, value in found.items()}


class Counters(Observer):
    """The counters behind Stats. Any thread may call any method."""

    reads_counts = True  # the clock of a pass in the caller's thread counts in the meter's counter

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self.meter = Meter()
        self.loop = LoopMeter(self.meter.counter)
        self._read_by_python: dict[str, int] = {}

    def delivered(self, delivery: Delivery) -> None:
        """Count a batch handed to the user, and why Python read some of its samples."""
        self.meter.counter.hand_out(delivery.samples)
        if delivery.read_by_python:
            with self._lock:
                for reason in delivery.read_by_python:
                    self._read_by_python[reason] = self._read_by_python.get(reason, 0) + 1

    @property
    def batches(self) -> int:
        """Batches handed to the user."""
        return self.meter.counter.direct()[0]

    @property
    def samples(self) -> int:
        """Samples handed to the user."""
        return self.meter.counter.direct()[1]

    def snapshot(
        self,
        buffers: tuple[int, int, int],
        cache: dict[str, TierCounts],
        found: Measured | None,
        jpeg_index: IndexCounts | None = None,
        fillers: ActorCounts | None = None,
    ) -> Stats:
        """Return the counters now, with the given (lent, free, created) buffers, tiers and so on."""
        batches, samples, _ = self.meter.counter.direct()
        with self._lock:
            read_by_python = dict(self._read_by_python)
        meter, loop = self.meter, self.loop.times()
        stages, calls, (reading,) = meter.stages(), meter.calls.counts(), meter.reading.rows()
        counted = (batches, samples, loop.waited, read_by_python)
        return Stats(*counted, *buffers, stages, calls, cache, reading, loop, found, jpeg_index, fillers)


def samples_given(given: Any) -> int:
    return operator.length_hint(given, 1)


def samples_in(batch: Any, given: int, *, iterable: bool, stacks: bool) -> int:
    """Return the number of samples of a batch for which so many were asked.

    Args:
        batch: as the user gets it.
        given: by the sampler.
        iterable: the dataset may have given fewer.
        stacks: default_collate made the batch, and shows it.
    """
    return _samples_shown(batch) if iterable and stacks else given


def _samples_shown(batch: Any) -> int:
    """Return the number of samples of a batch that default_collate made."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    if isinstance(batch, Mapping):
        return _samples_shown(next(iter(batch.values()))) if batch else 1
    if isinstance(batch, tuple | list) and batch:
        # Fields, or strings that stay what they are: one for each sample.
        return _samples_shown(batch[0]) if isinstance(batch[0], torch.Tensor | Mapping | tuple | list) else len(batch)
    return 1
