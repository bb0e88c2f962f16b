"""Stopping and going on: the state of a loader, for checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from penstock.errors import DatasetChanged, InvalidOption
from penstock.fingerprint import differences, fingerprint
from penstock.ordering import Ordered
from penstock.progress import FORMAT, Progress, checked_state


class Resumable(Ordered):
    """The part of the loader that says where it is, and goes on from there; torchdata's Stateful protocol."""

    num_workers: int
    _fingerprint: tuple[object, dict[str, Any]] | None
    """The dataset object, and what tells it from others."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest pass is, as its user sees it: JSON-able, under 1 KB.

        It counts the batches that were handed out, not those that were read ahead; a batch whose error was raised
        counts once a later one was handed out. An iterable dataset with a state_dict() of its own, read in the caller's
        thread, adds its state, of whatever size that is.
        """
        if self._resume is not None:
            return dict(self._resume)
        progress = self._progress
        if progress is None or progress.done:
            epoch, position, batches, drawn = self._epochs.number, 0, 0, {}
        else:
            epoch, position, drawn = progress.epoch, progress.position, dict(progress.drawn)
            batches = 0 if progress.schedule is not None else progress.skipped + progress.handed
        state: dict[str, Any] = {
            "format": FORMAT,
            "seed": self.seed,
            "epoch": epoch,
            "position": position,
            "batches": batches,
            "drawn": drawn,
            "data": self._data(),
        }
        if progress is not None and progress.record is not None and progress.handed:
            state["ledger"] = progress.record.chain
        if batches and self._keeps_its_own_state():
            state["dataset"] = self.dataset.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where state_dict() was taken, with any number of ranks, workers and any batch size.

        What was read before is not read again. Nothing is read by this call.

        Raises:
            InvalidOption: a state of another seed or another format.
            DatasetChanged: the dataset is not what it was; the message says how it differs.
        """
        state = checked_state(state)
        if state.get("seed") != self.seed:
            raise InvalidOption(f"a state of seed={state.get('seed')} cannot go on with seed={self.seed}")
        changed = differences(state["data"], self._data()) if state["data"] else None
        if changed is not None:
            raise DatasetChanged(f"the dataset is not what it was when the state was taken: {changed}")
        if "dataset" in state and self._keeps_its_own_state():
            self.dataset.load_state_dict(state["dataset"])
            state = {**state, "batches": 0}
        elif isinstance(self.dataset, IterableDataset) and state["batches"]:
            warnings.warn(
                f"{type(self.dataset).__name__} has no state_dict() and load_state_dict() that could be called in this "
                f"thread: {state['batches']:,} batches will be read and dropped to go on behind them",
                stacklevel=2,
            )
        self._epochs.number = state["epoch"]
        self._resume, self._progress = dict(state), None

    def _keeps_its_own_state(self) -> bool:
        """Return whether the dataset itself says where it is, and can be told: in the caller's thread only."""
        methods = (getattr(self.dataset, name, None) for name in ("state_dict", "load_state_dict"))
        return isinstance(self.dataset, IterableDataset) and not self.num_workers and all(map(callable, methods))

    def _data(self) -> dict[str, Any]:
        """Return the dataset's fingerprint, made once for each dataset object; nothing for an iterable one."""
        if isinstance(self.dataset, IterableDataset):
            return {}
        if self._fingerprint is None or self._fingerprint[0] is not self.dataset:
            self._fingerprint = (self.dataset, fingerprint(self.dataset))
        return self._fingerprint[1]

    def _next_progress(self) -> Progress:
        """Return the record of the pass that begins: from the start of the next epoch, or where a state was taken."""
        state, self._resume = self._resume, None
        if state is None:
            return Progress(self._epochs.number)
        chain = bytes.fromhex(state["ledger"]) if "ledger" in state else None
        return Progress(state["epoch"], state["position"], state["batches"], dict(state["drawn"]), chain)

    def _forwarded(self, batches: Any, progress: Progress) -> Any:
        """Return a pass behind the batches of an iterable dataset that were handed out before."""
        if isinstance(self.dataset, IterableDataset):
            batches.progress = None
            for _ in range(progress.skipped):
                next(batches, None)
        return batches
