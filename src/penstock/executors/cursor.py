"""What a sampler gives for the batches of a pass, taken so that an interrupt (Ctrl-C, in any line) loses nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from penstock.order.permutations import Positions

#: What a sampler gave for a batch, and the positions of its samples in the order of the epoch.
BatchRequest = tuple[Any, Positions]


class SamplerCursor:
    """The place of a pass in what the sampler gives.

    Args:
        batches: what the sampler gives.
        length: its number of batches; None: unknown.

    Attributes:
        count: batches that the sampler has given.
    """

    def __init__(self, batches: Iterator[BatchRequest], length: int | None) -> None:
        self._batches = batches
        self._length = length
        self._given: deque[BatchRequest] = deque()  # what is not in flight: at most one
        self._cut = False  # an interrupt came from within the sampler
        self.count = 0

    def take(self) -> BatchRequest | None:
        """Return what the sampler gives next, the same until `taken` is called. None: the end.

        Raises what the sampler raises, and RuntimeError where an interrupt has ended it.
        """
        if not self._given:
            try:  # in one step of the interpreter, so that an interrupt comes before it or after it
                self._given.extend(islice(self._batches, 1))
            except Exception:
                raise
            except BaseException as error:  # with a frame behind this one it came from within the sampler
                self._cut = error.__traceback__ is not None and error.__traceback__.tb_next is not None
                raise
            if not self._given:
                if self._cut and self.count != self._length:  # an interrupted generator is at its end
                    raise RuntimeError("the sampler was interrupted, and gives no more batches: begin a new pass")
                return None
            self._cut = False
            self.count += 1
        return self._given[0]

    def taken(self, given: BatchRequest) -> None:
        """Take note that what `take` returned is in flight."""
        if self._given and self._given[0] is given:
            self._given.clear()
