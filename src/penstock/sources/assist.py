"""Datasets whose samples end in the user's own code: bytes are read and decoded natively, the rest is called on them.

An image comes as the PIL image that the dataset would have handed on, a tensor as torch.load would have given it.
Whatever native code does not take is read by the dataset's own __getitem__, which also raises all errors.
"""

from __future__ import annotations

from typing import Any

from penstock.sources.sample_reader import Draw, whole
from penstock.sources.source import sample_reader_of
from penstock.sources.tree import source_of

_MASK = 0xFFFFFFFFFFFFFFFF


class Assisted:
    """Reads single samples of a dataset, natively as far as possible.

    Any number of threads may call it at once, also in a forked process. It may be pickled where the dataset may. It is
    made anew for each pass; once a transform is changed during a pass, the dataset reads its samples itself.

    Attributes:
        dataset: the dataset.
        steps: who does what, for explain().
        gains: whether any part of the dataset is read natively.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._reader = sample_reader_of(source_of(dataset))
        self.steps = self._reader.steps
        self.gains = self._reader.gains

    def __call__(self, index: Any, seed: int, epoch: int, position: int = 0) -> Any:
        """Return what ``dataset[index]`` returns; native random steps draw from (seed, epoch, index, position)."""
        number = whole(index)
        if number is None:
            return self.dataset[index]
        return self._reader.read(number, Draw(seed & _MASK, epoch & _MASK, number & _MASK, position & _MASK))

    def __reduce__(self) -> tuple[Any, ...]:
        return Assisted, (self.dataset,)

    def __repr__(self) -> str:
        return f"Assisted({self.dataset!r})"


def assist(dataset: object) -> Assisted | None:
    """Return how to read single samples of a dataset natively; None where there is nothing to gain.

    Costs no more than looking at the transforms: no folder is listed.
    """
    assisted = Assisted(dataset)
    return assisted if assisted.gains else None
