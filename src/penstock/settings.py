"""A loader's arguments and attributes at one moment: programs set some between two passes."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from itertools import takewhile
from operator import attrgetter, is_
from typing import Any

import torch
from torch.utils.data import IterableDataset, MapDataPipe

from penstock.errors import InvalidOption


class Method(Enum):
    """Who calls a dataset that only Python can read."""

    PROCESS = "process"
    THREAD = "thread"
    AUTO = "auto"
    RAY = "ray"


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
            f"worker_method={value!r}: it is 'process', 'thread', 'auto', 'ray' or a penstock.Ray, or None for torch's "
            "processes"
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


def refuse_for_fillers(cluster: object, dataset: object, num_workers: int | None) -> None:
    """Raise InvalidOption for a loader that fillers of a cluster cannot work for. cluster: None where there is none."""
    if cluster is None:
        return
    if isinstance(dataset, IterableDataset | MapDataPipe):
        raise InvalidOption(
            f"worker_method='ray' needs a map-style dataset: a {type(dataset).__name__} makes its own order, and what "
            "a lost filler had read of it nobody could read again"
        )
    if not num_workers:
        raise InvalidOption(
            f"worker_method='ray' needs num_workers=, the number of fillers, at least 1, not {num_workers!r}: each "
            "takes what penstock.Ray(cpus=, resources=) says of the cluster"
        )


@dataclass(eq=False)
class Given:
    """What a loader was given that its attributes do not show."""

    own_order: bool
    """Neither a sampler nor a batch_sampler was given."""
    prefetch: bool
    """prefetch_factor= was given."""
    method: Method | None
    """Of worker_method=."""
    seeded: torch.Generator | None
    """What torch's own samplers and iterators draw from, where the loader has a seed."""
    caches: Any = None
    """Of cache=: storage.tiers.Caches, or None."""
    indexes: Any = None
    """Of the loader's photos: storage.jpeg_index.JpegIndexes."""
    cluster: Any = None
    """cluster.option.Ray, where worker_method= names a cluster."""
    workers: int | None = None
    """The number of workers that was chosen because num_workers was None; a program that sets it otherwise has the last
    word."""


@dataclass(frozen=True, eq=False)
class Settings:
    """What one pass, or one question, goes by. Attributes have the names and meanings of the loader's arguments."""

    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    drop_last: bool
    num_workers: int
    collate_fn: Any
    pin_memory: bool
    pin_memory_device: str
    timeout: float
    worker_init_fn: Any
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    seed: int | None
    shard: Any
    ledger: str | os.PathLike[str] | None
    device: Any
    share_dataset: bool
    index_sampler: Any
    """What torch's loader goes through: the batch_sampler, or the sampler where batch_size is None."""
    batched: bool
    """The loader makes batches."""
    noted_length: int | None
    """What len() of an iterable dataset was when len() of the loader was called."""
    method: Method | None
    own_order: bool
    prefetch_given: bool
    seeded: torch.Generator | None
    caches: Any
    indexes: Any
    cluster: Any
    """The cluster.option.Ray whose nodes fill batches; None: this machine does."""
    workers_chosen: bool
    """num_workers= was not given, and no program has set it since."""
    blocks: Any = None
    """The order.blocks.Blocks that the dataset is shuffled in; None: it is shuffled as a whole."""

    @cached_property
    def iterable(self) -> bool:
        """Whether the dataset makes its own order."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def on_demand(self) -> bool:
        """Whether torch's loader would do nothing before the first batch is asked for."""
        return self.num_workers == 0 or self.workers_chosen

    @property
    def in_flight(self) -> int | None:
        """Batches in flight as prefetch_factor= says; None: chosen by their size."""
        return (self.prefetch_factor or 0) * self.num_workers if self.prefetch_given else None

    @property
    def draws_from(self) -> torch.Generator | None:
        """What torch's own iterators draw a base seed from; None: torch's global generator."""
        return self.generator or self.seeded


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The settings of a loader, and the objects that they were taken from."""

    taken: tuple[Any, ...] = ()
    settings: Settings | None = None

    def now(self, loader: Any, given: Given, sampler: Any, blocks: Any) -> Snapshot:
        """Return the snapshot of a loader as it is now: this one where every attribute is the object that it was.

        sampler: says which samples come. blocks: what the dataset is shuffled in.
        """
        noted = getattr(loader, "_IterableDataset_len_called", None)
        taken = (*_attributes_of(loader), noted, given, given.workers, sampler, blocks)
        if len(taken) == len(self.taken) and all(map(is_, taken, self.taken)):
            return self
        return Snapshot(taken, _settings_of(loader, given, sampler, blocks, noted))


def _settings_of(loader: Any, given: Given, sampler: Any, blocks: Any, noted: int | None) -> Settings:
    attributes = {name: getattr(loader, name) for name in _ATTRIBUTES}
    return Settings(
        **{**attributes, "sampler": sampler},
        index_sampler=loader._index_sampler,
        batched=loader._auto_collation,
        noted_length=noted,
        method=given.method,
        own_order=given.own_order,
        prefetch_given=given.prefetch,
        seeded=given.seeded,
        caches=given.caches,
        indexes=given.indexes,
        cluster=given.cluster,
        workers_chosen=given.workers is not None and given.workers == loader.num_workers,
        blocks=blocks,
    )


#: The fields that are attributes of a loader by the same name.
_ATTRIBUTES = list(takewhile(lambda name: name != "index_sampler", (field.name for field in fields(Settings))))
_attributes_of = attrgetter(*_ATTRIBUTES, "_index_sampler", "_auto_collation")
