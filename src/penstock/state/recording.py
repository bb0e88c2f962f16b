"""A pass that is written to a ledger as it is handed out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import InvalidOption
from penstock.observe import Delivery
from penstock.order.batch_order import BatchOrder
from penstock.order.permutations import Order
from penstock.order.schedule import Share, indices_of
from penstock.settings import Settings
from penstock.sources.naming import ids_of
from penstock.state.checkpoint import Fingerprint
from penstock.state.ledger import Ledger, ids_bytes
from penstock.state.progress import Progress, Recording


class Recorder(Recording):
    """Appends each step of a pass to a ledger.

    Args:
        ledger: where to.
        dataset: names the samples.
        order: makes the epoch's order.
        start: how many positions of the epoch were handed out before the pass began.
        progress: of the pass; it counts a batch before this is told of it.
    """

    def __init__(
        self, ledger: Ledger, dataset: Any, order: Callable[[], Order], start: int, progress: Progress
    ) -> None:
        self._ledger = ledger
        self._dataset = dataset
        self._make_order = order
        self._order: Order | None = None
        self._start = start
        self._progress = progress
        self._begun = False

    def delivered(self, delivery: Delivery) -> None:
        """Append the step of the batch that was handed out.

        Steps are counted as they were given to the user: where batches come out of order the ledger holds them in the
        order in which they came, so that two runs are equal if each of their steps was given the same samples. It
        could not hold them under the numbers of their batches: what it says of a step covers all before it.
        Raises OSError.
        """
        schedule, progress = self._progress.schedule, self._progress
        if schedule is None:
            return
        if self._order is None:
            self._order = self._make_order()
        first = -(-self._start // schedule.step_size)  # of the epoch's steps, where they are of one size
        if not self._begun:
            self._ledger.rewind(progress.epoch, first - 1, chain=progress.chain)
            self._begun = True
        indices = indices_of(self._order, schedule.part(progress.latest)).tolist()
        step = first + progress.handed - 1
        self._ledger.append(progress.epoch, step, ids_bytes(ids_of(self._dataset, indices)))

    @property
    def chain(self) -> str:
        """Return the ledger's chain as text, for a state."""
        return self._ledger.chain.hex()


class LedgerOfLoader:
    """The ledger of a loader, opened when its first pass begins. Not picklable."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None

    def of_pass(self, settings: Settings, progress: Progress, fingerprint: Fingerprint) -> Recorder | None:
        """Return what writes the pass that begins to the ledger. Raises InvalidOption, OSError."""
        if settings.ledger is None:
            return None
        order = BatchOrder(settings)
        if settings.iterable or not (order.cuts_itself() or order.one_by_one()):
            raise InvalidOption("ledger= needs the loader's own order, without a sampler or an iterable dataset")
        if self._ledger is None:
            facts = {"seed": settings.seed, "batch_size": settings.batch_size, "data": fingerprint.of(settings)}
            self._ledger = open_ledger(os.fspath(settings.ledger), order.share() or Share(), facts)
        made = order.order(settings.seed or 0, progress.epoch, progress.drawn, progress.rest, progress.ahead)
        before = progress.start + progress.ahead.count
        return Recorder(self._ledger, settings.dataset, made, before, progress)


def open_ledger(path: str, share: Share, facts: Mapping[str, Any]) -> Ledger:
    """Open the ledger of a rank; "{rank}" in the path is its number. Raises InvalidOption, OSError."""
    return Ledger(path.replace("{rank}", str(share.rank)), run={**facts, "rank": share.rank, "world": share.world})
