"""One stream of a Hugging Face IterableDataset: what one worker of one rank reads in a pass, with an exact state.

The package's own state says where each step of the pipeline is; the rows in a shuffle buffer it loses. Here a copy of
the pipeline is read whose shuffle buffers say what they hold: where the rows come from files or Arrow tables without
a function of the user's in between, the position of each, (shard, row), which is read again; else the rows.

What it costs: 8 bytes a position before compression, for half of the buffer, once for each time that the buffer was
refilled. A resume reads the shards of these positions from their starts, as the package does with what lies behind.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import copy, deepcopy
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from penstock.errors import DatasetChanged
from penstock.recipe.originals import own_class
from penstock.state.kept_rows import KeptRows, positions_of, with_kept_rows

_MODULE = "datasets.iterable_dataset"
#: The column of a source's tables that says where each row lies.
_POSITION = "===PENSTOCK POSITION==="
_ROW_BITS = 40
#: By their source texts: the shuffle buffers of the package that `_ExactBuffer` does the same as (datasets 5.2).
_KNOWN_BUFFERS = {"9cb37dcd"}
#: Steps of a pipeline that hand rows on as they are, without a function of the user's.
_PLAIN = {
    "RebatchedArrowExamplesIterable",
    "InterleavedShardsExamplesIterable",
    "CyclingMultiSourcesExamplesIterable",
    "RandomlyCyclingMultiSourcesExamplesIterable",
    "VerticallyConcatenatedMultiSourcesExamplesIterable",
    "SkipExamplesIterable",
    "TakeExamplesIterable",
    "StepExamplesIterable",
    "RepeatExamplesIterable",
}


def is_hugging_face_stream(dataset: Any) -> bool:
    """Return whether a dataset is a Hugging Face IterableDataset, iterated over by the package's own code."""
    kind = own_class(_MODULE, "IterableDataset")
    return kind is not None and isinstance(dataset, kind) and type(dataset).__iter__ is kind.__iter__


def steps_of(node: Any) -> Iterator[Any]:
    """Yield the steps of a pipeline, the last one first."""
    yield node
    for child in [node.ex_iterable] if hasattr(node, "ex_iterable") else getattr(node, "ex_iterables", ()):
        yield from steps_of(child)


def loses_rows(dataset: Any) -> bool:
    """Return whether a state of the dataset does not hold the rows of its shuffle buffers: their code is not known."""
    return any("Shuffled" in kind.__name__ and not _is_known_buffer(kind) for kind in _kinds(dataset))


def _kinds(dataset: Any) -> set[Any]:
    return {type(step) for step in steps_of(dataset._ex_iterable)}


class Place(NamedTuple):
    """Which stream of a pass is meant: which worker, of how many (0: the caller's thread), of which rank."""

    worker: int
    workers: int
    rank: int
    ranks: int


def place_of(dataset: Any) -> tuple[int, int]:
    """Return (rank, number of ranks) of a dataset, as split_dataset_by_node() has set them."""
    split = dataset._distributed
    return (0, 1) if split is None else (split.rank, split.world_size)


class HuggingFaceStream:
    """An iterable dataset with a state: what one worker of one rank reads. It may be read in any process.

    Args:
        dataset: the user's, which is left as it is.
        place: of the stream, in a pass that was perhaps begun with other workers and ranks.
        strategy: how `split_dataset_by_node` splits; None: it was not called.
        brief: what is pickled of a state holds the rows of a shuffle buffer only the first time: see `KeptRows`.
    """

    def __init__(self, dataset: Any, place: Place, strategy: str | None = None, *, brief: bool = False) -> None:
        self._given, self._place, self._brief = dataset, place, brief
        kind: Any = type(dataset)
        self._dataset = own = object.__new__(_exact_class(kind, _OneStream))
        vars(own).update(vars(dataset))  # copy() of it would share them
        own._ex_iterable = _exact(dataset._ex_iterable, [], brief=brief)
        if place_of(dataset) != place[2:]:
            config: Any = sys.modules[_MODULE]
            own._distributed = strategy and config.DistributedConfig(place.rank, place.ranks, strategy)
        self._state: Any = None  # that was given
        self._skip = 0
        self._begun = False

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._skip, self._state = int(state["skip"]), with_kept_rows(state["state"], brief=self._brief)
        if self._state is not None:
            self._dataset.load_state_dict(self._state)

    def __iter__(self) -> Iterator[Any]:
        place, present = self._place, torch_worker._worker_info
        samples = iter(self._dataset)
        if (place.worker, place.workers) != ((0, 0) if present is None else (present.id, present.num_workers)):
            samples = self._as_worker(samples)
        samples = islice(samples, self._skip, None)
        for sample in samples:
            if not self._begun:
                self._begun, self._skip = True, 0
                own = place.workers == 0 and place[2:] == place_of(self._given)
                if own and not any(map(_is_known_buffer, _kinds(self._given))):
                    self._given._state_dict = self._dataset._state_dict  # its state_dict() says where it is, as always
            yield sample

    def _as_worker(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield samples, made where get_worker_info() returns what the worker that began the stream was told."""
        place, info = self._place, None
        if place.workers:
            seed = torch.initial_seed() + place.worker
            info = torch_worker.WorkerInfo(id=place.worker, num_workers=place.workers, seed=seed, dataset=self._given)
        while True:
            present, torch_worker._worker_info = torch_worker._worker_info, info
            try:
                sample = next(samples)
            except StopIteration:
                return
            finally:
                torch_worker._worker_info = present
            yield sample

    def state_dict(self) -> dict[str, Any]:
        state = self._dataset._state_dict if self._begun else self._state
        return {"of": list(self._place), "skip": self._skip, "state": state}


class _OneStream:
    """An IterableDataset whose state is of what its worker reads: the package would load it before it splits, too."""

    _starting_state_dict: Any

    def _prepare_ex_iterable_for_iteration(self, *given: Any, **named: Any) -> Any:
        state = self._starting_state_dict
        if torch_worker._worker_info is not None:
            self._starting_state_dict = None
        try:
            return super()._prepare_ex_iterable_for_iteration(*given, **named)  # type: ignore[misc]
        finally:
            self._starting_state_dict = state


# --- the pipeline -----------------------------------------------------------------------------------------------------

Shards = list[Callable[[], Iterator[tuple[Any, Any]]]]
"""Returns the tables of each shard, with the positions of their rows."""


def _exact(node: Any, shards: Shards, *, brief: bool, tracks: bool = False) -> Any:
    """Return a copy of a pipeline whose shuffle buffers have an exact state.

    Args:
        shards: those of the sources whose positions are noted; more are added.
        brief: as in HuggingFaceStream.
        tracks: note the positions of rows.
    """
    made = copy(node)
    kind: Any = type(node)
    buffer = _is_known_buffer(kind)
    tracks = tracks or (buffer and all(map(_tracked, steps_of(node.ex_iterable))))
    if buffer:
        made = _exact_class(kind, _ExactBuffer)(node.ex_iterable, node.buffer_size, node.generator)
        made.shards, made.brief = shards if tracks else None, brief
    if hasattr(node, "ex_iterable"):
        made.ex_iterable = _exact(node.ex_iterable, shards, brief=brief, tracks=tracks)
    elif hasattr(node, "ex_iterables"):
        made.ex_iterables = [_exact(child, shards, brief=brief, tracks=tracks) for child in node.ex_iterables]
    elif tracks:
        first, made.generate_tables_fn = len(shards), partial(_with_positions, node.generate_tables_fn)
        made.kwargs = {**node.kwargs, _POSITION: list(range(first, first + node.num_shards))}
        split = sys.modules[_MODULE]._split_gen_kwargs
        shards += [partial(made.generate_tables_fn, **one) for one in split(made.kwargs, max_num_jobs=node.num_shards)]
    return made


def _tracked(step: Any) -> bool:
    """Return whether the positions of rows pass through a step, or begin in it."""
    name = type(step).__name__
    known = own_class(_MODULE, name) is type(step)
    return known and (name in _PLAIN or (name == "ArrowExamplesIterable" and step.num_shards > 0))


def _with_positions(tables: Callable[..., Iterator[Any]], **given: Any) -> Iterator[tuple[Any, Any]]:
    (shard,) = given.pop(_POSITION)
    begin = shard << _ROW_BITS
    for key, table in tables(**given):
        positions = np.arange(begin, begin + len(table))
        begin += len(table)
        yield key, table.append_column(_POSITION, [positions])


@cache
def _is_known_buffer(kind: Any) -> bool:
    if own_class(_MODULE, "BufferShuffledExamplesIterable") is not kind:
        return False
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()[:8] in _KNOWN_BUFFERS
    except (OSError, TypeError):
        return False


@cache
def _exact_class(kind: Any, exact: Any) -> Any:
    return type(exact.__name__.lstrip("_"), (exact, kind), {})


class _ExactBuffer:
    """The package's shuffle buffer, with a state that loses no row. It gives the rows that the package's gives.

    The state is that of the moment when the buffer began to be refilled: where the steps before it were
    (`previous_state`), the state of the generator, the rows that were kept, and how many were `given` since.
    """

    buffer_size: int
    generator: Any
    ex_iterable: Any
    _state_dict: Any
    shards: Shards | None
    """Of the sources, where they are known; None: the state holds rows."""
    brief: bool

    def _like_this(self, made: Any) -> Any:
        found: Any = type(self)(made.ex_iterable, made.buffer_size, made.generator)  # type: ignore[call-arg]
        found.shards, found.brief = self.shards, self.brief
        return found

    def shift_rngs(self, value: int) -> Any:
        return self._like_this(super().shift_rngs(value))  # type: ignore[misc]

    def shuffle_data_sources(self, generator: Any) -> Any:
        return self._like_this(super().shuffle_data_sources(generator))  # type: ignore[misc]

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Any:
        return self._like_this(super().shard_data_sources(num_shards, index, contiguous=contiguous))  # type: ignore[misc]

    def _init_state_dict(self) -> dict[str, Any]:
        self.ex_iterable._init_state_dict()
        found = {"previous_state": None, "generator": None, "kept": None, "given": 0, "type": "ExactBuffer"}
        self._state_dict = found
        return found

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Any]:
        found = self._init_state_dict()
        found.update(deepcopy(state))
        return found

    def __iter__(self) -> Iterator[Any]:
        state, rng, kept = self._begin()
        rows = [] if kept is None else self._examples(kept)
        keep, skip = self.buffer_size // 2, state["given"]
        for row in self.ex_iterable:
            rows.append(row)
            if len(rows) >= self.buffer_size:
                order = rng.permutation(len(rows))
                yield from self._given_out(rows, order[skip : len(rows) - keep])
                rows, skip = [rows[at] for at in order[len(rows) - keep :]], 0
                self._note(rng, tuple(rows) if self.shards is None else _positions(rows))
        yield from self._given_out(rows, rng.permutation(len(rows))[skip:] if rows else ())

    def _given_out(self, rows: list[Any], order: Any) -> Iterator[Any]:
        state = self._state_dict
        for at in order:
            key, example = rows[at]
            example = dict(example)  # what the program does to it does not reach the rows that are kept
            example.pop(_POSITION, None)
            state["given"] += 1
            yield key, example

    def _iter_arrow(self) -> Iterator[Any]:
        pa = sys.modules["pyarrow"]
        _, rng, kept = self._begin()
        tables = [] if kept is None else self._tables(kept)
        count, key = sum(map(len, tables)), None
        for key, table in self.ex_iterable.iter_arrow():
            tables.append(table)
            count += len(table)
            if count >= self.buffer_size:
                yield key, self._shuffled(pa.concat_tables(tables), rng, count - self.buffer_size // 2, tables)
                count = self.buffer_size // 2
        if count:
            yield key, self._shuffled(pa.concat_tables(tables), rng, count, tables)

    def _shuffled(self, table: Any, rng: Any, given: int, tables: list[Any]) -> Any:
        """Return the rows that are given out of a shuffled table. The others are kept, in `tables` too."""
        shuffled = table.take(rng.permutation(len(table)))
        tables[:] = [kept] = [shuffled.slice(given)]
        self._note(rng, kept if self.shards is None else kept[_POSITION].to_numpy())
        shuffled = shuffled.slice(0, given)
        return shuffled if self.shards is None else shuffled.drop_columns([_POSITION])

    def _begin(self) -> tuple[dict[str, Any], Any, Any]:
        """Return the state, the generator, and what is kept there, None at the start."""
        state: dict[str, Any] = self._init_state_dict() if self._state_dict is None else self._state_dict
        rng, kept = deepcopy(self.generator), state["kept"]
        if kept is not None:
            rng.bit_generator.state = state["generator"]
            self.ex_iterable.load_state_dict(state["previous_state"])
        return state, rng, kept and kept.plain()

    def _note(self, rng: Any, kept: Any) -> None:
        """Note that the buffer begins to be refilled."""
        self._state_dict.update(
            previous_state=self.ex_iterable.state_dict(),
            generator=rng.bit_generator.state,
            kept=KeptRows(kept, brief=self.brief),
            given=0,
        )

    def _examples(self, kept: dict[str, Any]) -> list[Any]:
        if "examples" in kept:
            return [(0, example) for example in kept["examples"]]
        package: Any = sys.modules[_MODULE]
        batches = [package.PythonFormatter().format_batch(table) for table in self._tables(kept)]
        return [(0, example) for batch in batches for example in package._batch_to_examples(batch)]

    def _tables(self, kept: dict[str, Any]) -> list[Any]:
        pa = sys.modules["pyarrow"]
        if "table" in kept:
            return [pa.ipc.open_stream(kept["table"]).read_all()]
        positions = positions_of(kept)
        if not len(positions):
            return []
        found = pa.concat_tables([self._read(int(shard), positions) for shard in np.unique(positions >> _ROW_BITS)])
        return [found.take(np.searchsorted(np.sort(positions), positions))]

    def _read(self, shard: int, positions: Any) -> Any:
        """Return the rows at some positions that lie in a shard, in their order there. Raises DatasetChanged."""
        assert self.shards is not None
        begin, parts = shard << _ROW_BITS, []
        wanted = np.sort(positions[positions >> _ROW_BITS == shard])
        for _, table in self.shards[shard]():
            inside = wanted[(wanted >= begin) & (wanted < begin + len(table))] - begin
            begin += len(table)
            if len(inside):
                parts.append(table.take(inside))
            if begin > wanted[-1]:
                return sys.modules["pyarrow"].concat_tables(parts)
        (file,) = getattr(self.shards[shard], "keywords", {}).get("files", (f"shard {shard}",))
        raise DatasetChanged(
            f"{file} has {begin - (shard << _ROW_BITS):,} rows, and a shuffle buffer of the state holds its row "
            f"{wanted[-1] - (shard << _ROW_BITS):,}: it has changed since the state was taken"
        )


def _positions(rows: list[Any]) -> Any:
    return np.fromiter((example[_POSITION] for _, example in rows), np.int64)
