"""A loader with states as torchdata's, under the name of its class: torch's __init__ and iterators are not called."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader

NAME = "torchdata.stateful_dataloader.stateful_dataloader"
_torchs_init: Any = getattr(DataLoader.__init__, "__wrapped__", DataLoader.__init__)


class _Iterator:
    def __init__(self, loader: Any, given: Any) -> None:
        self._loader, self._yielded, self._finished = loader, 0, False
        if given is not None:
            self._yielded = given["_sampler_iter_yielded"]
        self._indices = itertools.islice(iter(loader._index_sampler), self._yielded, None)
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # torch's base seed

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        try:
            indices = next(self._indices)
        except StopIteration:
            self._finished = True
            raise
        self._yielded += 1
        return self._loader.collate_fn([self._loader.dataset[index] for index in indices])

    def state_dict(self) -> dict[str, Any]:
        return {"_sampler_iter_yielded": self._yielded, "_num_yielded": self._yielded, "_iterator_finished": False}


class StatefulDataLoader(DataLoader[Any]):
    """Copies what torch's __init__ would set."""

    __module__ = NAME
    _iterator: Any

    def __init__(self, *arguments: Any, snapshot_every_n_steps: int | None = 1, **named: Any) -> None:
        made: Any = object.__new__(DataLoader)
        _torchs_init(made, *arguments, **named)
        vars(self).update(vars(made))
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.next_iter_state: Any = None

    def _get_iterator(self) -> Any:
        given, self.next_iter_state = self.next_iter_state, None
        return _Iterator(self, given)

    def __iter__(self) -> Any:
        self._iterator = self._get_iterator()
        return self._iterator

    def state_dict(self) -> dict[str, Any]:
        if self._iterator is None:
            self._iterator = self._get_iterator()
        found: dict[str, Any] = self._iterator.state_dict()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._iterator, self.next_iter_state = None, state or None


sys.modules[NAME] = sys.modules[__name__]
