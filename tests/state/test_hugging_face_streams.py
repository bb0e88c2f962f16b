"""Streams of Hugging Face datasets: a pass that was stopped continues with the rows of the one that was not."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock
from penstock.state import hugging_face_streams, stream_split
from penstock.state.kept_rows import with_plain_rows
from tests.data import Placed
from tests.python_processes import run

datasets: Any = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
split_dataset_by_node: Any = pytest.importorskip("datasets.distributed", reason="as above").split_dataset_by_node

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than CPUs

ROWS, SHARDS, BATCH = 96, 8, 4
Place = tuple[int, int]
"""(workers, ranks)."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)  # 5 s a pass over Parquet files


def columns(begin: int, end: int) -> dict[str, list[Any]]:
    return {"a": list(range(begin, end)), "text": [f"row {number}" for number in range(begin, end)]}


def arrow(rows: int = ROWS, shards: int = SHARDS) -> Any:
    return datasets.Dataset.from_dict(columns(0, rows)).to_iterable_dataset(num_shards=shards)


def parquet(folder: Path, shards: int = SHARDS) -> Any:
    """Return a stream of files with row groups of 5 rows."""
    each, files = ROWS // shards, [str(folder / f"{shard}.parquet") for shard in range(shards)]
    for shard, file in enumerate(files):
        datasets.Dataset.from_dict(columns(shard * each, shard * each + each)).to_parquet(file, batch_size=5)
    cache = str(folder / "cache")
    return datasets.load_dataset("parquet", data_files=files, streaming=True, split="train", cache_dir=cache)


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"b": row["a"] * 2}


def all_doubled(rows: dict[str, Any]) -> dict[str, Any]:
    return {"b": [number * 2 for number in rows["a"]]}


def kept(row: dict[str, Any]) -> bool:
    return bool(row["a"] % 3)


def few(row: dict[str, Any]) -> bool:
    return bool(row["a"] < 52)


def interleaved(stream: Any) -> Any:
    parts = [stream.shuffle(seed=1, buffer_size=6), stream.shuffle(seed=2, buffer_size=8)]
    return datasets.interleave_datasets(parts, probabilities=[0.3, 0.7], seed=1)


PIPELINES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda stream: stream,
    "map": lambda stream: stream.map(doubled),
    "filter": lambda stream: stream.filter(kept),
    "shuffle": lambda stream: stream.shuffle(seed=5, buffer_size=10),
    "one large buffer": lambda stream: stream.shuffle(seed=5, buffer_size=1000),
    "shuffle, map, filter, batch": lambda stream: (
        stream.shuffle(seed=5, buffer_size=10).map(doubled).filter(kept).batch(2)
    ),
    "map, shuffle": lambda stream: stream.map(doubled).shuffle(seed=3, buffer_size=7),
    "map in batches, shuffle": lambda stream: stream.map(all_doubled, batched=True, batch_size=5).shuffle(
        seed=3, buffer_size=7
    ),
    "select, shuffle": lambda stream: stream.select_columns(["a"]).shuffle(seed=3, buffer_size=7),
    "shuffle twice": lambda stream: stream.shuffle(seed=3, buffer_size=7).shuffle(seed=4, buffer_size=9),
    "take, shuffle": lambda stream: stream.take(60).shuffle(seed=3, buffer_size=7),
    "shuffle, skip": lambda stream: stream.shuffle(seed=3, buffer_size=7).skip(10),
    "torch": lambda stream: stream.shuffle(seed=5, buffer_size=10).with_format("torch"),
    "interleave": interleaved,
    "concatenate": lambda stream: datasets.concatenate_datasets([stream, stream.map(doubled)]).shuffle(
        seed=9, buffer_size=9
    ),
    "a buffer of one row": lambda stream: stream.shuffle(seed=1, buffer_size=1),
    "concatenate, take": lambda stream: datasets.concatenate_datasets([stream, stream.take(9)]),
    "repeat": lambda stream: stream.repeat(2).shuffle(seed=2, buffer_size=30),
}


def listed(samples: list[Any]) -> list[str]:
    return [json.dumps(sample, default=torch.Tensor.tolist) for sample in samples]


def loaders(stream: Any, place: Place, kind: Any = penstock.DataLoader, epoch: int = 0, **options: Any) -> list[Any]:
    """Return a loader for each rank."""
    workers, ranks = place
    made = []
    for rank in range(ranks):
        own = split_dataset_by_node(stream, rank=rank, world_size=ranks) if ranks > 1 else stream
        own.set_epoch(epoch)
        made.append(kind(own, BATCH, num_workers=workers, collate_fn=listed, **options))
    return made


def in_order(ranks: list[list[Any]]) -> list[Any]:
    """Return the batches of all ranks, step by step."""
    return [batch for step in zip_longest(*ranks) for batch in step if batch is not None]


def whole(stream: Any, place: Place, epoch: int = 0, kind: Any = penstock.DataLoader) -> list[Any]:
    return in_order([list(loader) for loader in loaders(stream, place, kind, epoch)])


def stopped(stream: Any, place: Place, steps: int, epoch: int = 0, **options: Any) -> tuple[list[Any], list[Any]]:
    """Return the first batches of all ranks, and the states of the ranks behind them."""
    made = loaders(stream, place, epoch=epoch, **options)
    passes = [iter(loader) for loader in made]
    first = in_order([list(islice(one, steps)) for one in passes])
    return first, [pickle.loads(pickle.dumps(loader.state_dict())) for loader in made]


def rest(stream: Any, place: Place, states: list[Any]) -> list[Any]:
    made = loaders(stream, place)
    for loader in made:
        loader.load_state_dict(states if len(states) > 1 else states[0])
    return in_order([list(loader) for loader in made])


def mismatches(stream: Any, before: Place, after: Place, stops: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (stop, epoch) where a pass that continues gives other batches than one that does not stop."""
    for epoch in (0, 1):
        wanted = whole(stream, before, epoch)
        assert len(wanted) > stops[-1]
        for stop in stops:
            first, states = stopped(stream, before, stop, epoch)
            if first + rest(stream, after, states) != wanted:
                yield stop, epoch


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_stopped_pass_continues_exactly(pipeline: str) -> None:
    """The batches of one that does not stop are torch's."""
    stream = PIPELINES[pipeline](arrow())
    wanted = whole(stream, (0, 1))
    assert wanted == whole(stream, (0, 1), kind=torch.utils.data.DataLoader)
    assert list(mismatches(stream, (0, 1), (0, 1), [0, 1, 3, len(wanted) // 2, len(wanted) - 1])) == []


@pytest.mark.parametrize("pipeline", ["plain", "shuffle", "map, shuffle", "torch", "concatenate"])
def test_parquet_files_continue_exactly(pipeline: str, tmp_path: Path) -> None:
    assert list(mismatches(PIPELINES[pipeline](parquet(tmp_path)), (0, 1), (0, 1), [1, 9, 17])) == []


#: Pairs of (workers, ranks).
PLACES = [
    *(((0, before), (0, after)) for before, after in [(1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (2, 3), (3, 2), (4, 4)]),
    *(((0, 1), (2, 1)), ((1, 1), (0, 1)), ((2, 1), (0, 1)), ((2, 1), (2, 1)), ((2, 1), (3, 1)), ((3, 1), (2, 1))),
    *(((1, 2), (1, 1)), ((2, 2), (1, 4)), ((2, 2), (1, 3))),
]


@pytest.mark.parametrize(("before", "after"), PLACES)
@pytest.mark.parametrize("pipeline", ["filter", "shuffle", "interleave", "concatenate, take"])
def test_other_workers_and_ranks_continue_the_same_streams(pipeline: str, before: Place, after: Place) -> None:
    if pipeline != "shuffle" and before[0] and before != after:
        pytest.skip("the ranks of other workers are those of the caller's thread")
    stream = PIPELINES[pipeline](arrow())
    wanted = whole(stream, before, kind=torch.utils.data.DataLoader)
    for stop in (0, 3):
        first, states = stopped(stream, before, stop)
        batches = first + rest(stream, after, states)
        assert sorted(batches) == sorted(wanted)
        # Ranks that have other numbers of rows left end at other steps.
        assert batches == wanted or (pipeline != "shuffle" and before[1] > 1)
    if before == after:  # each rank by its own state
        made = loaders(stream, after)
        for loader, state in zip(made, states, strict=True):
            loader.load_state_dict(state)
        assert first + in_order([list(loader) for loader in made]) == wanted


def test_stops_in_a_row() -> None:
    """Each on another number of workers and ranks."""
    stream = PIPELINES["shuffle"](arrow())
    wanted, states = stopped(stream, (0, 2), 3)
    for place in ((0, 3), (1, 2), (0, 4), (1, 3), (2, 1)):
        made = loaders(stream, place)
        for loader in made:
            loader.load_state_dict(states)
        passes = [iter(loader) for loader in made]
        wanted += in_order([list(islice(one, 1)) for one in passes])
        states = [json.loads(json.dumps(loader.state_dict())) for loader in made]
    wanted += rest(stream, (0, 1), states)
    assert wanted == whole(stream, (0, 2))


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_after_a_resumed_one_are_split_anew(persistent: bool) -> None:
    stream = PIPELINES["shuffle"](arrow())
    first, states = stopped(stream, (2, 1), 2, 1, prefetch_factor=4, persistent_workers=persistent)
    (later,) = loaders(stream, (1, 1), persistent_workers=persistent)
    later.load_state_dict(states[0])
    later.load_state_dict(later.state_dict())
    assert stream.epoch == 1  # as the state says
    assert first + list(later) == whole(stream, (2, 1), 1)
    stream.set_epoch(2)
    assert list(later) == whole(stream, (1, 1), 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_at_the_end_of_an_epoch_the_next_begins(workers: int) -> None:
    stream = PIPELINES["shuffle"](arrow())
    (begun,) = loaders(stream, (workers, 1))
    list(begun)
    (later,) = loaders(stream, (workers, 1))
    later.load_state_dict(begun.state_dict())
    stream.set_epoch(1)
    assert list(later) == whole(stream, (workers, 1), 1)


def test_set_epoch_begins_another_epoch() -> None:
    stream = PIPELINES["shuffle"](arrow())
    _, states = stopped(stream, (0, 1), 5)
    (later,) = loaders(stream, (0, 1))
    later.load_state_dict(states[0])
    stream.set_epoch(1)
    assert list(later) == whole(stream, (0, 1), 1)


def test_a_state_of_one_rank_continues_with_a_warning() -> None:
    stream = PIPELINES["shuffle"](arrow())
    first, states = stopped(stream, (0, 2), 3)
    with pytest.warns(UserWarning, match=r"of rank 1 of 2 only: 3 batches .* give load_state_dict\(\) the list"):
        assert first + rest(stream, (0, 1), states[1:]) == whole(stream, (0, 2))


def test_ranks_that_have_ended_give_no_row_again() -> None:
    stream = arrow(shards=2).filter(few)
    first, states = stopped(stream, (0, 2), 9)
    assert len(first) < 2 * 9
    assert first + rest(stream, (0, 1), states) == whole(stream, (0, 2))


@pytest.mark.parametrize(("shards", "place"), [(2, (3, 1)), (1, (2, 2)), (3, (2, 2)), (2, (1, 4))])
def test_no_row_comes_twice_where_shards_are_few(shards: int, place: Place) -> None:
    stream = PIPELINES["shuffle"](arrow(shards=shards))
    batches = whole(stream, place)
    assert sorted(json.loads(row)["a"] for batch in batches for row in batch) == list(range(ROWS))
    first, states = stopped(stream, place, 2)
    assert sorted(first + rest(stream, (0, 1), states)) == sorted(batches)


def test_batches_that_come_out_of_order_are_dealt_in_order() -> None:
    stream = PIPELINES["plain"](arrow())
    first, states = stopped(stream, (0, 2), 2)
    made = loaders(stream, (2, 3), in_order=False)
    for loader in made:
        loader.load_state_dict(states)
    assert sorted(first + in_order([list(loader) for loader in made])) == sorted(whole(stream, (0, 2)))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_their_way_to_a_device(workers: int) -> None:
    stream = PIPELINES["shuffle"](arrow())
    wanted = whole(stream, (workers, 1))
    first, states = stopped(stream, (workers, 1), 5, device="cpu")
    assert first + rest(stream, (0, 1), states) == wanted


def test_a_batch_that_cannot_be_sent_loses_its_own_rows_only() -> None:
    def unsound(samples: list[Any]) -> Any:
        return (lambda: None) if samples[0]["a"] in bad else listed(samples)

    taken: list[Any] = []
    stream = PIPELINES["shuffle"](arrow())
    wanted = whole(stream, (1, 1))
    bad = {json.loads(batch[0])["a"] for batch in wanted[2:6]}
    (begun,) = loaders(stream, (1, 1))
    begun.collate_fn = unsound
    batches = iter(begun)
    for number in range(8):
        if 2 <= number < 6:
            with pytest.raises(Exception, match="pickle"):
                next(batches)
        else:
            taken.append(next(batches))
    assert taken == wanted[:2] + wanted[6:8]
    assert rest(stream, (0, 1), [begun.state_dict()]) == wanted[8:]


def test_what_the_program_does_to_a_row_does_not_reach_the_state() -> None:
    def emptied(samples: list[Any]) -> list[str]:
        found = listed(samples)
        for sample in samples:
            sample.clear()
        return found

    stream = PIPELINES["map, shuffle"](arrow())
    (begun,) = loaders(stream, (0, 1))
    begun.collate_fn = emptied
    first = list(islice(begun, 5))
    assert first + rest(stream, (0, 1), [begun.state_dict()]) == whole(stream, (0, 1))


def test_states_hold_positions_of_known_rows() -> None:
    """JSON can hold them; else the state has the rows."""
    _, states = stopped(arrow(10_000).shuffle(seed=1, buffer_size=2000), (0, 1), 1000)
    text = json.dumps(states[0])
    assert "positions" in text
    assert "row 1" not in text
    assert len(text) < 16_000
    _, states = stopped(arrow().map(doubled).shuffle(seed=1, buffer_size=20), (0, 1), 10)
    assert len(states[0]["dataset"][0]["states"][0]["state"]["examples_iterable"]["kept"]["examples"]) == 10


def test_a_worker_sends_the_rows_of_a_buffer_once() -> None:
    stream = arrow().map(doubled).shuffle(seed=1, buffer_size=40)
    sent = hugging_face_streams.HuggingFaceStream(stream, hugging_face_streams.Place(0, 0, 0, 1), brief=True)
    sizes, received = [], None
    for _ in islice(sent, 20, 60):  # the buffer was refilled before
        message = pickle.dumps(copy.deepcopy(sent.state_dict()))
        sizes.append(len(message))
        received = pickle.loads(message)  # it finds the rows of the message before it
        assert str(with_plain_rows(received)).count("'kept': {'examples': [{") == 1
    assert 0 < sum(size > min(sizes) + 300 for size in sizes) <= 4


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: arrow(shards=4).shuffle(seed=1, buffer_size=5), "it had 8 shards and has 4"),
        (lambda: arrow(rows=97).shuffle(seed=1, buffer_size=5), "the sizes of its shards have changed"),
        (arrow, "it has other steps"),
        (lambda: arrow().shuffle(seed=2, buffer_size=5), "another seed"),
        (lambda: arrow().shuffle(seed=1, buffer_size=6), "buffer_size of .* was 5 and is 6"),
    ],
)
def test_another_dataset_is_refused(other: Callable[[], Any], said: str) -> None:
    _, states = stopped(arrow().shuffle(seed=1, buffer_size=5), (0, 1), 3)
    with pytest.raises(penstock.DatasetChanged, match=said):
        rest(other(), (0, 1), states)


def test_changed_files_are_refused(tmp_path: Path) -> None:
    stream = parquet(tmp_path)
    _, states = stopped(stream.shuffle(seed=1, buffer_size=30), (0, 1), 12)
    datasets.Dataset.from_dict(columns(0, 3)).to_parquet(str(tmp_path / "3.parquet"))
    with pytest.raises(penstock.DatasetChanged, match="sizes of its shards"):
        rest(stream.shuffle(seed=1, buffer_size=30), (0, 1), states)
    (later,) = loaders(stream.shuffle(seed=1, buffer_size=30), (0, 1))
    states[0]["dataset"][0]["pipeline"] = stream_split.described(later.dataset)
    later.load_state_dict(states[0])
    with pytest.raises(penstock.DatasetChanged, match=r"3\.parquet has 3 rows, and a shuffle buffer .* its row \d+"):
        list(later)


@pytest.mark.parametrize("damage", [{"held": None}, {"next": 7}, {"states": []}, {"counts": [1, 2]}])
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    stream = arrow()
    _, states = stopped(stream, (0, 1), 3)
    states[0]["dataset"] = ({**states[0]["dataset"][0], **damage},)
    with pytest.raises(penstock.InvalidOption, match="state"):
        rest(stream, (0, 1), states)


def test_a_state_of_a_stream_does_not_fit_other_datasets() -> None:
    _, states = stopped(arrow(), (0, 1), 3)
    placed = penstock.DataLoader(Placed(9))
    with pytest.raises(penstock.InvalidOption, match="IterableDataset cannot continue with a Placed"):
        placed.load_state_dict(states[0])
    next(iter(placed))
    with pytest.raises(penstock.InvalidOption, match="not of a Hugging Face IterableDataset"):
        rest(arrow(), (0, 1), [placed.state_dict()])


def test_states_of_other_runs_are_not_merged() -> None:
    stream = arrow()
    _, two = stopped(stream, (0, 2), 1)
    _, three = stopped(stream, (0, 3), 1)
    with pytest.raises(penstock.InvalidOption, match="runs with other ranks"):
        rest(stream, (0, 1), [two[0], three[1]])


def test_a_buffer_that_is_not_known_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face_streams, "_KNOWN_BUFFERS", set())
    hugging_face_streams._is_known_buffer.cache_clear()
    stream_split._warn_of_buffers.cache_clear()
    try:
        (loader,) = loaders(PIPELINES["shuffle"](arrow()), (0, 1))
        assert len(list(islice(loader, 3))) == 3
        with pytest.warns(UserWarning, match="the shuffle buffer of this version of datasets is not known"):
            loader.state_dict()
    finally:
        hugging_face_streams._is_known_buffer.cache_clear()


def test_the_dataset_says_where_it_is_itself() -> None:
    """Without workers and shuffle buffers its own state_dict() follows, as with torch's loader."""
    stream = arrow()
    (loader,) = loaders(stream, (0, 1))
    first = list(islice(loader, 3))
    (later,) = loaders(again := arrow(), (0, 1), kind=torch.utils.data.DataLoader)
    again.load_state_dict(stream.state_dict())
    assert first + list(later) == whole(arrow(), (0, 1))


_CONTINUED = """
import json, pathlib, sys
from tests.state import test_hugging_face_streams as streams
state = json.loads(pathlib.Path(sys.argv[1]).read_text())
print(json.dumps(streams.rest(streams.PIPELINES["shuffle"](streams.arrow()), (0, 1), [state])))
"""


def test_a_fresh_process_continues(tmp_path: Path) -> None:
    stream = PIPELINES["shuffle"](arrow())
    first, states = stopped(stream, (2, 1), 5)
    (path := tmp_path / "state.json").write_text(json.dumps(states[0]))
    ended = run(_CONTINUED, path)
    assert ended.returncode == 0, ended.stderr
    assert first + json.loads(ended.stdout) == whole(stream, (2, 1))
