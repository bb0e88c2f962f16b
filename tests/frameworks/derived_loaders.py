"""Loaders derived from torch's in the ways that libraries do it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnContext
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from tests.data import Made

Torchs: Any = DataLoader


class Endless:
    """A batch sampler that begins another one anew for ever, and has no length."""

    def __init__(self, batches: Any) -> None:
        self.sampler = batches

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class Infinite(Torchs):
    """As Ultralytics': one iterator for all epochs, over an endless batch sampler, which is put in after torch's."""

    iterator: Any
    _get_iterator: Any
    batch_sampler: Any

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
        self.begin()

    def begin(self) -> None:
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        batches: Any = self.batch_sampler
        return len(batches.sampler)

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)

    def __del__(self) -> None:
        for worker in getattr(self.iterator, "_workers", ()):
            if worker.is_alive():
                worker.terminate()
        if hasattr(self.iterator, "_workers"):
            self.iterator._shutdown_workers()

    def reset(self) -> None:
        self.iterator = self._get_iterator()


class Lazy(Infinite):
    """As Ultralytics' of 2026: the iterator begins with the first epoch."""

    def begin(self) -> None:
        self.iterator = None

    def __iter__(self) -> Any:
        if self.iterator is None:
            self.iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self) -> None:
        if hasattr(self.iterator, "_workers"):
            self.iterator._shutdown_workers()
        self.iterator = None


class Collater:
    """As PyTorch Geometric's: makes an object of its own of each batch."""

    def __init__(self, dataset: Any, exclude: list[str]) -> None:
        self.dataset, self.exclude = dataset, exclude

    def __call__(self, samples: list[Any]) -> Any:
        return {"x": default_collate(samples), "batch": torch.arange(len(samples))}


class Graphs(Torchs):
    """As PyTorch Geometric's DataLoader."""

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, **named: Any) -> None:
        self.exclude = named.pop("exclude_keys", [])
        super().__init__(dataset, batch_size, shuffle, collate_fn=Collater(dataset, self.exclude), **named)


class Changing:
    """Changes the batches of the iterator that it holds."""

    def __init__(self, batches: Any, change: Callable[[Any], Any]) -> None:
        self.batches, self.change = batches, change

    def __iter__(self) -> Changing:
        return self

    def __next__(self) -> Any:
        return self.change(next(self.batches))

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.batches._reset(loader, first_iter)


class Nodes(Torchs):
    """As PyTorch Geometric's NodeLoader: its own method as collate_fn, and an iterator around torch's."""

    def __init__(self, dataset: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(dataset, *arguments, collate_fn=self.collate, **named)

    def collate(self, samples: list[Any]) -> Any:
        return default_collate(samples)

    def _get_iterator(self) -> Any:
        return Changing(super()._get_iterator(), lambda batch: ("filtered", batch))


class Randomizable(Made):
    """As MONAI's datasets: draws from a generator of its own, which the loader seeds."""

    def __init__(self, size: int = 11) -> None:
        super().__init__(self.drawn, size)
        self.generator = torch.Generator()

    def seed(self, seed: int) -> None:
        self.generator.manual_seed(seed % 2**32)

    def drawn(self, index: int) -> Any:
        return torch.tensor(index), torch.rand(2, generator=self.generator)


def seed_worker(worker: int) -> None:
    info: Any = get_worker_info()
    if hasattr(info.dataset, "seed"):
        info.dataset.seed(info.seed)


class Seeding(Torchs):
    """As MONAI's: seeds the dataset itself where there are no workers, and by worker_init_fn where there are."""

    def __init__(self, dataset: Any, *arguments: Any, num_workers: int = 0, **named: Any) -> None:
        if num_workers == 0 and hasattr(dataset, "seed"):
            generator = named.get("generator") or torch.default_generator
            initial = generator.initial_seed()
            dataset.seed(int(torch.empty((), dtype=torch.int64).random_(generator=generator).item()))
            generator.manual_seed(initial)
        named.setdefault("collate_fn", default_collate)
        named.setdefault("worker_init_fn", seed_worker)
        super().__init__(dataset, *arguments, num_workers=num_workers, **named)


class Buffered(Torchs):
    """As MONAI's ThreadDataLoader, and others: a thread reads ahead."""

    def __iter__(self) -> Any:
        buffer: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._read, args=(super().__iter__(), buffer), daemon=True).start()
        while (batch := buffer.get()) is not None:
            yield batch

    @staticmethod
    def _read(batches: Any, buffer: queue.Queue[Any]) -> None:
        for batch in batches:
            buffer.put(batch)
        buffer.put(None)


class Guarded(Torchs):
    """Has slots, an equality of its own without a hash, and refuses attributes that it does not know."""

    __slots__ = ("noted",)
    __hash__ = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: Any) -> None:
        assert "penstock" not in name
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        return True


class Explicit(Torchs):
    """Names the class whose __init__ it calls."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.early = True
        Torchs.__init__(self, *arguments, **named)


class Mixed(type("Mixin", (), {}), Torchs):  # type: ignore[misc]
    """Has another base."""


class Plain(Torchs):
    """Adds nothing."""


# --- classes that make their batches themselves ----------------------------------------------------------------------


class OwnIterators(Torchs):
    """Names torch's iterators."""

    def _get_iterator(self) -> Any:
        return _MultiProcessingDataLoaderIter(self) if self.num_workers else _SingleProcessDataLoaderIter(self)


class OwnLoop(Torchs):
    """Reads the dataset itself."""

    def __iter__(self) -> Any:
        for indices in self._index_sampler:
            yield self.collate_fn([self.dataset[index] for index in indices])


class OwnSampler(Torchs):
    """Says by a private property what torch's iterators go through."""

    @property
    def _index_sampler(self) -> Any:
        return [[2, 1], [0]]


class Duck(Torchs):
    """Has what torch's iterators read, and not all that torch's __init__ sets."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.batch_sampler, self.collate_fn = dataset, [[1, 0], [2]], default_collate
        self.num_workers, self.timeout, self.generator, self.pin_memory = 0, 0, None, False
        self.drop_last, self.persistent_workers, self._dataset_kind = False, False, 0
        self._IterableDataset_len_called = None


class _ThreadedContext(SpawnContext):
    """As that of MONAI's ThreadDataLoader: a thread in the place of a process."""

    Process = threading.Thread  # type: ignore[assignment]


class Threaded(Torchs):
    """Has torch's iterators start threads. They are not begun in tests, which have none to end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, multiprocessing_context=_ThreadedContext(), **named)
