"""DataLoader: torch's class, with the native core underneath where the plan allows it."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, Dataset, RandomSampler, SequentialSampler

from penstock.buffers import Buffers
from penstock.cpus import usable_cpus
from penstock.errors import InvalidOption
from penstock.filling import IN_FLIGHT, Filling
from penstock.order import Indices, InSequence, KeyedShuffle, Order, TorchShuffle
from penstock.plan import NativePlan, Plan, Setting, TorchPlan, explain, plan
from penstock.stats import Counters, Stats

T_co = TypeVar("T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """torch.utils.data.DataLoader, with batches filled by native threads where the dataset is recognised.

    All arguments are torch's and mean what they mean there, with these additions:

    Args:
        num_workers: native threads, or torch's worker processes where Python reads the dataset. None (the
            default): as many native threads as CPUs this process may use, and 0 worker processes, torch's
            default. 0: the caller's thread.
        seed: makes order and random transforms a function of (seed, epoch, sample): the same batches for any
            number of workers. None: they follow torch's global generator, or `generator`, as torch's loader does,
            and the shuffle is the one that torch's loader would draw.

    Raises:
        InvalidOption: seed together with generator.
        ValueError: arguments that torch refuses.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | None = None,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
    ) -> None:
        if seed is not None:
            if generator is not None:
                raise InvalidOption("seed= and generator= exclude each other: both say where randomness comes from")
            seed = _checked_seed(seed)
        self.seed = seed
        self._own_order = sampler is None and batch_sampler is None
        self._prefetch_given = prefetch_factor is not None
        self._epoch = 0
        self._base_seed: int | None = None  # torch's, of the last pass
        batched = batch_size is not None or batch_sampler is not None
        self._plan: Plan = plan(dataset, batched=batched, collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        # What was chosen because num_workers was None; a program that sets the attribute has the last word.
        self._chosen_workers: int | None = None
        if num_workers is None:
            num_workers = self._chosen_workers = _default_workers(self._plan)
        self._counters = Counters()
        self._buffers: Buffers | None = None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        # torch's own iterator draws from here, where it reads the dataset of a loader with a seed.
        self._seeded = None if seed is None else torch.Generator().manual_seed(seed)
        if self._seeded is not None and self._own_order and type(self.sampler) is RandomSampler:
            self.sampler.generator = self._seeded

    def __iter__(self) -> Any:
        self._make_plan()
        if isinstance(self._plan, NativePlan):
            return self._fill(self._plan)
        given, self.generator = self.generator, self.generator or self._seeded
        try:
            return super().__iter__()
        finally:
            self.generator = given

    def _make_plan(self) -> None:
        """Plan anew: the dataset may have changed since the last pass."""
        self._plan = plan(
            self.dataset,
            batched=self._auto_collation,
            collate_fn=self.collate_fn,
            worker_init_fn=self.worker_init_fn,
        )
        if self._chosen_workers is not None and self.num_workers == self._chosen_workers:
            self.num_workers = self._chosen_workers = _default_workers(self._plan)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what another process, or a copy, makes anew: the plan, the memory, the counters."""
        state = self.__dict__.copy()
        for own in ("_plan", "_buffers", "_counters"):
            del state[own]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._buffers, self._counters, self._base_seed = None, Counters(), None
        self._make_plan()

    def _fill(self, native: NativePlan) -> Filling:
        pinned = self._pinned()
        in_flight = self._in_flight()
        if self._buffers is None or self._buffers.pinned != pinned:
            # Each field of each batch in flight, and of the two that a loop holds when it asks for the next.
            self._buffers = Buffers(pinned=pinned, keep=native.fields * ((in_flight or IN_FLIGHT) + 2))
        seed, epoch = self._key()
        return Filling(
            native,
            self._index_batches(native, seed, epoch),
            length=_length(self.batch_sampler),
            workers=self.num_workers,
            in_flight=in_flight,
            seed=seed,
            epoch=epoch,
            buffers=self._buffers,
            counters=self._counters,
            timeout=self.timeout,
            eager=not self._on_demand(),
        )

    def _key(self) -> tuple[int, int]:
        """Return (seed, epoch) of the pass that begins, and advance the generators as torch's iterator would."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        if self.seed is not None:
            return self.seed, epoch
        if self._base_seed is None or not self.persistent_workers:  # torch's persistent workers keep the first
            self._base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        return self._base_seed, epoch if self.persistent_workers else 0

    def _on_demand(self) -> bool:
        """Return whether torch's loader would do nothing before the first batch is asked for."""
        return self.num_workers == 0 or self._chosen_workers is not None

    def _in_flight(self) -> int | None:
        if not self._prefetch_given:
            return None
        return (self.prefetch_factor or 0) * self.num_workers

    def _pinned(self) -> bool:
        """Return whether batches are page-locked, with torch's warnings where that cannot be."""
        if self.pin_memory and self.pin_memory_device:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the device,"
                f"ignore pin_memory_device='{self.pin_memory_device}'.",
                stacklevel=4,
            )
        if self.pin_memory and not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=4,
            )
        return self._can_pin()

    def _can_pin(self) -> bool:
        device = torch.accelerator.current_accelerator(check_available=True) if self.pin_memory else None
        return device is not None and device.type != "mps"  # where torch's loader does not pin either

    def _index_batches(self, native: NativePlan, seed: int, epoch: int) -> Iterator[Indices | list[Any]]:
        if not self._cuts_itself():
            return _from_sampler(self._index_sampler)
        assert self.batch_size is not None
        return _cut(
            lambda: self._order(native.root.size, seed, epoch), native.root.size, self.batch_size, self.drop_last
        )

    def _cuts_itself(self) -> bool:
        """Return whether the samplers are those that torch's __init__ made, and as it made them."""
        sampler, batches = self.sampler, self.batch_sampler
        if not self._own_order or type(batches) is not BatchSampler or self._index_sampler is not batches:
            return False
        if (batches.sampler, batches.batch_size, batches.drop_last) != (sampler, self.batch_size, self.drop_last):
            return False
        if type(sampler) is SequentialSampler:
            return self._draws_from(sampler.data_source)
        if type(sampler) is not RandomSampler or not self._draws_from(sampler.data_source):
            return False
        as_made = not sampler.replacement and sampler._num_samples is None and sampler.generator is self._seeded
        # With a generator of the user's, torch's sampler advances it as torch's loader would.
        return as_made and (self.seed is not None or len(sampler) < TorchShuffle.max_size)

    def _draws_from(self, source: object) -> bool:
        return source is self.dataset

    def _order(self, size: int, seed: int, epoch: int) -> Order:
        """Return the order of an epoch whose samplers are torch's own."""
        if type(self.sampler) is SequentialSampler:
            return InSequence()
        if self.seed is not None:
            return KeyedShuffle(size, seed, epoch)
        return TorchShuffle(size, int(torch.empty((), dtype=torch.int64).random_().item()))

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than CPUs, as torch does, and of more than 4 native threads to a CPU."""
        if isinstance(self._plan, TorchPlan) or self.num_workers > 4 * usable_cpus():
            super().check_worker_number_rationality()

    def explain(self) -> str:
        """Return the plan as text: each step, who does it, and what would make the rest native."""
        self._make_plan()
        setting = Setting(self.num_workers, self.batch_size, self._order_name(), self._can_pin())
        return explain(self._plan, setting, self.stats())

    def _order_name(self) -> str:
        if not self._cuts_itself():
            return f"by {type(self.sampler if self.batch_size is not None else self.batch_sampler).__name__}"
        if type(self.sampler) is SequentialSampler:
            return "in sequence"
        if self.seed is not None:
            return f"shuffled by (seed {self.seed}, epoch), any position at once"
        return "shuffled as torch's loader would, evaluated as far as needed"

    def stats(self) -> Stats:
        """Return the counters of all epochs so far."""
        return self._counters.snapshot((0, 0, 0) if self._buffers is None else self._buffers.counts())


def _default_workers(chosen: Plan) -> int:
    return usable_cpus() if isinstance(chosen, NativePlan) else 0


def _checked_seed(seed: object) -> int:
    """Return a seed as torch.Generator.manual_seed takes it. Raises TypeError, InvalidOption."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an integer, not {seed!r}")
    number = operator.index(seed)
    if not -(1 << 63) <= number < 1 << 64:
        raise InvalidOption(f"seed={number} is out of range: 64 bits are used, -2**63 to 2**64 - 1")
    return number


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except TypeError:
        return None


def _cut(order: Callable[[], Order], size: int, batch_size: int, drop_last: bool) -> Iterator[Indices]:
    """Yield the indices of each batch of an epoch; the order is drawn when the first is asked for, as torch does."""
    positions = order()
    end = size - size % batch_size if drop_last else size
    for begin in range(0, end, batch_size):
        yield positions.take(begin, min(batch_size, end - begin))


def _from_sampler(batches: Any) -> Iterator[Indices | list[Any]]:
    """Yield what a sampler of batches yields: as an array where it is indices, else as the list that it is."""
    for batch in batches:
        given = list(batch)  # it may be a generator, to be read once
        try:
            indices = np.array([operator.index(_scalar(i)) for i in given], dtype=np.int64)
        except (TypeError, OverflowError):
            yield given
        else:
            yield indices if len(indices) else []


def _scalar(index: Any) -> Any:
    """Return a tensor without dimensions as a number. Raises TypeError for other tensors, and bool: they are masks."""
    if isinstance(index, bool):
        raise TypeError("a mask")
    if isinstance(index, torch.Tensor):
        if index.ndim:
            raise TypeError("a tensor with dimensions")
        return _scalar(index.item())
    return index
