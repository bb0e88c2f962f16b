"""A loader that Accelerate prepared: its order, its epochs and its state.

Accelerate's adapter fetches one step ahead of the one that it yields, notes the loader's state before that, and has
`adjust_state_dict_for_prefetch` correct the note. Its epoch is its `iteration`, which nothing of Accelerate restores.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from penstock.errors import InvalidOption
from penstock.loader import DataLoader
from penstock.order.batches import deepest, order_of
from penstock.order.keyed import KeyedSampler, indices_one_by_one
from penstock.state.checkpoint import OnChange


class Seeded(Sampler[int]):
    """The order of a loader with a seed, sample by sample: a function of (seed, epoch).

    Args:
        sampler: the loader's, of torch's making or keyed.
        seed: the loader's.
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
            state does not stand for; the adapter is one of skip_first_batches.
        """
        why = self._unsavable()
        if why is not None:
            raise InvalidOption(f"where this loader is cannot be saved: {why}")
        return dict(self._adapter.dl_state_dict)

    def load_state_dict(self, state: Any, on_change: OnChange = "raise") -> None:
        """Let the next pass go on where state_dict() was taken, prepared in the same way. Skipped samples are not read.

        Args:
            state: of state_dict().
            on_change: as of penstock.DataLoader.load_state_dict; "continue" at the beginning of an epoch only.

        Raises:
            InvalidOption: a state of a loader that was prepared otherwise, or not at all, or has another seed.
            DatasetChanged: the dataset is not what it was.
        """
        if not isinstance(state, Mapping) or not {"loader", "cut", "order"} <= state.keys():
            raise InvalidOption("this is not the state of a loader that an Accelerator prepared, given to keep_loaders")
        if state["cut"] != self._cut:
            was, now = (
                ", ".join(f"{name}={value}" for name, value in cut.items()) for cut in (state["cut"], self._cut)
            )
            raise InvalidOption(
                f"a state of {was} cannot go on with {now}. On other processes a loader with shard='auto' goes on that "
                "is given to accelerator.register_for_checkpointing and not prepared"
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
