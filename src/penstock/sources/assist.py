"""Datasets whose samples end in the user's own code: bytes are read and decoded natively, the rest is called on them.

An image comes as the PIL image that the dataset would have handed on, a tensor as torch.load would have given it.
Whatever native code does not take is read by the dataset's own __getitem__, which also raises all errors.
"""

from __future__ import annotations

import os
from typing import Any

from penstock.sources.sample_reader import Draw, whole
from penstock.sources.source import sample_reader_of
from penstock.sources.tree import source_of
from penstock.storage.tiers import Caches, SampleNames

_MASK = 0xFFFFFFFFFFFFFFFF


class Assisted:
    """Reads single samples of a dataset, natively as far as possible.

    Any number of threads may call it at once, also in a forked process. It may be pickled where the dataset may. It is
    made anew for each pass; once a transform is changed during a pass, the dataset reads its samples itself.

    Args:
        dataset: the dataset.
        caches: keep the bytes of the files that are read natively.

    Attributes:
        dataset: the dataset.
        steps: who does what, for explain().
        gains: whether any part of the dataset is read natively.
    """

    def __init__(self, dataset: Any, caches: Caches | None = None) -> None:
        self.dataset = dataset
        self._reader = sample_reader_of(source_of(dataset))
        self._caches = caches
        if caches is not None:
            folders = [folder for folder in self._reader.folders() if len(folder.dataset)]
            names = [SampleNames.of(len(folder.dataset), folder.path) for folder in folders]
            for folder, cache in zip(folders, caches.of(names), strict=True):
                folder.keep_in(cache)
        self.steps = self._reader.steps
        self.gains = self._reader.gains

    def __call__(self, index: Any, seed: int, epoch: int, position: int = 0) -> Any:
        """Return what ``dataset[index]`` returns; native random steps draw from (seed, epoch, index, position)."""
        number = whole(index)
        if number is None:
            return self.dataset[index]
        return self._reader.read(number, Draw(seed & _MASK, epoch & _MASK, number & _MASK, position & _MASK))

    def __reduce__(self) -> tuple[Any, ...]:
        return _assisted, (self.dataset, self._caches, os.getpid())

    def __repr__(self) -> str:
        return f"Assisted({self.dataset!r})"


def _assisted(dataset: Any, caches: Caches | None, process: int) -> Assisted:
    """Return a copy, made in this process or another one."""
    if caches is not None and os.getpid() != process:
        caches = caches.in_folders()  # memory would be taken once a process
    return Assisted(dataset, caches)


def assist(dataset: object, caches: Caches | None = None) -> Assisted | None:
    """Return how to read single samples of a dataset natively; None where there is nothing to gain.

    Costs no more than looking at the transforms: no folder is listed. caches: keep the bytes of files. Raises
    UnsafeCache, and OSError where a cache's folder cannot be made.
    """
    assisted = Assisted(dataset, caches)
    return assisted if assisted.gains else None
