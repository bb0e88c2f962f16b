"""A pass that is written to a ledger as it is handed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.order.permutations import Order
from penstock.order.schedule import Schedule, Share, indices_of
from penstock.sources.naming import ids_of
from penstock.state.ledger import Ledger, ids_bytes


class Recorder:
    """Appends each step of a pass to a ledger.

    Args:
        ledger: where to.
        dataset: names the samples.
        order: makes the epoch's order.
        epoch: its number.
        start: how many positions of the epoch were handed out before the pass began.
        chain: of the checkpoint that the pass goes on from, where it has one.
    """

    def __init__(
        self, ledger: Ledger, dataset: Any, order: Callable[[], Order], epoch: int, start: int, chain: bytes | None
    ) -> None:
        self._ledger = ledger
        self._dataset = dataset
        self._make_order = order
        self._order: Order | None = None
        self._epoch = epoch
        self._start = start
        self._chain = chain
        self._begun = False

    def __call__(self, schedule: Schedule, step: int, batch: int) -> None:
        """Append a step of the pass, counted from 0, with the IDs of the batch that was handed out then.

        Steps are counted as they were given to the user: where batches come out of order the ledger holds them in the
        order in which they came, so that two runs are equal if each of their steps was given the same samples. It
        could not hold them under the numbers of their batches: what it says of a step covers all before it.
        Raises OSError.
        """
        if self._order is None:
            self._order = self._make_order()
        first = -(-self._start // schedule.step_size)  # of the epoch's steps, where they are of one size
        if not self._begun:
            self._ledger.rewind(self._epoch, first - 1, chain=self._chain)
            self._begun = True
        indices = indices_of(self._order, schedule.part(batch)).tolist()
        self._ledger.append(self._epoch, first + step, ids_bytes(ids_of(self._dataset, indices)))

    @property
    def chain(self) -> str:
        """Return the ledger's chain as text, for a state."""
        return self._ledger.chain.hex()


def open_ledger(path: str, share: Share, facts: Mapping[str, Any]) -> Ledger:
    """Open the ledger of a rank; "{rank}" in the path is its number. Raises InvalidOption, OSError."""
    return Ledger(path.replace("{rank}", str(share.rank)), run={**facts, "rank": share.rank, "world": share.world})
