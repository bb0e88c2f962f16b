"""Hugging Face Accelerate keeps penstock loaders, without a call of the user's.

Accelerate builds a torch loader of its own from the attributes of the one that it is given, and so loses whatever torch
does not know. Here it does all of that first (sampler, ranks, devices, generators), and only then a penstock loader
takes the place of that torch loader inside Accelerate's adapter. Two functions of Accelerate, prepare_data_loader and
skip_first_batches, are replaced by ones that look for penstock loaders when one first meets Accelerate, in each module
that has them. Loaders of other classes go straight to what the functions were.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset

from penstock.errors import InvalidOption
from penstock.frameworks.prepared import Prepared, Seeded
from penstock.loader import DataLoader

AcceleratorT = TypeVar("AcceleratorT")

_MODULE = "accelerate.data_loader"
_MARK = "_by_penstock"


def keep_loaders(accelerator: AcceleratorT) -> AcceleratorT:
    """Make an accelerate.Accelerator say early what cannot be kept or saved. Loaders are kept without this call too.

    `prepare`, `prepare_data_loader` and `skip_first_batches` return Accelerate's own adapters with a
    penstock.DataLoader inside, with all its arguments. Loaders of other classes, those derived from penstock.DataLoader
    among them, are treated as before. With a seed the order of epoch `iteration` of the adapter is a function of
    (seed, epoch).

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
    meet_accelerate()
    if getattr(theirs.register_for_checkpointing, "func", None) is not _register:
        theirs.register_for_checkpointing = functools.partial(_register, theirs.register_for_checkpointing)
    return accelerator


def meet_accelerate() -> bool:
    """Let Accelerate's functions look for penstock loaders, if it was imported; return whether they do."""
    module = sys.modules.get(_MODULE)
    if module is None or not all(hasattr(module, name) for name in _REPLACED):
        return False
    for name, ours in _REPLACED.items():
        function = getattr(module, name)
        if not hasattr(function, _MARK):
            _replace(function, ours)
    return True


def _replace(function: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Put `ours`, called with the function before all arguments, in its place in every module that has it."""

    @functools.wraps(function)
    def replaced(*arguments: Any, **named: Any) -> Any:
        return ours(function, *arguments, **named)

    setattr(replaced, _MARK, True)
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", {})
        for name in [name for name, value in list(held.items()) if value is function]:
            setattr(module, name, replaced)


# In the place of accelerate.data_loader.prepare_data_loader: the same arguments, after the original.
def _prepare(prepare: Callable[..., Any], data_loader: Any, *args: Any, **kwargs: Any) -> Any:
    if type(data_loader) is not DataLoader:  # one of Accelerate's adapters with ours inside only says that it is one
        return prepare(data_loader, *args, **kwargs)
    if data_loader.shard is not None:
        raise InvalidOption(
            f"Accelerator.prepare cuts the batches among the processes, as shard={data_loader.shard!r} does: give "
            "shard=None, or leave the loader unprepared"
        )
    made = prepare(_as_torchs(data_loader), *args, **kwargs)
    if not _can_hold_ours(made) and not data_loader.own_options():
        return made  # torchdata's loader, or a TPU's: nothing of ours is lost but speed
    made = _with_ours(data_loader, made)
    made.prepared = Prepared(made, kwargs.get("num_processes"), skips=False)
    return made


# In the place of accelerate.skip_first_batches: the same arguments, after the original.
def _skip(skip: Callable[..., Any], dataloader: Any, num_batches: int = 0) -> Any:
    ours = dataloader if type(dataloader) is DataLoader else vars(dataloader).get("base_dataloader")
    if not isinstance(ours, DataLoader):
        return skip(dataloader, num_batches)
    if ours.resumes:
        raise InvalidOption(
            "a state was loaded, and the next pass goes on behind the batches that were handed out before: go through "
            "the loader itself, without skip_first_batches"
        )
    if ours is dataloader:
        return _with_ours(ours, skip(_as_torchs(ours), num_batches))
    made = _with_ours(ours, skip(dataloader, num_batches))
    made.iteration = dataloader.iteration  # which Accelerate 1.8 does not hand on
    made.prepared = Prepared(made, None, skips=True)
    return made


_REPLACED: dict[str, Callable[..., Any]] = {"prepare_data_loader": _prepare, "skip_first_batches": _skip}


# In the place of Accelerator.register_for_checkpointing: the same arguments, after the original.
def _register(register: Callable[..., Any], *objects: Any) -> Any:
    for each in objects:
        prepared = getattr(each, "prepared", None)
        if isinstance(prepared, Prepared):
            prepared.state_dict()  # what cannot be saved is said here, not at the first checkpoint
    return register(*objects)


def _as_torchs(loader: DataLoader[Any]) -> torch.utils.data.DataLoader[Any]:
    """Return torch's loader with the attributes of ours, for Accelerate to copy."""
    plain: torch.utils.data.DataLoader[Any] = object.__new__(torch.utils.data.DataLoader)
    vars(plain).update(vars(loader))
    key = loader.order_key()
    if key is not None:
        sampler = Seeded(loader.sampler, *key)
        batches = BatchSampler(sampler, loader.batch_size or 1, loader.drop_last)
        vars(plain).update(sampler=sampler, batch_sampler=batches)
    return plain


def _with_ours(loader: DataLoader[Any], made: Any) -> Any:
    """Replace the torch loader that Accelerate made, bare or inside an adapter, by ours with `loader`'s arguments."""
    if type(made) is torch.utils.data.DataLoader:
        return _twin(loader, made)
    if not _can_hold_ours(made):
        raise InvalidOption(
            f"a penstock loader cannot be kept inside {type(made).__module__}.{type(made).__name__}: "
            f"Accelerate 1.8 or newer and a device other than a TPU are needed; else use torch.utils.data.DataLoader"
        )
    made.base_dataloader = _twin(loader, made.base_dataloader)
    made._is_accelerate_prepared = True
    return made


def _can_hold_ours(made: Any) -> bool:
    """Return whether Accelerate made an adapter with a torch loader inside."""
    return type(vars(made).get("base_dataloader")) is torch.utils.data.DataLoader


def _twin(loader: DataLoader[Any], base: torch.utils.data.DataLoader[Any]) -> DataLoader[Any]:
    """Return a penstock loader of the samples that a torch loader reads."""
    if base.batch_size is None and base.batch_sampler is not None:
        return loader.with_samples(base.dataset, batch_sampler=base.batch_sampler)
    sampler = None if isinstance(base.dataset, IterableDataset) else base.sampler
    return loader.with_samples(base.dataset, batch_size=base.batch_size, drop_last=base.drop_last, sampler=sampler)


# Without importing Accelerate, and without being imported by the loader.
DataLoader.meet_accelerate = staticmethod(meet_accelerate)  # type: ignore[method-assign]
