"""Datasets whose samples end in the user's own code: files are brought ahead, and kept, and the code is called on them.

An image comes as the PIL image that the dataset would have handed on, a tensor as torch.load would have given it.
Whatever native code does not take is read by the dataset's own __getitem__, which also raises all errors.
"""

from __future__ import annotations

import os
from typing import Any

import penstock._native as _native
from penstock.sources.sample_reader import MASK, Draw, ReadAhead, SampleFile, whole
from penstock.sources.source import sample_reader_of
from penstock.sources.tree import source_of
from penstock.storage.tiers import Caches, SampleNames


class Assisted:
    """Reads single samples of a dataset, natively as far as possible.

    Any number of threads may call it at once, also in a forked process. It may be pickled where the dataset may. It is
    made anew for each pass; once a transform is changed during a pass, the dataset reads its samples itself.

    Args:
        dataset: the dataset.
        caches: keep the bytes of the files that are read natively.
        ahead: brings files before threads need them.

    Attributes:
        dataset: the dataset.
        steps: who does what, for explain().
        gains: whether any part of the dataset is read natively.
    """

    def __init__(
        self,
        dataset: Any,
        caches: Caches | None = None,
        ahead: ReadAhead | None = None,
    ) -> None:
        self.dataset = dataset
        self._caches = caches
        self._ahead = ahead
        self.renew()
        self.steps = self._reader.steps
        self.gains = self._reader.gains

    def renew(self) -> None:
        """Look at the dataset anew: a worker_init_fn may have changed it, and its class, before the first sample."""
        self._reader = sample_reader_of(source_of(self.dataset))
        if self._caches is not None:
            folders = [folder for folder in self._reader.folders() if folder.files and len(folder.dataset)]
            names = [SampleNames.of(len(folder.dataset), folder.path) for folder in folders]
            for folder, cache in zip(folders, self._caches.of(names), strict=True):
                folder.keep_in(cache)
        self._take_from(self._ahead)

    def __call__(self, index: Any, seed: int, epoch: int, position: int = 0) -> Any:
        """Return what ``dataset[index]`` returns; native random steps draw from (seed, epoch, index, position)."""
        number = whole(index)
        if number is None:
            return self.dataset[index]
        return self._reader.read(number, Draw(seed & MASK, epoch & MASK, number & MASK, position & MASK))

    def read_ahead(self, readers: int, ahead_bytes: int) -> ReadAhead | None:
        """Have files brought ahead of the threads that read samples by this object, or by a copy of it, from here on.

        None: no sample is a file. readers: threads at the most. ahead_bytes: of files held ahead, at the most.
        """
        folders = [folder for folder in self._reader.folders() if not folder.remote]
        if not folders:
            return None
        program = _native.Program([[folder.filler] for folder in folders])
        self._take_from(ReadAhead(program, self._locate, readers, ahead_bytes))
        return self._ahead

    def read_directly(self) -> None:
        """Have no files brought ahead any more."""
        self._take_from(None)

    def _take_from(self, ahead: ReadAhead | None) -> None:
        self._ahead = ahead
        for number, folder in enumerate(folder for folder in self._reader.folders() if not folder.remote):
            folder.read_from(ahead, number)

    def _locate(self, index: Any) -> SampleFile | None:
        number = whole(index)
        return None if number is None else self._reader.locate(number)

    def __reduce__(self) -> tuple[Any, ...]:
        return _assisted, (self.dataset, self._caches, os.getpid(), self._ahead)

    def __repr__(self) -> str:
        return f"Assisted({self.dataset!r})"


def _assisted(dataset: Any, caches: Caches | None, process: int, ahead: ReadAhead | None) -> Assisted:
    """Return a copy, made in this process or another one. ahead: None in another one."""
    if caches is not None and os.getpid() != process:
        caches = caches.in_folders()  # memory would be taken once a process
    return Assisted(dataset, caches, ahead)


def assist(dataset: object, caches: Caches | None = None) -> Assisted | None:
    """Return how to read single samples of a dataset natively; None where there is nothing to gain.

    Costs no more than looking at the transforms: no folder is listed. caches: keep the bytes of files.
    Raises UnsafeCache, and OSError where a cache's folder cannot be made.
    """
    assisted = Assisted(dataset, caches)
    return assisted if assisted.gains else None
