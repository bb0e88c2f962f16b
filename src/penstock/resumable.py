"""Stopping and going on: the state of a loader, for checkpoints."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed
from torch.utils.data import DistributedSampler, IterableDataset, IterDataPipe, MapDataPipe, SequentialSampler

from penstock.ahead import Ahead, Arrivals
from penstock.batches import foretell, order_of
from penstock.catalogue import Catalogue, catalogue, kept, place_of
from penstock.changed import differences, remaining
from penstock.errors import DatasetChanged, InvalidOption
from penstock.fetching import InTurn
from penstock.keyed import KeyedSampler
from penstock.naming import id_of
from penstock.order import Indices, Order
from penstock.ordering import Ordered, innermost
from penstock.progress import FORMAT, FORMAT_WITH_OWN, Progress, Rest, checked_state, is_count
from penstock.sampler_states import SamplerStates, between_passes
from penstock.schedule import Share
from penstock.streams import Streams, check_streams, says_where_it_is, state_of

OnChange = Literal["raise", "continue"]


class Resumable(Ordered):
    """The part of the loader that says where it is, and goes on from there; torchdata's Stateful protocol."""

    if TYPE_CHECKING:

        def _in_threads(self) -> bool: ...

    num_workers: int
    in_order: bool
    persistent_workers: bool
    generator: Any
    _iterator: Any
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
            "format": FORMAT_WITH_OWN if own is not None and own.keys() & _BEYOND_FORMAT_1 else FORMAT,
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

    def _own(self, progress: Progress | None, between: bool, now: Progress, ahead: Ahead) -> dict[str, Any] | None:
        """Return what a state holds that its numbers do not say; None: nothing."""
        own: dict[str, Any] = {}
        if (streams := self._streams_now(progress)) is not None:
            own.update(streams)
        if (sampler := self._sampler_now(progress, between)) is not None:
            own["sampler"] = sampler
        if self._warns_of_threads():
            warnings.warn(
                f"{type(self.dataset).__name__} has a state_dict(), and worker threads share the dataset: what it says "
                "belongs to no batch and is not saved. With worker_method='process' or num_workers=0 it is",
                stacklevel=3,
            )
        if now.handed and self.batch_size is not None and (now.given or isinstance(self.dataset, IterableDataset)):
            own["batch_size"] = self.batch_size
        if now.given and self._counts_samples():
            own["samples"] = now.given
        place = self._place()
        if now.handed and place.world > 1 and (now.arrivals is not None or now.given):
            own["place"] = [place.rank, place.world, self.batch_size, now.arrivals is not None]
        if ahead.ranges:
            own["ahead"] = [list(one) for one in ahead.ranges]
        return own or None

    def _streams_now(self, progress: Progress | None) -> dict[str, Any] | None:
        """Return where the dataset is in each worker, None where nobody says."""
        if progress is not None and progress.streams is not None:
            return progress.streams.as_state()
        if progress is None and self.num_workers == 0 and not isinstance(self.dataset, IterableDataset):
            state = state_of(self.dataset) if self._keeps_its_own_state() else None
            return None if state is None else {"states": [state], "next": 0}
        return None

    def _sampler_now(self, progress: Progress | None, between: bool) -> dict[str, Any] | None:
        """Return where a user's sampler is, None where it does not say."""
        if isinstance(self.dataset, IterableDataset) or self._draws_itself():
            return None
        if progress is not None and progress.samplers is not None:
            return progress.samplers.as_state(done=between)
        return between_passes(self.sampler if self._is_cut_by_torch() else self._index_sampler)

    def _warns_of_threads(self) -> bool:
        if isinstance(self.dataset, IterableDataset):
            return False  # what is done then is said when a state of it is loaded
        return says_where_it_is(self.dataset) and not self._keeps_its_own_state()

    def _place(self) -> Share:
        """Return which rank a pass is of, whoever cuts the batches."""
        inner = innermost(self.sampler, self.batch_sampler)
        if isinstance(inner, DistributedSampler):
            return Share(inner.rank, inner.num_replicas)
        share = self._share()
        if share is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            return Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return share or Share()

    def _foretold(self) -> dict[str, int]:
        """Return what the next pass would draw if it began now, where it is not a function of the seed."""
        if self.seed is not None or isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return {}
        kept = self._iterator is not None and self.persistent_workers
        base = self._progress.drawn if kept and self._progress is not None else {}
        draws_order = self._draws_itself() and type(self.sampler) is not SequentialSampler
        generator = self.sampler.generator if draws_order else None
        drawn = foretell(self.generator, generator, base_first="base" not in base)
        if not draws_order:
            del drawn["order"]
        return {**drawn, **({"base": base["base"]} if "base" in base else {})}

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
            warnings.warn(
                f"{type(self.dataset).__name__} has no state_dict() and load_state_dict() that its workers could call: "
                f"{state['batches']:,} batches will be read and dropped to go on behind them",
                stacklevel=2,
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
            if max(state["position"], *(behind for _, behind in _ahead_of(state).ranges), 0) > end:
                raise InvalidOption(f"a state at position {state['position']:,} of an epoch of {end:,} samples")
        state["data"], state["order"] = self._data(), self._order_kind()
        return state, rest

    def _check_own(self, state: Mapping[str, Any]) -> None:
        """Raise InvalidOption where what a state holds beside its numbers is of another cut, or is no such thing."""
        own = state.get("dataset")
        if own is None:
            return
        if not isinstance(own, Mapping) or not _is_sound(own):
            raise InvalidOption("a state whose 'dataset' is not what state_dict() writes")
        iterable = isinstance(self.dataset, IterableDataset)
        if "states" in own and (iterable or self._keeps_its_own_state()):
            check_streams(own, self.num_workers)
        elif any(each is not None for each in own.get("states", ())):
            warnings.warn(
                f"the state holds what {type(self.dataset).__name__}.state_dict() said, and nobody can be told: it has "
                "no load_state_dict(), or worker threads share it. The dataset goes on as it is",
                stacklevel=4,
            )
        if iterable and not self._says(own) and own.get("batch_size", self.batch_size) != self.batch_size:
            raise InvalidOption(
                f"a state of an iterable dataset that does not say where it is, read in batches of "
                f"{own['batch_size']}, cannot go on with batch_size={self.batch_size}"
            )
        if _ahead_of(state).ranges and "samples" in own and not self._counts_samples():
            raise InvalidOption(
                "a state whose batches came out of order, cut by the loader, cannot go on with a batch_sampler"
            )
        if "place" not in own:
            return
        rank, world, batch_size, unordered = own["place"]
        place = self._place()
        if unordered and (rank, world, batch_size) != (place.rank, place.world, self.batch_size):
            raise InvalidOption(
                f"a state of rank {rank} of {world} with in_order=False and batches of {batch_size} goes on there "
                f"only, not on rank {place.rank} of {place.world} with batch_size={self.batch_size}: each rank had "
                "handed out other batches. Save the state of every rank, or give in_order=True"
            )
        if world != place.world:
            raise InvalidOption(
                f"a state of a DistributedSampler of {world} ranks cannot go on with {place.world}: give shard= in its "
                "place, whose order does not depend on the ranks"
            )

    def _says(self, own: Mapping[str, Any]) -> bool:
        """Return whether a state holds what the dataset itself, or its iterator, said, and they can be told."""
        states = [each for each in own.get("states", ()) if each is not None]
        if self.num_workers and self._in_threads():
            return bool(states) and all("iterator" in each for each in states)
        return bool(states) and self._keeps_its_own_state()

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
        return [id_of(self.dataset, index) for index in self._replayed(epoch, step, rank, state).tolist()]

    def _replayed(self, epoch: int, step: int, rank: int | None, state: Mapping[str, Any] | None) -> Indices:
        """Return the indices of a past batch."""
        if state is None:
            return self._indices_at(epoch, step, rank)
        state, rest = self._checked(state, "raise")
        if state["epoch"] != epoch:
            raise InvalidOption(f"a state of epoch {state['epoch']} says nothing of epoch {epoch}")
        return self._indices_at(epoch, step, rank, state["position"], rest, _ahead_of(state))

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
        if _ahead_of(state).ranges:
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

    def _keeps_its_own_state(self) -> bool:
        """Return whether the dataset, or its iterator, may say where it is: not where threads share it."""
        if self.num_workers and self._in_threads():
            return False
        if isinstance(self.dataset, IterableDataset):
            return not isinstance(self.dataset, IterDataPipe)
        return says_where_it_is(self.dataset)

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
        state, self._resume = self._resume, None
        rest, self._rest = self._rest, None
        own: Mapping[str, Any] = {} if state is None else state.get("dataset") or {}
        progress = Progress(self._epochs.number, streams=self._next_streams(own, resumed=state is not None), rest=rest)
        if not self.in_order and self.num_workers and not isinstance(self.dataset, IterableDataset):
            progress.arrivals = Arrivals()
        if not isinstance(self.dataset, IterableDataset) and not self._draws_itself():
            progress.samplers = SamplerStates(own.get("sampler"))
        if state is None:
            return progress
        share = self._share() or Share()
        rank, world, text = state.get("ledger") or (None, None, "")
        # The state may be another rank's, whose ledger is another.
        progress.chain = bytes.fromhex(text) if (rank, world) == (share.rank, share.world) else None
        progress.epoch, progress.start, progress.ahead = state["epoch"], state["position"], _ahead_of(state)
        progress.drawn = {name: value for name, value in state["drawn"].items() if value is not None}
        if "order" in progress.drawn and not (state["position"] or progress.ahead.ranges):
            progress.drawn["foretold"] = 1
        progress.skipped = state["batches"]
        if self._counts_samples():
            progress.skipped = own.get("samples", state["batches"] * (self.batch_size or 1))
        return progress

    def _next_streams(self, own: Mapping[str, Any], *, resumed: bool) -> Streams | None:
        """Return where the dataset is in each worker of the pass that begins."""
        if not (self._keeps_its_own_state() or isinstance(self.dataset, IterableDataset)):
            return None
        if isinstance(self.dataset, IterDataPipe):
            return None
        before = None if self._progress is None or not self.persistent_workers else self._progress.streams
        given = dict(own) if "states" in own else None
        if given is not None and self.num_workers and self._in_threads() and not self._says(given):
            given["states"] = [None] * len(given["states"])  # which threads, that share a dataset, cannot tell it
        return Streams(self.num_workers, given, resumed=resumed, before=before)

    def _counts_samples(self) -> bool:
        """Return whether what a user's sampler gave is counted in samples, whatever the batch size."""
        if isinstance(self.dataset, IterableDataset):
            return False
        return self._is_cut_by_torch() or self._index_sampler is self.sampler

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


# What a version that reads FORMAT alone would pass over.
_BEYOND_FORMAT_1 = {"ahead", "sampler", "place"}


def _ahead_of(state: Mapping[str, Any]) -> Ahead:
    """Return what was handed out ahead, of a state."""
    return Ahead.of((begin, end) for begin, end in (state.get("dataset") or {}).get("ahead", ()))


def _is_sound(own: Mapping[str, Any]) -> bool:
    """Return whether the parts of a state that have a form have it."""
    ranges, place = own.get("ahead", []), own.get("place", [0, 1, 1, False])
    return (
        bool(own)
        and isinstance(ranges, list | tuple)
        and all(isinstance(one, list | tuple) and len(one) == 2 and all(map(is_count, one)) for one in ranges)
        and isinstance(place, list | tuple)
        and len(place) == 4
        and is_count(own.get("samples", 0))
    )


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
