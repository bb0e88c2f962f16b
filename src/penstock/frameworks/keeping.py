"""Accelerate, told to keep penstock loaders.

Accelerate builds a torch loader in the place of each loader that it prepares, from a fixed list of torch's arguments.
Here its own code decides everything (shards, even batches, devices, generators), and only then a penstock loader
takes the place of that torch loader inside Accelerate's adapter. No module of Accelerate is imported or changed: the
one object that is changed is the Accelerator that the caller gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset

from penstock.errors import InvalidOption
from penstock.frameworks.prepared import Prepared, Seeded
from penstock.loader import DataLoader

AcceleratorT = TypeVar("AcceleratorT")


def keep_loaders(accelerator: AcceleratorT) -> AcceleratorT:
    """Make an accelerate.Accelerator keep the penstock loaders that it prepares, with all their arguments.

    Its `prepare`, `prepare_data_loader` and `skip_first_batches` then return Accelerate's own adapters with a
    penstock.DataLoader inside. Loaders of other classes, those derived from penstock.DataLoader among them, are
    treated as before. With a seed the order of epoch `iteration` of the adapter is a function of (seed, epoch).

    A prepared loader that is given to `accelerator.register_for_checkpointing` is saved by `save_state` and restored by
    `load_state`, in the middle of an epoch too: the next pass goes on there, and skip_first_batches is not needed.

    Args:
        accelerator: of Accelerate 1.8 or newer; it is changed in place and returned.

    Raises:
        InvalidOption: use_stateful_dataloader=True, which asks for torchdata's loader.
    """
    theirs: Any = accelerator
    if theirs.use_stateful_dataloader:
        raise InvalidOption(
            "use_stateful_dataloader=True puts torchdata's StatefulDataLoader in the place of a penstock loader; "
            "leave it False, and give what prepare returns to accelerator.register_for_checkpointing: save_state and "
            "load_state then go on in the middle of an epoch"
        )
    if getattr(theirs.prepare_data_loader, "func", None) is not _prepare:
        theirs.prepare_data_loader = functools.partial(_prepare, theirs, theirs.prepare_data_loader)
        theirs.skip_first_batches = functools.partial(_skip, theirs, theirs.skip_first_batches)
        theirs.register_for_checkpointing = functools.partial(_register, theirs.register_for_checkpointing)
    return accelerator


# In the place of Accelerator.prepare_data_loader: the same arguments, after the Accelerator and the original.
def _prepare(accelerator: Any, prepare: Callable[..., Any], data_loader: Any, *args: Any, **kwargs: Any) -> Any:
    if type(data_loader) is not DataLoader:  # one of Accelerate's adapters with ours inside only says that it is one
        return prepare(data_loader, *args, **kwargs)
    if data_loader.shard is not None:
        raise InvalidOption(
            f"Accelerator.prepare cuts the batches among the processes, as shard={data_loader.shard!r} does: give "
            "shard=None, or leave the loader unprepared"
        )
    made = _with_ours(data_loader, prepare(_as_torchs(data_loader), *args, **kwargs))
    made.prepared = Prepared(made, accelerator.num_processes, skips=False)
    return made


# In the place of Accelerator.skip_first_batches: the same arguments, after the Accelerator and the original.
def _skip(accelerator: Any, skip: Callable[..., Any], dataloader: Any, num_batches: int = 0) -> Any:
    ours = dataloader if type(dataloader) is DataLoader else vars(dataloader).get("base_dataloader")
    if not isinstance(ours, DataLoader):
        return skip(dataloader, num_batches)
    if _goes_on(ours):
        raise InvalidOption(
            "a state was loaded, and the next pass goes on behind the batches that were handed out before: go through "
            "the loader itself, without skip_first_batches"
        )
    if ours is dataloader:
        return _with_ours(ours, skip(_as_torchs(ours), num_batches))
    guard = vars(dataloader).pop("timeout")
    try:
        made = _with_ours(ours, skip(dataloader, num_batches))
    finally:
        dataloader.timeout = guard
    made.iteration = dataloader.iteration  # which Accelerate 1.8 does not hand on
    made.prepared = Prepared(made, accelerator.num_processes, skips=True)
    return made


# In the place of Accelerator.register_for_checkpointing: the same arguments, after the original.
def _register(register: Callable[..., Any], *objects: Any) -> Any:
    for each in objects:
        prepared = getattr(each, "prepared", None)
        if isinstance(prepared, Prepared):
            prepared.state_dict()  # what cannot be saved is said here, not at the first checkpoint
    return register(*objects)


def _goes_on(loader: DataLoader[Any]) -> bool:
    """Return whether the next pass goes on in the middle of an epoch."""
    state = loader._resume
    return state is not None and (state["position"] > 0 or state["batches"] > 0 or state.get("dataset") is not None)


def _as_torchs(loader: DataLoader[Any]) -> torch.utils.data.DataLoader[Any]:
    """Return torch's loader with the attributes of ours, for Accelerate to copy."""
    plain: torch.utils.data.DataLoader[Any] = object.__new__(torch.utils.data.DataLoader)
    vars(plain).update(vars(loader))
    if loader.seed is not None and loader._cuts_itself():
        sampler, size = Seeded(loader.sampler, loader.seed, loader._epochs.number), loader.batch_size or 1
        vars(plain).update(sampler=sampler, batch_sampler=BatchSampler(sampler, size, loader.drop_last))
    return plain


def _with_ours(loader: DataLoader[Any], made: Any) -> Any:
    """Replace the torch loader that Accelerate made, bare or inside an adapter, by ours with `loader`'s arguments."""
    if type(made) is torch.utils.data.DataLoader:
        return _again(loader, made)
    base = vars(made).get("base_dataloader")
    if type(base) is not torch.utils.data.DataLoader:
        raise InvalidOption(
            f"a penstock loader cannot be kept inside {type(made).__module__}.{type(made).__name__}: "
            f"Accelerate 1.8 or newer and a device other than a TPU are needed; else use torch.utils.data.DataLoader"
        )
    made.base_dataloader = _again(loader, base)
    made.timeout = _NotToBeCopied(base.timeout)
    made._is_accelerate_prepared = True
    return made


def _again(loader: DataLoader[Any], base: torch.utils.data.DataLoader[Any]) -> DataLoader[Any]:
    """Return a penstock loader of the samples that a torch loader reads."""
    if base.batch_size is None and base.batch_sampler is not None:
        return loader.again(base.dataset, batch_sampler=base.batch_sampler)
    sampler = None if isinstance(base.dataset, IterableDataset) else base.sampler
    return loader.again(base.dataset, batch_size=base.batch_size, drop_last=base.drop_last, sampler=sampler)


class _NotToBeCopied(float):
    """The timeout that an adapter shows. Nobody compares it but torch's constructor, when a copy is made of the
    adapter's attributes without ours: accelerate.skip_first_batches, beside the Accelerator, does so."""

    def __lt__(self, other: float) -> bool:
        raise InvalidOption(
            "a torch loader is being made from the attributes of a prepared penstock loader, which would lose its own; "
            "call accelerator.skip_first_batches, of the Accelerator that was given to keep_loaders"
        )
