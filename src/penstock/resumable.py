"""Stopping and going on: the state of a loader, for checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from torch.utils.data import IterableDataset

from penstock.errors import DatasetChanged, InvalidOption
from penstock.executors.threads import InTurn
from penstock.order.batches import order_of
from penstock.order.keyed import KeyedSampler
from penstock.order.permutations import Indices, Order, Positions
from penstock.order.schedule import Share
from penstock.own_states import BEYOND_FORMAT_1, OwnStates, ahead_of
from penstock.sources.catalogue import Catalogue, catalogue, kept, place_of
from penstock.sources.naming import id_of
from penstock.state.ahead import Arrivals
from penstock.state.changes import differences, remaining
from penstock.state.progress import FORMAT, FORMAT_WITH_OWN, Progress, Rest, checked_state
from penstock.state.sampler_states import SamplerStates
from penstock.system.warn_user import warn_user

OnChange = Literal["raise", "continue"]


class Resumable(OwnStates):
    """The part of the loader that says where it is, and goes on from there; torchdata's Stateful protocol."""

    _fingerprint: tuple[object, dict[str, Any]] | None
    """The dataset object, and what tells it from others."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest pass is, as its user sees it: JSON-able, under 1 KB.

        It counts the batches that were handed out, not those that were read ahead; a batch whose error was raised
        counts once a later one was handed out. An iterable dataset with a state_dict() of its own, read in the caller's
        thread or in worker processes, adds its states, of whatever size they are. The first call makes the dataset's
        fingerprint, and keeps its IDs and labels in the user's cache folder, for load_state_dict(on_change="continue").
        """
        if self._resume is not None:
            return _with_leaves(self._resume)
        progress = self._progress
        between = progress is None or progress.done
        now = Progress(self._epochs.number, drawn=self._foretold()) if progress is None or progress.done else progress
        ahead = now.handed_ahead()
        own = self._own(progress, between, now, ahead)
        state: dict[str, Any] = {
            "format": FORMAT_WITH_OWN if own is not None and own.keys() & BEYOND_FORMAT_1 else FORMAT,
            "seed": self.seed,
            "order": self._order_kind(),
            "epoch": now.epoch,
            "position": now.position,
            "batches": -(-now.given // now.unit),
            "drawn": {name: now.drawn.get(name) for name in ("order", "base")},
            "data": self._data(),
            "past": [] if now.rest is None else list(now.rest.past),
            "ledger": None,
            "dataset": own,
        }
        if now.record is not None and now.handed:
            share = self._share() or Share()
            state["ledger"] = [share.rank, share.world, now.record.chain]
        return _with_leaves(state)

    def load_state_dict(self, state: Mapping[str, Any], on_change: OnChange = "raise") -> None:
        """Let the next pass go on where state_dict() was taken, with any number of ranks, workers and any batch size.

        What was read before is not read again. No sample is read by this call.

        Args:
            state: of state_dict().
            on_change: what becomes of a dataset that has changed since. "raise": an error says how. "continue": the
                epoch goes on by ID: with each sample of the dataset as it is now whose ID was not handed out before;
                where a sampler draws with replacement, with as many draws as were left. The next epoch is of the
                dataset as it is now. The IDs that it had are read from the user's cache folder, where state_dict()
                kept them.

        Raises:
            InvalidOption: a state of another seed, another order or another format; on_change="continue" where a
                sampler of one's own, or a Mix, says which samples come.
            DatasetChanged: the dataset is not what it was, the message says how it differs; or the IDs that it had are
                not kept here.
        """
        state, rest = self._checked(state, on_change)
        says = self._says(state.get("dataset") or {})
        if isinstance(self.dataset, IterableDataset) and state["batches"] and not says:
            warn_user(
                f"{type(self.dataset).__name__} has no state_dict() and load_state_dict() that its workers could call: "
                f"{state['batches']:,} batches will be read and dropped to go on behind them"
            )
        self._epochs.number = state["epoch"]
        self._resume, self._rest, self._progress = state, rest, None

    def _checked(self, state: Any, on_change: OnChange) -> tuple[dict[str, Any], Rest | None]:
        """Return a state that this loader can go on from, and what is left of its epoch if the dataset has changed."""
        if on_change not in ("raise", "continue"):
            raise InvalidOption(f"on_change={on_change!r}: it is 'raise' or 'continue'")
        state = dict(checked_state(_without_leaves(state)))
        if state.get("seed") != self.seed:
            raise InvalidOption(f"a state of seed={state.get('seed')} cannot go on with seed={self.seed}")
        state["past"], state["data"] = list(state["past"]), dict(state["data"])
        now = None if self._data_known() else self._make_data()  # made once, for what needs it below
        if now is None and (state["past"] or state["data"] not in ({}, self._data())):
            now = catalogue(self.dataset)
        told = self._changes(state, now)
        if told is not None:
            if on_change == "raise":
                raise DatasetChanged(
                    f"{told}; load_state_dict(state, on_change='continue') goes on with the samples that are left"
                )
            self._refuse_to_continue(state)
            if state["position"] and not self._draws_independently() and not self._same_ids(state["data"]):
                state["past"].append({"data": state["data"], "to": state["position"]})
        rest = self._rest_of(state, now) if state["past"] and now is not None else None
        self._check_own(state)
        if state["position"] and not self._draws_independently():
            end = self._size() if rest is None else rest.end
            if max(state["position"], *(behind for _, behind in ahead_of(state).ranges), 0) > end:
                raise InvalidOption(f"a state at position {state['position']:,} of an epoch of {end:,} samples")
        state["data"], state["order"] = self._data(), self._order_kind()
        return state, rest

    def ids(
        self, epoch: int, step: int, rank: int | None = None, *, state: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Return the IDs of the samples of a batch, padding included, without reading anything.

        The batches are those of an epoch that was begun at its start, with this batch size and these ranks.

        Args:
            epoch: its number.
            step: the batch of that epoch, from 0 on.
            rank: another rank of shard=; None: this one.
            state: of a pass that began in the middle of the epoch, what state_dict() returned before its first batch:
                steps count from there too.

        Raises:
            InvalidOption: the order is not a function of (seed, epoch), or the state is not of that epoch.
            DatasetChanged: the dataset is not that of the state.
            IndexError: there is no such step.
        """
        return [id_of(self.dataset, index) for index in self._replayed(epoch, step, rank, state)[0].tolist()]

    def _replayed(
        self, epoch: int, step: int, rank: int | None, state: Mapping[str, Any] | None
    ) -> tuple[Indices, Positions]:
        """Return the indices of a past batch, and their positions in the epoch's order."""
        if state is None:
            return self._indices_at(epoch, step, rank)
        state, rest = self._checked(state, "raise")
        if state["epoch"] != epoch:
            raise InvalidOption(f"a state of epoch {state['epoch']} says nothing of epoch {epoch}")
        return self._indices_at(epoch, step, rank, state["position"], rest, ahead_of(state))

    def _changes(self, state: Mapping[str, Any], now: Catalogue | None) -> str | None:
        """Return in words how the dataset, or the sampler, differs from that of a state. Raises InvalidOption."""
        order, before = self._order_kind(), str(state.get("order"))
        told = None
        if now is not None and state["data"] not in ({}, now.fingerprint):
            found = differences(state["data"], kept(state["data"]), now)
            told = None if found is None else f"the dataset is not what it was when the state was taken: {found}"
        if before != order:
            kind = order.partition(" ")[0]
            if not isinstance(self.sampler, KeyedSampler) or before.partition(" ")[0] != kind:
                raise InvalidOption(f"a state of an epoch {before} cannot go on {order}")
            if told is None:
                told = f"{kind} is not what it was when the state was taken: it draws otherwise"
        return told

    def _refuse_to_continue(self, state: Mapping[str, Any]) -> None:
        """Raise InvalidOption where what is left of an epoch cannot be told."""
        if ahead_of(state).ranges:
            raise InvalidOption(
                "on_change='continue' needs a state whose batches came in order: this one was taken with "
                "in_order=False while a batch was missing"
            )
        if state["batches"]:
            raise InvalidOption(
                "on_change='continue' needs the loader's own order: which samples a sampler of one's own has given, "
                "and which it would give now, is not known"
            )
        if state["position"] and isinstance(self.sampler, KeyedSampler) and not self._draws_independently():
            raise InvalidOption(
                f"on_change='continue': what {type(self.sampler).__name__} had still to draw depends on what the "
                f"dataset and the shares or weights were; begin the next epoch with set_epoch({state['epoch'] + 1})"
            )

    def _same_ids(self, then: Mapping[str, Any]) -> bool:
        return all(then.get(what) == self._data()[what] for what in ("size", "ids"))

    def _draws_independently(self) -> bool:
        return isinstance(self.sampler, KeyedSampler) and self.sampler.independent

    def _rest_of(self, state: Mapping[str, Any], now: Catalogue) -> Rest:
        """Return what is left of an epoch whose dataset has changed. Raises DatasetChanged, InvalidOption."""
        stages: list[tuple[Catalogue, int]] = []
        for one in state["past"]:
            then = kept(one["data"])
            if then is None:
                raise DatasetChanged(
                    f"the IDs that the dataset had are not kept here: {place_of(one['data'])} is not there. It lies in "
                    "the cache folder of the user, and on the machine, that took the state: copy it from there"
                )
            stages.append((then, one["to"]))
        begin = stages[-1][1]
        if state["position"] < begin:
            raise InvalidOption(f"a state at position {state['position']}, before its dataset changed at {begin}")
        drawn = state["drawn"]
        key = self.seed if self.seed is not None else drawn.get("order") or 0

        def order(stage: int, size: int) -> Order:
            known = {} if drawn.get("order") is None else {"order": key}
            return order_of(self.sampler, self.seed is not None or stage > 0, size, key, state["epoch"], known)

        return Rest(begin, remaining(stages, now, order), tuple(state["past"]))

    def _data(self) -> dict[str, Any]:
        """Return the dataset's fingerprint, made once for each dataset object; nothing for an iterable one."""
        if isinstance(self.dataset, IterableDataset):
            return {}
        if not self._data_known():
            self._make_data()
        assert self._fingerprint is not None
        return self._fingerprint[1]

    def _data_known(self) -> bool:
        known = self._fingerprint is not None and self._fingerprint[0] is self.dataset
        return known or isinstance(self.dataset, IterableDataset)

    def _make_data(self) -> Catalogue:
        """Return the dataset's catalogue, which is kept."""
        found = catalogue(self.dataset)
        found.keep()
        self._fingerprint = (self.dataset, found.fingerprint)
        return found

    def _next_progress(self) -> Progress:
        """Return the record of the pass that begins: from the start of the next epoch, or where a state was taken."""
        self._warn_of_others()
        state, self._resume = self._resume, None
        rest, self._rest = self._rest, None
        own: Mapping[str, Any] = {} if state is None else state.get("dataset") or {}
        progress = Progress(self._epochs.number, streams=self._next_streams(own, resumed=state is not None), rest=rest)
        if not self.in_order and self.num_workers and not isinstance(self.dataset, IterableDataset):
            progress.arrivals = Arrivals()
        if not isinstance(self.dataset, IterableDataset) and not self._draws_itself():
            before = None if self._progress is None else self._progress.samplers
            pending = before.pending if before is not None and state is None else None
            progress.samplers = SamplerStates(own.get("sampler", pending))
        if state is None:
            return progress
        share = self._share() or Share()
        rank, world, text = state.get("ledger") or (None, None, "")
        # The state may be another rank's, whose ledger is another.
        progress.chain = bytes.fromhex(text) if (rank, world) == (share.rank, share.world) else None
        progress.epoch, progress.start, progress.ahead = state["epoch"], state["position"], ahead_of(state)
        progress.drawn = {name: value for name, value in state["drawn"].items() if value is not None}
        if "order" in progress.drawn and not (state["position"] or progress.ahead.ranges):
            progress.drawn["foretold"] = 1
        progress.skipped = state["batches"]
        if self._counts_samples():
            progress.skipped = own.get("samples", state["batches"] * (self.batch_size or 1))
        return progress

    def _forwarded(self, batches: Any, progress: Progress) -> Any:
        """Return a pass behind the batches of an iterable dataset that were handed out before."""
        streams = progress.streams
        if not isinstance(self.dataset, IterableDataset) or (streams is not None and streams.given):
            return batches
        if streams is not None and any(streams.to_drop) and not isinstance(batches, InTurn):
            return batches  # each worker's are dropped as they come
        batches.progress = None
        for _ in range(progress.skipped):
            next(batches, None)
            if streams is not None and not any(streams.to_drop):
                streams.taken()
        return batches


def _with_leaves(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that has the same keys as any other: torch.distributed.checkpoint reads those of a new loader's.

    It takes dictionaries apart, and lists that hold some, into a key for each value; texts and tuples it keeps whole.
    """
    own = state["dataset"]
    return {
        **state,
        "past": [json.dumps(one) for one in state["past"]],
        "dataset": None if own is None else (own,),
    }


def _without_leaves(state: Any) -> Any:
    """Return a state as it was before _with_leaves(), of whatever checked_state() will make an error of."""
    if not isinstance(state, Mapping):
        return state
    past, own = state.get("past"), state.get("dataset")
    with suppress(TypeError, ValueError):
        past = [json.loads(one) for one in past or ()] if isinstance(past, list | tuple) else past
    return {**state, "past": past, "dataset": own[0] if isinstance(own, list | tuple) and len(own) == 1 else own}
