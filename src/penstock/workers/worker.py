"""Fetching in Python: the only place that calls a user's dataset and collate_fn.

`Worker.make` does for one task what torch's fetcher does, wherever it is called, and adds what
torch has no place for: generators set for each sample, bad samples replaced by good ones, and word of what it is at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset, default_collate
from torch.utils.data._utils import worker as torch_worker

from penstock.call_counts import CallMeter
from penstock.recipe import drawing
from penstock.recipe.collate_fn import Collated
from penstock.recipe.patches import Lease, Patches, working
from penstock.recipe.unseeded_generators import reseed, seedable
from penstock.sample_notes import collated, note_batch, note_sample
from penstock.state.delivery import Task
from penstock.state.substitutes import Substitutes
from penstock.system.deferred import deferred
from penstock.system.randomness import digest, generators_kept, sample_number, seed_globals
from penstock.workers.collating import BatchMemory, collate_in
from penstock.workers.native_batches import FinishedBatch, NativeBatches

if TYPE_CHECKING:
    from penstock.hooks import calls as hooked_calls
    from penstock.recipe import keyed_methods
    from penstock.tables.collated import GatheredBatch, TableBatches
else:
    (hooked_calls,) = deferred("penstock.hooks", "calls")
    (keyed_methods,) = deferred("penstock.recipe", "keyed_methods")


#: Takes note that a stage begins: its name, the index of its sample (the list of them, of several), and their number.
Note = Callable[..., object]


def no_note(stage: str, index: Any, samples: int = 1) -> None:
    """Take no note of what is being done."""


class Worker:
    """Fetches a task's samples and collates them. Picklable where the dataset and the collate_fn are.

    Args:
        dataset: the user's, map-style.
        batched: a task holds the indices of a batch; False: it is one index.
        seeded: the global generators are set for each sample; the caller must own them (a worker process does).
        keyed: torchvision's known random transforms draw by sample, in any thread.
        replacing: how bad samples are replaced; None raises their errors.
        composes: torchvision's Compose runs natively, as far as its parts are known.
        native: fills or gathers whole batches, where it can.
        fetcher: the class that makes the batches in the place of torch's; None: no program has replaced that.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batched: bool,
        collate_fn: Callable[[Any], Any],
        seeded: bool = False,
        keyed: bool = False,
        replacing: Substitutes | None = None,
        composes: bool = True,
        native: NativeBatches | TableBatches | None = None,
        fetcher: Any = None,
    ) -> None:
        self.dataset = dataset
        self.composes = composes
        self.batched = batched
        self.collate_fn = collate_fn
        self.replacing = replacing
        self.note: Note = no_note
        self.each: Callable[[Any], Iterator[Any]] = iter
        """Yields the indices of a batch, and takes note of each sample that begins."""
        self._native = native
        self._fetcher = fetcher
        self._seeded = seeded
        self._keyed = keyed
        self._owns_dataset = seeded
        """Nobody else reads the dataset object at the same time."""
        self._is_copy = False
        """It is a thread's own, and arrays that it shares with others are read-only."""
        self._pipelines: list[Any] | None = None
        """Those of Albumentations that the dataset keeps, once looked for."""

    @property
    def plain(self) -> bool:
        """Whether this does no more than torch's own fetcher."""
        keys = self._seeded or self._keyed
        return self._native is None and self._fetcher is None and not keys and self.replacing is None

    @property
    def stacks(self) -> bool:
        """Whether the batches are those of torch's default_collate."""
        return self.collate_fn is default_collate

    @property
    def only_collates(self) -> bool:
        """Whether the collate_fn leaves the samples of a batch that is filled to default_collate, as they are."""
        return self._native is not None and self._native.unseen

    @property
    def one_by_one(self) -> bool:
        """Whether a batch's samples are fetched by one call each."""
        return self._native is None and self._fetcher is None and _whole_batches(self.dataset) is None

    def make(self, task: Task, memory: BatchMemory | None = None) -> Any:
        """Return the batch of a task, or its one sample where samples are not batched.

        memory: for the rows of a batch that default_collate makes; None: each tensor gets its own.
        """
        if self._fetcher is not None:
            return self._fetched(task)
        if not self.batched:
            positions = [task.first]
            return self.collate(task, self._one_after_another(task, [task.given], positions)[0])
        if not self.plain and not isinstance(task.given, (list, tuple)):
            task = task._replace(given=list(task.given))  # it is iterated more than once
        memory = memory if self.stacks or self.only_collates else None
        filled = self._fill(task, memory)
        if filled is not None:
            return self._collate_filled(task, filled)
        return self.collate(task, self.samples(task), memory)

    def _fetched(self, task: Task) -> Any:
        """Return the batch of a task by the program's own fetcher."""
        self.note("getitem", task.given, len(task.given) if self.batched else 1)
        self._key(task, task.given, task.first)
        fetcher = self._fetcher(self.dataset, self.batched, self.collate_fn, drop_last=False)
        return collated(lambda _: fetcher.fetch(task.given), task.given, None)

    def part(self, task: Task, begin: int, end: int) -> list[Any]:
        """Return some samples of a task, of a dataset that is read one by one."""
        return self._one_after_another(task, task.given[begin:end], task.positions[begin:end])

    def _fill(self, task: Task, memory: BatchMemory | None) -> FinishedBatch | GatheredBatch | None:
        """Return the batch of a task filled natively, None where that cannot be."""
        if self._native is None or not isinstance(task.given, list | tuple):
            return None
        if self.replacing is not None and any(map(self.replacing.is_bad, task.given)):
            return None
        self.note("getitem", task.given, len(task.given))
        set_key = partial(self._key_position, task) if self._seeded or self._keyed else None
        try:
            filled = self._native.fill(task, memory, self._native_seed(task), set_key)
        except Exception as error:
            if self.replacing is None:
                note_batch(error, task.given)
                raise
            filled = None
        if filled is None and memory is not None:
            memory.begin_anew()  # it may be filled in part
        return filled

    def _collate_filled(self, task: Task, filled: FinishedBatch | GatheredBatch) -> Any:
        """Return the collated samples of a batch that is filled."""
        if self.stacks:
            self._note_collating(task, len(task.given))
            return collated(lambda _: filled.batch(), task.given, None)
        if not self.only_collates:
            return self.collate(task, filled.samples())
        return self.collate(task, [Collated(filled.batch)] * len(task.given))

    def lease(self, *more: Patches) -> Lease:
        """Return a lease on the functions of other packages that do something else while this fetches, and on more."""
        return Lease(
            *more,
            *([hooked_calls.ANSWERED] if self.composes else ()),
            *([keyed_methods.HOOKS, drawing.SEEDING] if self._seeded or self._keyed else ()),
        )

    @contextmanager
    def in_callers_thread(self, calls: CallMeter) -> Iterator[None]:
        """Work in a thread that is not ours: its global generators are left as they were. calls: counts the user's."""
        generators = generators_kept() if self._seeded else nullcontext()
        with generators, drawing.given_back(), working(calls) if self.composes else nullcontext():
            yield

    def samples(self, task: Task) -> list[Any]:
        whole = _whole_batches(self.dataset)
        if whole is None:
            return self._one_after_another(task, task.given, task.positions)
        if self.replacing is None or not any(self.replacing.is_bad(index) for index in task.given):
            self.note("getitem", task.given, len(task.given))
            self._key(task, tuple(task.given), task.first)
            try:
                return whole(task.given)
            except MemoryError:
                raise
            except Exception as error:
                if self.replacing is None or not hasattr(self.dataset, "__getitem__"):
                    note_batch(error, task.given)
                    raise
        return self._one_after_another(task, task.given, task.positions)

    def _one_after_another(self, task: Task, given: Any, positions: Iterable[int]) -> list[Any]:
        """Return the samples of some indices. An error gets a note of its sample."""
        dataset, plain, index, places = self.dataset, self.plain, None, iter(positions)
        samples: list[Any] = []
        add = samples.append
        try:
            if plain:
                for index in self.each(given):
                    add(dataset[index])
            else:
                for index in self.each(given):
                    add(self.sample(task, index, next(places)))
        except Exception as error:
            note_sample(error, index)
            raise
        return samples

    def sample(self, task: Task, index: Any, position: int = 0) -> Any:
        """Return one sample, or the one that replaces it; it stands at a position of the epoch's order."""
        replacing = self.replacing
        if replacing is None:
            return self._worker(task, index, position)
        last: Exception | None = None
        for candidate in chain([index], replacing.candidates(task, index, position)):
            if replacing.is_bad(candidate):
                continue
            if candidate is not index:
                self.note("getitem", candidate, 0)
            try:
                return self._worker(task, candidate, position)
            except MemoryError:  # the machine's, not the sample's
                raise
            except Exception as error:
                if (self._is_copy and is_refused_write(error)) or type(error) is drawing.SeededInThread:
                    raise  # no fault of the sample's
                replacing.found_bad(candidate, error)
                last = error
        raise last or LookupError(f"no good sample can replace sample {index!r}, which the manifest lists as bad")

    def collate(self, task: Task, samples: Any, memory: BatchMemory | None = None) -> Any:
        """Return the batch of samples. memory: for the rows of those that default_collate makes."""
        self._note_collating(task, len(samples) if self.batched else 1)
        if memory is not None and self.stacks:
            return collate_in(memory, task.given, samples)
        return collated(self.collate_fn, task.given, samples)

    def _note_collating(self, task: Task, samples: int) -> None:
        self.note("collate", None, samples)
        if self._seeded or self._keyed:
            given = tuple(task.given) if self.batched else task.given
            self._key(task, ("collate", given), task.first)

    def _worker(self, task: Task, index: Any, position: int) -> Any:
        if self._seeded or self._keyed:
            self._key(task, index, position)
        return self.dataset[index]

    def _native_seed(self, task: Task) -> int:
        """Return the seed of native draws: the loader's, or torch's where a worker_init_fn has seeded its worker."""
        worker = None if self._keyed else torch_worker._worker_info
        reseeded = worker is not None and torch.initial_seed() != worker.seed
        return torch.initial_seed() if reseeded else task.seed

    def _key_position(self, task: Task, position: int) -> None:
        """Key random draws to the sample at a position of a batch."""
        self._key(task, task.given[position], task.positions[position])

    def _key(self, task: Task, index: Any, position: int) -> None:
        """Key random draws of this thread, or process, to a sample."""
        if not (self._seeded or self._keyed):
            return
        number = sample_number(index)
        keyed_methods.HOOKS.meet_imported()
        if self._seeded:
            seed_globals(task.seed, task.epoch, number, position)
        drawing.set_sample_key(task.seed, task.epoch, number, position, owned=self._seeded)
        if self._owns_dataset and self._pipelines is None:
            self._pipelines = seedable(self.dataset)
        if self._pipelines:
            key = digest(task.seed, task.epoch, number, position)
            for pipeline in self._pipelines:
                reseed(pipeline, key)

    def beside(self, each: Callable[[Any], Iterator[Any]]) -> Worker:
        """Return what fetches this dataset in a thread beside others. each: takes note of the thread's samples."""
        own = copy(self)
        own.each = each
        return own

    def with_own(self, copied: Callable[[Any, str], Any]) -> Worker:
        """Return a Worker with copies of the dataset and of all functions; copied: called with each and its name."""
        own = copy(self)
        own.dataset = copied(self.dataset, type(self.dataset).__qualname__)
        own.collate_fn = copied(self.collate_fn, "collate_fn")
        own._native = None if self._native is None else self._native.of(own.dataset)
        own._pipelines, own._owns_dataset, own._is_copy = None, own._keyed, True
        return own

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "note": no_note, "each": iter, "_pipelines": None}


def is_refused_write(error: BaseException) -> bool:
    """Return whether an error says, in the words of NumPy or Python, that memory is read-only."""
    said = str(error) if type(error) in (ValueError, TypeError, BufferError) else ""  # others may have no words
    return re.search(r"read-?only|read-write|not writ", said) is not None


def _whole_batches(dataset: Any) -> Callable[[Any], list[Any]] | None:
    """Return the dataset's __getitems__, where torch's fetcher calls it and it does more than one by one."""
    if type(dataset) is Subset and not callable(getattr(dataset.dataset, "__getitems__", None)):
        return None
    return getattr(dataset, "__getitems__", None) or None
