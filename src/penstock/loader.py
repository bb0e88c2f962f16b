"""DataLoader: torch's class, with the native core underneath where the plan allows it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import RandomSampler, SequentialSampler

from penstock.buffers import Buffers
from penstock.errors import InvalidOption
from penstock.order import Indices, InSequence, KeyedShuffle, Order, TorchShuffle
from penstock.plan import NativePlan, Plan, Setting, TorchPlan, explain, plan
from penstock.stats import Counters, Stats
from penstock.workers import IN_FLIGHT, Filling, usable_cpus


class DataLoader(torch.utils.data.DataLoader[Any]):
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
        dataset: Any,
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
            if isinstance(seed, bool) or not isinstance(seed, int):
                raise TypeError(f"seed must be an integer, not {seed!r}")
        self.seed = seed
        self._own_order = sampler is None and batch_sampler is None
        self._prefetch_given = prefetch_factor is not None
        self._epoch = 0
        batched = batch_size is not None or batch_sampler is not None
        self._plan: Plan = plan(dataset, batched=batched, collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        self._workers_free = num_workers is None
        if num_workers is None:
            num_workers = _default_workers(self._plan)
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
            _seeded(seed) if generator is None else generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )

    def __iter__(self) -> Any:
        self._plan = plan(
            self.dataset,
            batched=self._auto_collation,
            collate_fn=self.collate_fn,
            worker_init_fn=self.worker_init_fn,
        )
        if self._workers_free:  # the dataset may have changed since the last pass, and with it the plan
            self.num_workers = _default_workers(self._plan)
        if isinstance(self._plan, TorchPlan):
            return super().__iter__()
        return self._fill(self._plan)

    def _fill(self, native: NativePlan) -> Filling:
        pinned = self._pinned()
        in_flight = self._in_flight()
        if self._buffers is None or self._buffers.pinned != pinned:
            # Each field of each batch in flight, and of the two that a loop holds when it asks for the next.
            self._buffers = Buffers(pinned=pinned, keep=native.fields * ((in_flight or IN_FLIGHT) + 2))
        epoch, self._epoch = self._epoch, self._epoch + 1
        if self.seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
            epoch = 0
        else:
            seed = self.seed
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
        )

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

    def _index_batches(self, native: NativePlan, seed: int, epoch: int) -> Iterator[Indices]:
        order = self._order(native.root.size, seed, epoch)
        if order is None:
            return _from_sampler(self.batch_sampler)
        assert self.batch_size is not None
        return _cut(order, native.root.size, self.batch_size, self.drop_last)

    def _order(self, size: int, seed: int, epoch: int) -> Order | None:
        """Return the order of an epoch, or None where a sampler gives it."""
        if not self._own_order:
            return None
        if type(self.sampler) is SequentialSampler:
            return InSequence()
        if type(self.sampler) is not RandomSampler:
            return None
        if self.seed is not None:
            return KeyedShuffle(size, seed, epoch)
        if self.generator is not None or size >= TorchShuffle.max_size:
            return None  # torch's sampler advances the generator as torch's loader would
        return TorchShuffle(size, int(torch.empty((), dtype=torch.int64).random_().item()))

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than CPUs, as torch does; threads need no warning."""
        if isinstance(self._plan, TorchPlan):
            super().check_worker_number_rationality()

    def explain(self) -> str:
        """Return the plan as text: each step, who does it, and what would make the rest native."""
        setting = Setting(self.num_workers, self.batch_size, self._order_name(), self._can_pin())
        return explain(self._plan, setting, self.stats())

    def _order_name(self) -> str:
        if not self._own_order:
            return f"by {type(self.sampler if self.batch_size is not None else self.batch_sampler).__name__}"
        if type(self.sampler) is not RandomSampler:
            return "in sequence"
        if self.seed is not None:
            return f"shuffled by (seed {self.seed}, epoch), any position at once"
        return "shuffled as torch's loader would, evaluated as far as needed"

    def stats(self) -> Stats:
        """Return the counters of all epochs so far."""
        return self._counters.snapshot((0, 0, 0) if self._buffers is None else self._buffers.counts())


def _default_workers(chosen: Plan) -> int:
    return usable_cpus() if isinstance(chosen, NativePlan) else 0


def _seeded(seed: int | None) -> torch.Generator | None:
    if seed is None:
        return None
    generator = torch.Generator()
    generator.manual_seed(seed & 0xFFFFFFFFFFFFFFFF if seed < 0 else seed % (1 << 64))
    return generator


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except TypeError:
        return None


def _cut(order: Order, size: int, batch_size: int, drop_last: bool) -> Iterator[Indices]:
    """Yield the indices of each batch of an epoch."""
    end = size - size % batch_size if drop_last else size
    for begin in range(0, end, batch_size):
        yield order.take(begin, min(batch_size, end - begin))


def _from_sampler(batches: Any) -> Iterator[Indices]:
    """Yield what a sampler of batches yields, as arrays. Raises TypeError for what is no index."""
    for batch in batches:
        indices = np.asarray([int(i) if isinstance(i, torch.Tensor) else i for i in batch])
        if indices.ndim != 1 or (len(indices) and indices.dtype.kind not in "iu"):
            raise TypeError(f"a sampler must yield integer indices into the dataset, not {batch!r:.200}")
        yield indices.astype(np.int64)
