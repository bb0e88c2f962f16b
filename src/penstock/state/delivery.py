"""A batch to be fetched, and a fetched batch with news for the loader."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch.utils.data._utils.pin_memory import pin_memory

from penstock.call_counts import CallRow
from penstock.order.permutations import Positions
from penstock.state.manifest import BadSample


class Task(NamedTuple):
    """What a sampler gave for one batch (for one sample, with batch_size=None), and its pass."""

    given: Any
    seed: int
    epoch: int
    positions: Positions = range(0)
    """The positions of its samples in the order of the epoch."""
    block: Any = None
    """Names the shared memory that a worker process builds the batch in."""

    @property
    def first(self) -> int:
        return self.positions[0] if self.positions else 0

    @property
    def message(self) -> tuple[Any, ...]:
        """The task as plain values, of which pickling takes a third of the time."""
        positions = self.positions
        plain = (positions.start, positions.stop, positions.step) if type(positions) is range else positions
        return self.given, self.seed, self.epoch, plain, self.block

    @classmethod
    def of(cls, given: Any, seed: int, epoch: int, positions: Any, block: Any) -> Task:
        """Return the task of a message."""
        return cls(given, seed, epoch, range(*positions) if type(positions) is tuple else positions, block)


@dataclass(slots=True)
class Delivered:
    """A batch with news for the loader: samples that were bad, or the state of the dataset behind the batch."""

    batch: Any
    bad: list[BadSample] = field(default_factory=list)
    state: Any = None
    needed: int = 0
    """Bytes of shared memory that the batch takes, or would have taken."""
    kept: bool = False
    """The user's code in the worker has kept a part of that memory."""
    calls: list[CallRow] = field(default_factory=list)
    """Those that the worker has counted since it began."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Delivered, (self.batch, self.bad, self.state, self.needed, self.kept, self.calls)

    def pin_memory(self) -> Delivered:
        """Pin the batch: torch's pinning thread calls this."""
        return replace(self, batch=pin_memory(self.batch))  # type: ignore[no-untyped-call]
