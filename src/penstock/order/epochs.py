"""The number of the epoch that comes next."""

from __future__ import annotations

import copy
import weakref
from typing import Any


class Epochs:
    """The number of the epoch that comes next, and the seed."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.number = 0

    def copy(self) -> Epochs:
        """Return a copy that counts on by itself."""
        return copy.copy(self)

    def next(self, *, counted: bool) -> tuple[int | None, int]:
        """Return (seed, epoch) of the pass that begins.

        Without a seed each pass has a base seed of its own and is epoch 0 of that, unless passes are counted.
        """
        epoch, self.number = self.number, self.number + 1
        return self.seed, epoch if counted or self.seed is not None else 0


class SetEpoch:
    """The set_epoch of a sampler whose order its loader makes: Lightning and others look for it on samplers.

    Args:
        loader: the loader whose set_epoch is called. It is held weakly, because the loader holds the sampler.
    """

    def __init__(self, loader: Any = None) -> None:
        self._loader = None if loader is None else weakref.ref(loader)

    def __call__(self, epoch: int) -> None:
        loader = None if self._loader is None else self._loader()
        if loader is not None:
            loader.set_epoch(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        return SetEpoch, ()  # a loader that is unpickled puts its own in the place of this one
