"""Which streams of a Hugging Face dataset a pass carries, in which turn: also by other workers and ranks than before.

A pass of W workers on each of R ranks has W x R streams. In step s each rank hands out a batch of its next worker: the
global order goes through the streams worker by worker, and in each through the ranks. A pass that continues from a
state carries the same streams to the end of the epoch, by whatever workers and ranks there are:

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
from functools import cache, cached_property
from typing import Any

from penstock.errors import DatasetChanged, InvalidOption
from penstock.state.hugging_face_streams import HuggingFaceStream, Place, loses_rows, place_of, steps_of
from penstock.state.kept_rows import with_plain_rows
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
        first: of all streams, the one that the global order of this pass began with.
        deals: each rank carries all streams.
        others: batches of other ranks that come before the next of this one.
    """

    dataset: Any
    places: list[Place]
    held: tuple[int, int]
    strategy: str | None
    first: int = 0
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

    def as_state(self, states: Sequence[Entry | None]) -> dict[str, Any]:
        if loses_rows(self.dataset):
            _warn_of_buffers()
        entries, epoch = [], int(self.dataset.epoch)
        for place, entry in zip(self.places, states, strict=True):
            found = {"of": list(place), **({} if entry is None else entry["dataset"])}
            if found.get("state") is not None:
                found["state"] = with_plain_rows(found["state"])
                epoch = found["state"]["epoch"]
            entries.append({**found, "ended": bool(entry and entry.get("ended"))})
        return {
            "states": entries,
            "held": list(self.held),
            "first": self.first,
            "deals": self.deals,
            "strategy": self.strategy,
            "epoch": epoch,
            "pipeline": self._described,
        }

    @cached_property
    def _described(self) -> list[Any]:
        return described(self.dataset)


def fresh_split(dataset: Any, workers: int) -> StreamSplit:
    """Return the streams of a pass that begins at the start of an epoch."""
    rank, ranks = place_of(dataset)
    places = [Place(worker, workers, rank, ranks) for worker in range(max(1, workers))]
    return StreamSplit(dataset, places, (rank, ranks), getattr(dataset._distributed, "strategy", None))


def resumed_split(dataset: Any, own: Mapping[str, Any]) -> tuple[StreamSplit, dict[str, Any]]:
    """Return the streams of a pass that continues from a state, and the state as `Streams` takes it.

    A stream that the state does not hold, because another rank carried it, is read from the start of the epoch: as many
    batches are dropped as its neighbour had handed out.
    """
    known = {Place(*entry["of"]): (entry, count) for entry, count in zip(own["states"], own["counts"], strict=True)}
    places = _order(own)
    (was_rank, was_ranks), (rank, ranks) = own["held"], place_of(dataset)
    states, counts, size = list[dict[str, Any]](), list[int](), own.get("batch_size", 1)
    deals = len(places) % ranks > 0
    for at, place in enumerate(places):
        if place in known:
            entry, count = known[place]
        else:
            _, count = known[places[at // was_ranks * was_ranks + was_rank]]
            entry = {"of": list(place), "skip": count * size}
        states.append({"state": None, "skip": 0, "ended": False, **entry})
        counts.append(count)
    turn, behind = own["next"], 0
    if not own["deals"]:
        turn *= was_ranks
    elif deals:
        behind = was_ranks - 1 - was_rank  # which the other ranks have handed out since
    else:
        turn = _passed(states, counts, turn, was_ranks - 1 - was_rank, size)
    first = (own["first"] + turn) % len(places)
    places, states, counts = _rotated(places, turn), _rotated(states, turn), _rotated(counts, turn)
    carried = range(len(places)) if deals else range(rank, len(places), ranks)
    split = StreamSplit(
        dataset, [places[at] for at in carried], (rank, ranks), own["strategy"], first, deals, behind + rank
    )
    if missing := sum(counts[at] for at in carried if places[at] not in known):
        warn_user(
            f"the state is of rank {was_rank} of {was_ranks} only: {counted(missing, 'batch', 'batches')} of the "
            "streams of other ranks are read from the start of the epoch and dropped. To continue at once, save the "
            "state of each rank and give load_state_dict() the list of them"
        )
    given = [{"dataset": states[at], "ended": states[at]["ended"]} for at in carried]
    return split, {"states": given, "next": 0, "counts": [counts[at] for at in carried]}


def _order(own: Mapping[str, Any]) -> list[Place]:
    """Return all streams of the pass that a state is of, in the order in which they take turns."""
    _, workers, _, ranks = own["states"][0]["of"]
    places = [Place(worker, workers, rank, ranks) for worker in range(max(1, workers)) for rank in range(ranks)]
    return _rotated(places, own["first"])


def _rotated(parts: list[Any], by: int) -> list[Any]:
    return parts[by % len(parts) :] + parts[: by % len(parts)]


def _passed(states: list[dict[str, Any]], counts: list[int], turn: int, batches: int, size: int) -> int:
    """Let streams be read behind their next batches, which were handed out elsewhere; return whose turn it is then."""
    alive = [at for at, state in enumerate(states) if not state["ended"]]
    for _ in range(batches if alive else 0):
        turn = next((at for at in alive if at >= turn % len(states)), alive[0])
        states[turn]["skip"] += size
        counts[turn] += 1
        turn += 1
    return turn


def merged(
    states: Sequence[Mapping[str, Any]], own_of: Callable[[Any], Mapping[str, Any]], place: tuple[int, int]
) -> Any:
    """Return one state of those that the ranks of a run have saved behind the same step. Raises InvalidOption.

    place: (rank, ranks) of the loader. Whose turn it is may differ between ranks that have other numbers of rows: each
    goes by its own where the ranks are the same, else all by that of one.
    """
    inside = [state for state in states if "held" in own_of(state)]
    if not inside:
        return states[0]
    if not all(is_of_streams(own_of(state)) for state in inside):
        raise InvalidOption(NOT_OF_STREAMS)
    if len({(state["epoch"], own_of(state)["held"][1]) for state in inside}) > 1:
        raise InvalidOption("the states of several ranks are of different epochs, or of runs with other ranks")
    by_rank = {own_of(state)["held"][0]: state for state in inside}
    base = by_rank[min(by_rank)]
    if own_of(base)["held"][1] == place[1]:
        base = by_rank.get(place[0], base)
    if own_of(base)["deals"]:
        return by_rank[max(by_rank)]
    parts = [own_of(state) for state in by_rank.values()]
    places, ranks = _order(own_of(base)), own_of(base)["held"][1]
    gone = [one for one in range(ranks) if one not in by_rank]
    if len(gone) == len(states) - len(inside):  # the others have come to their ends
        ended = [{"of": list(place), "ended": True} for one in gone for place in places[one::ranks]]
        parts.append({"states": ended, "counts": [0] * len(ended)})
    joined = {name: [one for part in parts for one in part[name]] for name in ("states", "counts")}
    return {**base, "dataset": ({**own_of(base), **joined},)}


NOT_OF_STREAMS = (
    "a state that is not of a Hugging Face IterableDataset, was changed, or was written before Penstock resumed such "
    "streams exactly: begin its epoch anew"
)


def is_of_streams(own: Mapping[str, Any]) -> bool:
    """Return whether a part of a state is what as_state() returns."""
    try:
        lists = own["states"], own["counts"]
        held, _, places = own["held"], own["first"], [Place(*map(int, entry["of"])) for entry in own["states"]]
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
        elif hasattr(value, "bit_generator"):
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
    """Raise DatasetChanged where a state is of another pipeline, or its files have changed since rows were given."""
    before, now = own.get("pipeline"), described(dataset)
    if before == now or not any(own["counts"]):
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


@cache
def _warn_of_buffers() -> None:
    warn_user(
        "the shuffle buffer of this version of datasets is not known: a state does not hold its rows, and a pass that "
        "continues from it loses some of them"
    )
