"""Hugging Face Accelerate keeps penstock loaders, without a call of the user's.

Accelerate builds a torch loader from the attributes of the one that it is given, and so loses whatever torch
does not know. Here it does all of that first (sampler, ranks, devices, generators), and only then a penstock loader
takes the place of that torch loader inside Accelerate's adapter. Two functions of Accelerate, prepare_data_loader and
skip_first_batches, are replaced by ones that look for penstock loaders when one first meets Accelerate, in each module
that has them. Loaders of other classes go straight to what the functions were.

Accelerate's adapter fetches one step ahead of the one that it yields, notes the loader's state before that, and has
`adjust_state_dict_for_prefetch` correct the note. Its epoch is its `iteration`, which nothing of Accelerate restores.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.errors import InvalidOption
from penstock.loader import DataLoader
from penstock.order.batches import deepest, order_of
from penstock.order.permutations import KeyedSampler, indices_one_by_one
from penstock.state.checkpoint import OnChange

AcceleratorT = TypeVar("AcceleratorT")

_MODULE = "accelerate.data_loader"
_MARK = "_by_penstock"


def keep_loaders(accelerator: AcceleratorT) -> AcceleratorT:
    """Make an accelerate.Accelerator raise at once for loaders that it cannot keep or save. This call is optional.

    `prepare`, `prepare_data_loader` and `skip_first_batches` return Accelerate's own adapters with a
    penstock.DataLoader inside. A prepared loader that is given to `accelerator.register_for_checkpointing` is saved by
    `save_state` and restored by `load_state`, in the middle of an epoch too.

    Args:
        accelerator: of Accelerate 1.8 or newer; it is changed in place and returned.

    Raises:
        InvalidOption: use_stateful_dataloader=True, which requests torchdata's loader.
    """
    theirs: Any = accelerator
    if theirs.use_stateful_dataloader:
        raise InvalidOption(
            "use_stateful_dataloader=True replaces a Penstock loader by torchdata's StatefulDataLoader; "
            "leave it False, and give what prepare returns to accelerator.register_for_checkpointing: save_state and "
            "load_state then continue in the middle of an epoch"
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


def before_copy(loader: DataLoader[Any]) -> None:
    """Make a loader ready for Accelerator.prepare, which builds another one from its attributes.

    Raises:
        InvalidOption: an argument that torch's loader lacks is in use and would be lost, because the class is derived.
    """
    if meet_accelerate() and type(loader) is DataLoader:
        return
    name = type(loader).__name__
    if given := loader.own_options():
        raise InvalidOption(
            f"Accelerator.prepare builds a torch loader in the place of a {name}, without "
            f"{', '.join(f'{option}={value!r}' for option, value in given.items())}; "
            f"a penstock.DataLoader, of that very class, is kept"
        )
    if loader._given.workers:  # native threads; torch's loader would start as many processes
        loader.num_workers, loader.prefetch_factor = 0, None


def _replace(function: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Put `ours` in the place of a function, in every module that has it.

    It is called with the function, its first argument, and the others by their names, however they were given.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def replaced(*arguments: Any, **named: Any) -> Any:
        signature.bind(*arguments, **named)  # raises TypeError
        given = {**dict(zip(signature.parameters, arguments, strict=False)), **named}
        return ours(function, given.pop(next(iter(signature.parameters))), **given)

    setattr(replaced, _MARK, True)
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", {})
        for name in [name for name, value in list(held.items()) if value is function]:
            setattr(module, name, replaced)


# In the place of accelerate.data_loader.prepare_data_loader.
def _prepare(prepare: Callable[..., Any], loader: Any, **named: Any) -> Any:
    if type(loader) is not DataLoader:  # one of Accelerate's adapters with ours inside only says that it is one
        return prepare(loader, **named)
    if loader.shard is not None:
        raise InvalidOption(
            f"Accelerator.prepare cuts the batches among the processes, as shard={loader.shard!r} does: give "
            "shard=None, or leave the loader unprepared"
        )
    made = prepare(_as_torchs(loader), **named)
    if not _can_hold_ours(made) and not loader.own_options():
        return made  # torchdata's loader, or a TPU's: nothing of ours is lost but speed
    made = _with_ours(loader, made)
    made.prepared = Prepared(made, named.get("num_processes"), skips=False)
    return made


# In the place of accelerate.skip_first_batches.
def _skip(skip: Callable[..., Any], loader: Any, num_batches: int = 0) -> Any:
    ours = loader if type(loader) is DataLoader else vars(loader).get("base_dataloader")
    if not isinstance(ours, DataLoader):
        return skip(loader, num_batches)
    if ours.resumes:
        raise InvalidOption(
            "a state was loaded, and the next pass continues after the batches that were handed out before: iterate "
            "over the loader itself, without skip_first_batches"
        )
    if ours is loader:
        return _with_ours(ours, skip(_as_torchs(ours), num_batches))
    made = _with_ours(ours, skip(loader, num_batches))
    made.iteration = loader.iteration  # which Accelerate 1.8 does not hand on
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


# --- what a prepared loader is ----------------------------------------------------------------------------------------


class Seeded(Sampler[int]):
    """The order of a loader with a seed, sample by sample: a function of (seed, epoch).

    Args:
        sampler: the loader's, of torch's making or keyed.
        epoch: which one the passes are until set_epoch says another.
    """

    def __init__(self, sampler: Any, seed: int, epoch: int) -> None:
        self._sampler, self._seed, self._epoch = sampler, seed, epoch

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the passes from now on are."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        size = len(self)
        yield from indices_one_by_one(order_of(self._sampler, True, size, self._seed, self._epoch, {}), size)


class Prepared:
    """The epochs and the state of one of Accelerate's adapters, which has a penstock loader inside.

    The adapter's set_epoch, state_dict, load_state_dict and adjust_state_dict_for_prefetch become those of this.

    Args:
        adapter: a DataLoaderShard or DataLoaderDispatcher.
        processes: how many the batches are cut among; None: as many as Accelerate has.
        skips: the adapter leaves out the first batches of every pass.
    """

    def __init__(self, adapter: Any, processes: int | None, *, skips: bool) -> None:
        if processes is None:
            processes = sys.modules["accelerate.state"].PartialState().num_processes
        self._held = weakref.ref(adapter)  # which holds this
        self._loader: DataLoader[Any] = adapter.base_dataloader
        batches = self._loader.sampler if self._loader.batch_sampler is None else self._loader.batch_sampler
        self._batches, self._sampler = batches, deepest(batches)
        self._skips = skips
        dispatches = "slice_fn" in vars(adapter)
        self._cut: dict[str, Any] = {
            "processes": processes,
            "batch_size": getattr(batches, "batch_size", None),
            "split_batches": bool(adapter.split_batches if dispatches else getattr(batches, "split_batches", False)),
            "dispatch_batches": dispatches,
            "sampler": type(self._sampler).__name__,
        }
        # A dispatcher may put several of the loader's batches together to one step.
        together = dispatches and not adapter.split_batches and adapter.submesh_tp is None
        self._batches_of_a_step = processes if together else 1
        for name in ("set_epoch", "state_dict", "load_state_dict"):
            setattr(adapter, name, getattr(self, name))
        adapter.adjust_state_dict_for_prefetch = self._adjust
        self._note()

    @property
    def _adapter(self) -> Any:
        return self._held()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_held": self._adapter}  # a weak reference cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _held=weakref.ref(state["_held"]))

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch number `epoch`. Accelerate calls it too, with its `iteration`, as a pass begins."""
        self._loader.set_epoch(epoch)
        type(self._adapter).set_epoch(self._adapter, epoch)
        theirs = getattr(self._sampler, "set_epoch", None)  # which Accelerate does not reach below two other samplers
        if callable(theirs):
            theirs(epoch)
        if not self._loader.state_dict()["batches"]:
            self._note()

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest pass is, as its user sees it: the same on every process.

        Raises:
            InvalidOption: the order cannot be made again; processes may have unequal numbers of batches, which one
            state does not describe; the adapter is one of skip_first_batches.
        """
        why = self._unsavable()
        if why is not None:
            raise InvalidOption(f"where this loader is cannot be saved: {why}")
        return dict(self._adapter.dl_state_dict)

    def load_state_dict(self, state_dict: Any, on_change: OnChange = "raise") -> None:
        """Let the next pass continue where state_dict() was taken, prepared alike. Skipped samples are not read.

        Args:
            on_change: as of penstock.DataLoader.load_state_dict; "continue" at the beginning of an epoch only.

        Raises:
            InvalidOption: a state of a loader that was prepared otherwise, or not at all, or has another seed.
            DatasetChanged: the dataset is not what it was.
        """
        state = state_dict
        if not isinstance(state, Mapping) or not {"loader", "cut", "order"} <= state.keys():
            raise InvalidOption("this is not the state of a loader that an Accelerator prepared, given to keep_loaders")
        if state["cut"] != self._cut:
            was, now = (
                ", ".join(f"{name}={value}" for name, value in cut.items()) for cut in (state["cut"], self._cut)
            )
            raise InvalidOption(
                f"a state of {was} cannot continue with {now}. On other processes give "
                "a loader with shard='auto' to accelerator.register_for_checkpointing, without preparing it"
            )
        self._loader.load_state_dict(state["loader"], on_change)
        self._adapter.iteration = state["loader"]["epoch"]
        vars(self._sampler).update(state["order"])
        self._adapter.dl_state_dict = dict(state)

    def _unsavable(self) -> str | None:
        if self._skips:
            return "it is what skip_first_batches made. Save that of the loader that it was made of"
        if isinstance(self._sampler, _DRAWN) and not hasattr(self._sampler, "initial_seed"):
            return (
                f"its {type(self._sampler).__name__} draws another order each time. Give the loader seed=, or the "
                "Accelerator use_seedable_sampler=True"
            )
        batches = self._batches
        if self._cut["processes"] > 1 and not (getattr(batches, "even_batches", True) or batches.drop_last):
            return "with even_batches=False some processes have a batch more than others. Give drop_last=True"
        return None

    def _note(self) -> None:
        self._adapter.dl_state_dict = self._loader.state_dict()
        self._adjust()

    def _adjust(self) -> None:
        """Make what Accelerate has noted, the loader's state, that of the adapter; between steps, that of the last."""
        noted = self._adapter.dl_state_dict
        if noted["batches"] % self._batches_of_a_step == 0:
            seed = getattr(self._sampler, "initial_seed", None)
            self._whole = {"loader": noted, "cut": self._cut, "order": {} if seed is None else {"initial_seed": seed}}
        self._adapter.dl_state_dict = self._whole


# torch's, and ours without a seed, draw anew each time. Accelerate's of use_seedable_sampler has an initial_seed.
_DRAWN = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler, KeyedSampler)
