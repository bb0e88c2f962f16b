"""Which streams of a Hugging Face dataset a pass carries, and in which turn: by other workers and ranks than before too.

A pass of W workers on each of R ranks has W x R streams. In step s each rank hands out a batch of its next worker: the
global order goes through the streams worker by worker, and in each through the ranks. A pass that goes on from a state
carries the same streams to the end of the epoch, by whatever workers and ranks there are:

- Where the new number of ranks divides the number of streams, each rank carries its share of them.
- Else each rank carries all of them, and hands out every R-th batch, for which it reads R times as much.

The next epoch is split anew.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import DatasetChanged, InvalidOption
from penstock.state.hugging_face_streams import (
    HuggingFaceStream,
    Packed,
    Place,
    fresh_places,
    loses_rows,
    place_of,
    steps_of,
)
from penstock.state.streams import Entry, Stream
from penstock.system.warn_user import warn_user
from penstock.system.words import counted

#: Of so many files the sizes are looked at.
_LOOKED_AT = 1024


@dataclass
class StreamSplit:
    """The streams that a pass carries on one rank.

    Attributes:
        places: of the streams.
        held: (rank, ranks) of the pass.
        strategy: of `split_dataset_by_node`, in the pass that the streams began in.
        deals: each rank carries all streams.
        others: batches of other ranks that come before the next of this one.
    """

    dataset: Any
    places: list[Place]
    held: tuple[int, int]
    strategy: str | None
    deals: bool = False
    others: int = 0

    @property
    def count(self) -> int:
        return len(self.places)

    def passes_over(self) -> bool:
        if self.deals and self.others:
            self.others -= 1
            return True
        self.others = self.held[1] - 1
        return False

    def afresh(self, workers: int) -> StreamSplit:
        return fresh_split(self.dataset, workers)

    def opened(self, streams: Mapping[int, Entry | None], *, brief: bool) -> dict[int, Stream]:
        return {
            number: Stream(HuggingFaceStream(self.dataset, self.places[number], self.strategy, brief=brief), given)
            for number, given in streams.items()
        }

    def filled(self, entry: Entry | None, before: Entry | None) -> Entry | None:
        state = None if entry is None else entry["dataset"]["state"]
        if entry is None or not isinstance(state, Packed):
            return entry
        known = None if before is None else before["dataset"]["state"]
        known = known if isinstance(known, Packed) else None
        return {**entry, "dataset": {**entry["dataset"], "state": state.filled(known)}}

    def as_state(self, states: Sequence[Entry | None]) -> dict[str, Any]:
        if loses_rows(self.dataset):
            _warn_of_buffers()
        entries, epoch = [], int(self.dataset.epoch)
        for place, entry in zip(self.places, states, strict=True):
            found = {"of": list(place), **({} if entry is None else entry["dataset"])}
            if isinstance(found.get("state"), Packed):
                found["state"] = found["state"].plain()
            if found.get("state") is not None:
                epoch = found["state"]["epoch"]
            entries.append({**found, "ended": bool(entry and entry.get("ended"))})
        return {
            "states": entries,
            "held": list(self.held),
            "deals": self.deals,
            "strategy": self.strategy,
            "epoch": epoch,
            "pipeline": described(self.dataset),
        }


def _strategy_of(dataset: Any) -> str | None:
    return getattr(dataset._distributed, "strategy", None)


def fresh_split(dataset: Any, workers: int) -> StreamSplit:
    """Return the streams of a pass that begins at the start of an epoch."""
    return StreamSplit(dataset, fresh_places(dataset, workers), place_of(dataset), _strategy_of(dataset))


def resumed_split(dataset: Any, own: Mapping[str, Any]) -> tuple[StreamSplit, dict[str, Any]]:
    """Return the streams of a pass that goes on from a state, and the state as `Streams` takes it.

    A stream that the state does not hold, because another rank carried it, is read from the start of the epoch: as many
    batches are dropped as its neighbour had handed out.
    """
    known = {Place(*entry["of"]): (entry, count) for entry, count in zip(own["states"], own["counts"], strict=True)}
    _, workers, _, old_ranks = next(iter(known))
    places = [Place(worker, workers, rank, old_ranks) for worker in range(max(1, workers)) for rank in range(old_ranks)]
    (was_rank, was_ranks), (rank, ranks) = own["held"], place_of(dataset)
    turn, behind = own["next"] * was_ranks, 0
    if own["deals"]:
        turn, behind = own["next"], was_ranks - 1 - was_rank  # which the other ranks have handed out since
    size, skips, missing = own.get("batch_size", 1), [0] * len(places), 0
    deals = len(places) % ranks > 0
    if not deals:
        alive = [at for at in range(len(places)) if not known.get(places[at], ({},))[0].get("ended")]
        for _ in range(behind if alive else 0):
            turn = next((at for at in alive if at >= turn % len(places)), alive[0])
            skips[turn] += size
            turn += 1
    carried = range(len(places)) if deals else range(rank, len(places), ranks)
    states, counts = list[Entry](), list[int]()
    for at in carried:
        entry, count = known.get(places[at], (None, 0))
        if entry is None and not own["deals"]:
            _, count = known[places[at // was_ranks * was_ranks + was_rank]]
            skips[at] += count * size
            missing += count
        given = {"of": list(places[at]), "state": None, "skip": 0, "ended": False, **(entry or {})}
        ended = {"ended": True} if given.pop("ended") else {}
        states.append({"dataset": {**given, "skip": given["skip"] + skips[at]}, **ended})
        counts.append(count)
    if missing:
        warn_user(
            f"the state is of rank {was_rank} of {was_ranks} only: {counted(missing, 'batch', 'batches')} of the streams "
            "of other ranks are read from the start of the epoch and dropped. To continue at once, save the state of "
            "each rank and give load_state_dict() the list of them"
        )
    following = turn if deals else -(-(turn - rank) // ranks)
    split = StreamSplit(dataset, [places[at] for at in carried], (rank, ranks), own["strategy"], deals, behind + rank)
    return split, {"states": states, "next": following % len(states), "counts": counts}


def merged(states: Sequence[Mapping[str, Any]], own_of: Callable[[Any], Mapping[str, Any]], rank: int) -> Any:
    """Return one state of those that the ranks of a run have saved behind the same step. Raises InvalidOption."""
    inside = [state for state in states if "held" in own_of(state)]
    if not inside:
        return states[0]
    if len({state["epoch"] for state in inside}) > 1 or len({str(own_of(state)["held"][1]) for state in inside}) > 1:
        raise InvalidOption("the states of several ranks are of different epochs, or of runs with other ranks")
    by_rank = {own_of(state)["held"][0]: state for state in inside}
    base = by_rank.get(rank, by_rank[min(by_rank)])
    if own_of(base)["deals"]:
        return by_rank[max(by_rank)]
    parts = [own_of(state) for state in by_rank.values()]
    joined = {name: [one for part in parts for one in part[name]] for name in ("states", "counts")}
    return {**base, "dataset": ({**own_of(base), **joined},)}


def is_of_streams(own: Mapping[str, Any]) -> bool:
    """Return whether a part of a state is what as_state() returns."""
    try:
        lists = own["states"], own["counts"]
        held, places = own["held"], [Place(*map(int, entry["of"])) for entry in own["states"]]
        sound = len(held) == 2 and 0 <= held[0] < held[1] and len(lists[0]) == len(lists[1]) > 0
        return sound and 0 <= own["next"] < len(places) and len({place[1::2] for place in places}) == 1
    except (KeyError, TypeError, ValueError):
        return False


def is_of_another_epoch(dataset: Any, own: Mapping[str, Any]) -> bool:
    """Return whether set_epoch() of the dataset has begun another epoch than that of a state."""
    return "held" in own and int(dataset.epoch) != own["epoch"]


# --- what a state is checked by ---------------------------------------------------------------------------------------


def described(dataset: Any) -> list[Any]:
    """Return what distinguishes the pipeline of a dataset: for each step its name and numbers, for a source its shards.

    Sizes are those of its first files, in bytes, and of its tables, in rows.
    """
    return [_described(step) for step in steps_of(dataset._ex_iterable)]


def _described(step: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"step": type(step).__name__}
    for name, value in sorted(vars(step).items()):
        if type(value) in (bool, int, str) and not name.startswith("_"):
            facts[name] = value
        elif isinstance(value, np.random.Generator):
            facts["seed"] = _crc(value.bit_generator.state)
    if not (hasattr(step, "ex_iterable") or hasattr(step, "ex_iterables")):
        facts["shards"] = step.num_shards
        items = [one for value in getattr(step, "kwargs", {}).values() if isinstance(value, list) for one in value]
        files = [str(one) for one in items if isinstance(one, str | os.PathLike)]
        facts["files"] = _crc([os.path.basename(file) for file in files])
        sizes = [os.path.getsize(file) for file in files[:_LOOKED_AT] if os.path.isfile(file)]
        table = getattr(sys.modules.get("datasets"), "Dataset", ())
        facts["sizes"] = _crc([*sizes, *(len(one) for one in items if isinstance(one, table))])
    return facts


def _crc(value: Any) -> int:
    return zlib.crc32(repr(value).encode())


def check_pipeline(dataset: Any, own: Mapping[str, Any]) -> None:
    """Raise DatasetChanged where a state is of another pipeline, or its files have changed."""
    before, now = own.get("pipeline"), described(dataset)
    if before == now:
        return
    if not isinstance(before, list) or [one["step"] for one in before] != [one["step"] for one in now]:
        change = "it has other steps (map, filter, shuffle, ...)"
    else:
        was, became = next(pair for pair in zip(before, now, strict=True) if pair[0] != pair[1])
        name = next(name for name in (*became, *was) if was.get(name) != became.get(name))
        change = _WORDS.get(name, f"{name} of {became['step']} was {was.get(name)!r} and is {became.get(name)!r}")
        change = change.format(was=was.get(name), became=became.get(name))
    raise DatasetChanged(
        f"the dataset is not what it was when the state was taken: {change}. Which rows are left of its epoch is not "
        f"known: begin the next one with dataset.set_epoch({own['epoch'] + 1}), without the state"
    )


_WORDS = {
    "shards": "it had {was} shards and has {became}",
    "files": "the names of its files, or their order, have changed",
    "sizes": "the sizes of its shards have changed",
    "seed": "it is shuffled with another seed",
}


def _warn_of_buffers() -> None:
    warn_user(
        "the shuffle buffer of this version of datasets is not known: a state does not hold its rows, and a pass that "
        "continues from it loses some of them"
    )
