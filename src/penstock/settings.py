"""A loader's arguments and attributes at one moment: programs set some between two passes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cached_property
from itertools import takewhile
from operator import attrgetter, is_
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, IterDataPipe, MapDataPipe, RandomSampler, SequentialSampler

from penstock.errors import InvalidOption
from penstock.padded import Padded, PaddedSequences
from penstock.system.urls import is_url


class Method(Enum):
    """What calls a dataset that only Python can read."""

    PROCESS = "process"
    THREAD = "thread"
    AUTO = "auto"
    RAY = "ray"


@dataclass(eq=False)
class Given:
    """What a loader was given that its attributes do not show."""

    own_order: bool
    """Neither a sampler nor a batch_sampler was given."""
    prefetch_given: bool
    """prefetch_factor= was."""
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
    size: int | None = None
    """The length of the dataset, where the loader makes the order; None: it has none, or is not asked."""
    taken: tuple[Any, ...] = ()
    """What they were taken from: the loader's attributes, and what its samplers hold."""
    known: dict[str, Any] = field(default_factory=dict, init=False)
    """What order.batches has found out about these settings, once for all passes that go by them."""

    @cached_property
    def iterable(self) -> bool:
        """Whether the dataset makes its own order."""
        return isinstance(self.dataset, IterableDataset)

    @cached_property
    def is_pipe(self) -> bool:
        """Whether the dataset is a DataPipe."""
        return isinstance(self.dataset, IterDataPipe | MapDataPipe)

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


def known_size(dataset: Any) -> int | None:
    """Return the number of samples of a dataset; None: it has no length, which torch asks for its own samplers only."""
    try:
        return len(dataset)
    except Exception:  # of the user's __len__: it is raised where torch would ask
        return None


def settings_now(loader: Any, given: Given, sampler: Any, blocks: Any, kept: Settings | None) -> Settings:
    """Return the settings of a loader as it is now: `kept`, where nothing has changed since.

    Args:
        sampler: says which samples come.
        blocks: what the dataset is shuffled in.
        kept: of an earlier moment.
    """
    size, batches = None, loader.batch_sampler
    attributes = _attributes_of(loader)
    taken = [*attributes, sampler, blocks, given, given.workers, loader._IterableDataset_len_called]
    if type(sampler) in (RandomSampler, SequentialSampler):
        taken += vars(sampler).values()
        if given.own_order:
            size = known_size(loader.dataset)
    if type(batches) is BatchSampler:
        taken += vars(batches).values()
    if kept is not None and size == kept.size and len(taken) == len(kept.taken) and all(map(is_, taken, kept.taken)):
        return kept
    settings = object.__new__(Settings)  # its __init__ takes 10 us: it sets each of the fields by itself
    vars(settings).update(
        zip(_ATTRIBUTES, attributes, strict=True),
        **vars(given),
        index_sampler=loader._index_sampler,
        batched=loader._auto_collation,
        noted_length=loader._IterableDataset_len_called,
        workers_chosen=given.workers is not None and given.workers == loader.num_workers,
        blocks=blocks,
        size=size,
        taken=taken,
        known={},
    )
    vars(settings)["sampler"] = sampler
    return settings


#: The fields that are attributes of a loader by the same name.
_ATTRIBUTES = list(takewhile(lambda name: name != "index_sampler", (one.name for one in fields(Settings))))
_attributes_of = attrgetter(*_ATTRIBUTES)


# --- checks of arguments, with the exceptions that torch raises later -------------------------------------------------


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


def method_for(value: object, cluster: object, dataset: object, num_workers: int | None) -> Method | None:
    """Return the method of a worker_method= argument. Raises InvalidOption where it cannot read the dataset.

    cluster: that the argument names; None: none.
    """
    method = method_of(value) if cluster is None else Method.RAY
    if method is Method.THREAD and isinstance(dataset, IterDataPipe | MapDataPipe):
        raise InvalidOption("worker_method='thread' cannot read DataPipes, which keep one state: use 'process'")
    if cluster is not None and isinstance(dataset, IterableDataset | MapDataPipe):
        raise InvalidOption(
            f"worker_method='ray' needs a map-style dataset: a {type(dataset).__name__} makes its own order, and what "
            "a lost filler had read of it cannot be read again"
        )
    if cluster is not None and not num_workers:
        raise InvalidOption(
            f"worker_method='ray' needs num_workers=, the number of fillers, at least 1, not {num_workers!r}: each "
            "takes what penstock.Ray(cpus=, resources=) says of the cluster"
        )
    return method


def shares(value: object, method: Method | None) -> bool:
    """Return a share_dataset= argument. Raises InvalidOption."""
    if not isinstance(value, bool):
        raise InvalidOption(f"share_dataset={value!r}: it is True or False")
    if value and method not in (Method.THREAD, Method.AUTO):
        raise InvalidOption(
            "share_dataset=True is for worker_method='thread' or 'auto': worker processes share nothing"
        )
    return value


def check_kinds(dataset: object, collate_fn: object, **switches: object) -> None:
    """Raise InvalidOption for a path, a table or a class as the dataset, and for the class Padded as collate_fn=.

    switches: arguments that are True or False, by name: texts are refused.
    """
    for name, value in switches.items():
        if isinstance(value, str):
            raise InvalidOption(f"{name}={value!r} is a text, which counts as True: write {name}=True or {name}=False")
    if hasattr(type(dataset), "iloc") and hasattr(type(dataset), "columns"):
        rows = "penstock.Arrays(frame.to_numpy())"
        raise InvalidOption(f"the dataset is a DataFrame, whose items are columns: give its rows, such as {rows}")
    if isinstance(dataset, str | os.PathLike):
        if is_url(dataset):
            raise InvalidOption(f"dataset={dataset!r} is a URL: penstock.Shards({dataset!r}) reads packed shards there")
        raise InvalidOption(
            f"dataset={dataset!r} is a path: penstock.ImageFolder({os.fspath(dataset)!r}) reads a folder of images, "
            f"penstock.TensorFolder one of .pt and .npy files"
        )
    if isinstance(dataset, type):
        raise InvalidOption(f"the dataset is the class {dataset.__name__}: give an object, {dataset.__name__}(...)")
    if collate_fn is Padded or collate_fn is PaddedSequences:
        raise InvalidOption(f"collate_fn={collate_fn.__name__}: it is a class; give an object, {collate_fn.__name__}()")


def check_numbers(
    *, num_workers: Any, batch_size: Any, timeout: Any, prefetch_factor: Any, snapshot_every_n_steps: Any
) -> None:
    """Raise TypeError for what is not a number; InvalidOption, a ValueError, for a number of samples or steps."""
    for name, value in (("num_workers", num_workers), ("prefetch_factor", prefetch_factor)):
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"{name} must be an integer, or None for the default, not {value!r}")
    if isinstance(timeout, complex) or not (hasattr(timeout, "__float__") or hasattr(timeout, "__index__")):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}; 0 waits without limit")
    if batch_size is not None and not isinstance(batch_size, int):
        raise InvalidOption(
            f"batch_size must be an int or None, which batches nothing, not {batch_size!r} of type "
            f"{type(batch_size).__name__}"
        )
    steps = snapshot_every_n_steps
    if steps is not None and not (type(steps) is int and steps >= 0):
        raise InvalidOption(f"snapshot_every_n_steps={steps!r}: it is a number of steps, 0 or more, or None")
