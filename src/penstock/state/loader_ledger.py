"""The ledger of a loader: each step that it gives is recorded by the IDs of its samples."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidOption, pair
from penstock.observe import Delivery, Observer
from penstock.order.batches import BatchOrder
from penstock.order.permutations import Order
from penstock.order.schedule import Share, indices_of
from penstock.settings import Settings
from penstock.sources.naming import ids_of
from penstock.state.ledger import Ledger
from penstock.state.progress import Progress


@dataclass(eq=False)
class Recorder(Observer):
    """Appends each step of a pass to a ledger."""

    ledger: Ledger
    dataset: Any
    """Names the samples."""
    settings: Settings
    progress: Progress
    """Of the pass; it counts a batch behind the recorder: one whose step cannot be written is not handed out."""
    order: Order | None = None
    """Made at the first step."""

    def delivered(self, delivery: Delivery) -> None:
        """Append the step of the batch that was handed out. Raises OSError.

        Steps are counted as they were given to the user: where batches come out of order the ledger holds them in the
        order in which they came, so that two runs are equal if each of their steps was given the same samples.
        """
        schedule, progress = self.progress.schedule, self.progress
        if schedule is None:
            return
        if self.order is None:
            seed, order = self.settings.seed or 0, BatchOrder(self.settings)
            self.order = order.order(seed, progress.epoch, progress.drawn)()
        indices = indices_of(self.order, schedule.part(progress.coming)).tolist()
        step = schedule.step_at(progress.left.start) + len(progress.left.early) + progress.taken
        self.ledger.append(progress.epoch, step, ids_of(self.dataset, indices))


class LoaderLedger:
    """The ledger of a loader, opened when its first pass begins. Not picklable."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None

    def of_pass(
        self, settings: Settings, progress: Progress, fingerprint: Callable[[Settings], dict[str, Any]]
    ) -> Recorder:
        """Return what writes the pass that begins to the ledger. Raises InvalidOption."""
        assert settings.ledger is not None
        order = BatchOrder(settings)
        if settings.iterable or not (order.cuts_itself() or order.one_by_one()):
            raise InvalidOption("ledger= needs the loader's own order, without a sampler or an iterable dataset")
        if self._ledger is None:
            share = order.share() or Share()
            facts = {"seed": settings.seed, "batch_size": settings.batch_size, "data": fingerprint(settings)}
            path = os.fspath(settings.ledger).replace("{rank}", str(share.rank))
            try:
                self._ledger = Ledger(path, run={**facts, "rank": share.rank, "world": share.world})
            except OSError as error:
                if isinstance(error, IsADirectoryError):
                    why = "it is a folder: name a file in it, such as run.ledger"
                else:
                    why = f"it cannot be opened or written: {error.strerror}"
                raise pair(InvalidOption, type(error))(f"ledger={path!r}: {why}") from error
        return Recorder(self._ledger, settings.dataset, settings, progress)
