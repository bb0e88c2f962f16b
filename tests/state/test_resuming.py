"""Going on where a state says: batches out of order, datasets and samplers that say where they are, generators."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader as TorchDataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
)

import penstock
from tests.commands import command
from tests.data import Made, Stream, rows
from tests.values import flat, listed, loaded, resumed, stopped, stored, taken

SIZE = 24


class Gated(Made):
    """Its samples wait until their gate is open: batches come in the order in which their gates are opened."""

    def __init__(self, shut: set[int]) -> None:
        super().__init__(self.wait, SIZE)
        self.shut, self.gate = shut, multiprocessing.Event()

    def wait(self, index: int) -> Any:
        assert index not in self.shut or self.gate.wait(60)
        return torch.tensor(index)


NUMBERS: Any = range(SIZE)


def begun_out_of_order(**options: Any) -> tuple[Any, list[int], dict[str, Any], Any]:
    """Return a loader whose first batch is missing, what it gave, its state then, and the pass.

    Threads may work one at a time, and would wait for the gate.
    """
    torch.manual_seed(5)
    order: list[int] = []
    plain = {name: value for name, value in options.items() if name in ("seed", "shuffle", "sampler")}
    if "seed" in options or "shuffle" not in options:
        order = flat(numbers(2, num_workers=0, **plain))
    dataset = Gated(set(order[:2]))
    loader: Any = penstock.DataLoader(
        dataset, 2, num_workers=2, worker_method="process", in_order=False, prefetch_factor=4, timeout=100, **options
    )
    if not order:  # the shuffle that was drawn
        dataset.gate.set()
    got, state, batches = stopped(loader, 4)
    return loader, flat(got), state, batches


def numbers(size: int | None, **options: Any) -> Any:
    return penstock.DataLoader(NUMBERS, size, **options)


def refused(words: str) -> Any:
    return pytest.raises(penstock.InvalidOption, match=words)


@pytest.mark.parametrize(
    "order", [{}, {"shuffle": True}, {"seed": 7, "shuffle": True}, {"sampler": list(range(SIZE))[::-1]}], ids=str
)
def test_batches_that_came_out_of_order_come_once(order: dict[str, Any]) -> None:
    loader, got, state, batches = begun_out_of_order(**order)
    if "shuffle" not in order or "seed" in order:
        assert state["position"] == 0, "the first batch is missing"
        assert state["dataset"][0]["ahead"], "and others are not"
    loader.dataset.gate.set()
    assert sorted(got + flat(batches)) == list(range(SIZE)), "the pass itself"
    for workers, in_order in ((2, False), (0, True)):
        again = loaded(numbers(2, num_workers=workers, worker_method="thread", in_order=in_order, **order), state)
        assert sorted(got + flat(again)) == list(range(SIZE)), (workers, in_order)
        assert sorted(flat(again)) == list(range(SIZE)), "the next epoch is whole"
    for size in (5, None) if state["dataset"] is not None and "ahead" in state["dataset"][0] else ():
        with refused("with in_order=False and batches of 2 continues only there"):
            loaded(numbers(size, **order), state)


@pytest.mark.parametrize("seed", [None, 3])
def test_stopping_again_before_the_gap_is_closed(seed: int | None) -> None:
    loader, got, state, _ = begun_out_of_order(seed=seed)
    loader.dataset.gate.set()
    missing = [number for number in range(SIZE) if number not in got]
    assert flat(loaded(numbers(2, num_workers=0, seed=seed), state)) == missing, "first, and in order"
    for _ in range(3):
        again = loaded(numbers(2, num_workers=0, seed=seed), state)
        assert len(again) == SIZE // 2
        more, state, rest = stopped(again, 1)
        got += flat(more)
    assert sorted(got + flat(rest)) == list(range(SIZE))


def test_a_gap_of_one_rank_is_that_ranks_own() -> None:
    loader, got, state, _ = begun_out_of_order(seed=7, shuffle=True, shard=(0, 1))
    loader.dataset.gate.set()
    assert sorted(got + flat(loaded(numbers(2, seed=7, shuffle=True), state))) == list(range(SIZE))
    with refused("continues only there, not on rank 0 of 2"):
        loaded(numbers(2, seed=7, shuffle=True, shard=(0, 2)), state)
    mine = numbers(2, num_workers=2, worker_method="thread", in_order=False, seed=7, shard=(0, 2))
    first, state, _ = stopped(mine, 1)
    for size, shard in ((2, (1, 2)), (2, (0, 3)), (3, (0, 2))):
        with refused("rank 0 of 2 with in_order=False.*continues only there"):
            loaded(numbers(size, seed=7, shard=shard), state)
    again = loaded(numbers(2, seed=7, shard=(0, 2)), state)
    assert len(flat(first)) + len(flat(again)) == SIZE // 2


def test_the_ledger_writes_what_was_handed_out(tmp_path: Path) -> None:
    ledgers = [str(tmp_path / name) for name in ("in order", "out of order", "went on")]
    assert flat(numbers(2, seed=1, num_workers=0, ledger=ledgers[0])) == list(range(SIZE))
    loader, got, state, batches = begun_out_of_order(seed=1, ledger=ledgers[1])
    loader.dataset.gate.set()
    assert len(got + flat(batches)) == SIZE
    told = command("ledger", "diff", ledgers[0], ledgers[1], code=1)
    assert told.startswith("diverged at epoch 0 step 0, after 0 steps"), "the first step was given another batch"
    # What was given at each step, whichever way it came to that, is what two ledgers agree on.
    same = loaded(numbers(2, seed=1, num_workers=0, sampler=None, ledger=ledgers[2]), state)
    assert flat(same) == [number for number in range(SIZE) if number not in got]
    _, *steps = command("ledger", "show", ledgers[2], "--epoch", "0").splitlines()
    numbers_of_steps = [int(line.split()[0]) for line in steps]
    assert numbers_of_steps == list(range(4, SIZE // 2)), "steps are counted on from those that were given"


def test_in_order_native_passes_keep_their_small_states() -> None:
    _, state, _ = stopped(penstock.DataLoader(rows(SIZE), 2, in_order=False, num_workers=2), 1)
    assert (state["position"], state["format"]) == (2, 1)


class Rewinding(IterableDataset[Any]):
    """Its own iterator; iter() begins anew, and load_state_dict() needs what iter() sets."""

    read = 0

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        self.at = {"next": 0 if info is None else info.id}
        self.step = 1 if info is None else info.num_workers
        return self

    def __next__(self) -> int:
        if self.at["next"] >= SIZE:
            raise StopIteration
        self.at["next"] += self.step
        self.read += 1
        return self.at["next"] - self.step

    def state_dict(self) -> dict[str, Any]:
        return self.at  # changes as it goes on: what is kept must be a copy

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at["next"] = state["next"]


class Parts(IterableDataset[Any]):
    """Says nothing itself; its iterators do."""

    def __iter__(self) -> Any:
        return iter(Rewinding())


class Counting(Made):
    """Map-style: each sample holds how many this copy of the dataset has read before."""

    def __init__(self) -> None:
        super().__init__(self.count, SIZE)
        self.read = 0

    def count(self, index: int) -> Any:
        self.read += 1
        return index, self.read - 1

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]


class AsksMore(Rewinding):
    """As MosaicML's StreamingDataset: its state_dict() needs what its own loader counts."""

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:  # type: ignore[override]
        raise AssertionError("this loader does not know these arguments")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_dict_with_arguments_is_not_called(workers: int) -> None:
    assert flat(penstock.DataLoader(AsksMore(), batch_size=5, num_workers=workers)) == list(range(SIZE))


def stop_and_go(make: Any, stop: int) -> tuple[list[Any], list[Any], Any]:
    """Return what is left of a pass behind `stop` batches, what a new loader gives that goes on there, and that one."""
    begun = make()
    _, state, batches = stopped(begun, stop)
    again = loaded(make(), state)
    assert stored(again.state_dict()) == state
    rest = listed(batches)
    if isinstance(begun.dataset, IterableDataset):
        assert listed(loaded(begun, state)) == rest, "the same loader, with whatever workers it has"
    return rest, listed(again), again


@pytest.mark.filterwarnings("ignore:This DataLoader will create [34] worker processes")
@pytest.mark.parametrize("made", [Rewinding, Parts, Counting])
@pytest.mark.parametrize(
    ("workers", "options"),
    [
        *((workers, {}) for workers in (0, 1, 2, 3)),
        *product((0, 2), ({"drop_last": True}, {"batch_size": None}, {"device": penstock.Feed("cpu")})),
        *product((0, 1, 2), ({"worker_method": "process", "persistent_workers": True},)),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else " ".join(value) or "plain",
)
def test_a_dataset_goes_on_where_it_says(workers: int, options: dict[str, Any], made: Any) -> None:
    def make(count: int = workers) -> Any:
        own = {name: value for name, value in options.items() if count or name != "persistent_workers"}
        return penstock.DataLoader(made(), **{"batch_size": 5, "num_workers": count, **own})

    steps = len(listed(make()))
    for stop in sorted({0, 1, min(4, steps), steps}):
        rest, again, loader = stop_and_go(make, stop)
        assert again == rest and len(rest) == steps - stop
        if made is Rewinding and not workers and not options:
            assert loader.dataset.read == SIZE - 5 * stop or stop == steps, "nothing is read again"
        if made is not Counting:
            assert len(listed(loader)) == steps, "the next epoch begins at the start"
    if made is Rewinding and workers == 2:
        _, state, _ = stopped(make(), 1)
        with refused("2 workers have read.*num_workers=3"):
            make(3).load_state_dict(state)


def test_states_of_streams_that_are_none() -> None:
    begun: Any = penstock.DataLoader(Rewinding(), 3, num_workers=0)
    _, state, _ = stopped(begun, 1)
    for wrong in (5, {}, {"states": [None]}, {"states": [None], "next": 1}, {"states": 3, "next": 0}):
        with refused("'dataset' is not what"):
            begun.load_state_dict({**state, "dataset": (wrong,)})


class Halting(Rewinding):
    """Fails once, and goes on."""

    def __next__(self) -> int:
        number = super().__next__()
        if number == 4:
            raise ValueError("the fifth")
        return number


@pytest.mark.parametrize("feed", [None, penstock.Feed("cpu")], ids=["host", "fed"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_goes_on_behind_its_error(workers: int, feed: Any) -> None:
    begun, again = (penstock.DataLoader(Halting(), None, num_workers=workers, device=feed) for _ in range(2))
    batches: Any = iter(begun)
    assert flat(taken(batches, 4)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="the fifth"):
        next(batches)
    assert flat(taken(batches, 3)) == [5, 6, 7]
    assert flat(loaded(again, stored(begun.state_dict()))) == list(range(8, SIZE))


@pytest.mark.filterwarnings("ignore:each of the 2 worker processes goes through all:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_other_iterable_datasets_are_gone_through_again(workers: int) -> None:
    begun, again = (penstock.DataLoader(Stream(20, shared=False), 3, num_workers=workers) for _ in range(2))
    _, state, batches = stopped(begun, 3)
    assert not any(state["dataset"][0]["states"]), "nobody says where it is"
    with pytest.warns(UserWarning, match="Stream has no state_dict.* 3 batches will be read and dropped"):
        again.load_state_dict(state)
    assert listed(again) == listed(batches)


@pytest.mark.parametrize("made", [Rewinding, Parts])
def test_an_iterator_goes_on_in_its_thread(made: Any) -> None:
    workers = 1 if made is Rewinding else 2
    rest, again, _ = stop_and_go(lambda: penstock.DataLoader(made(), 3, num_workers=workers, worker_method="thread"), 3)
    assert again == rest


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 2}], ids=str
)
def test_what_a_dataset_says_at_the_end_of_an_epoch_is_kept(options: dict[str, Any]) -> None:
    begun, again = (penstock.DataLoader(Counting(), 3, **options) for _ in range(2))
    first = listed(begun)
    loaded(again, stored(begun.state_dict()))
    assert listed(again) == (second := listed(begun))
    assert (second == first) == (options == {"num_workers": 2}), "workers that end with their pass begin anew"


def test_states_of_other_numbers_of_workers() -> None:
    _, state, _ = stopped(penstock.DataLoader(Counting(), 3, num_workers=0), 1)
    with refused(r"1 worker has read cannot .*=2: give num_workers=1 or 0$"):
        penstock.DataLoader(Counting(), 3, num_workers=2).load_state_dict(state)
    threads: Any = penstock.DataLoader(Counting(), 3, num_workers=2, worker_method="thread")
    with pytest.warns(UserWarning, match=r"worker threads share it. The dataset continues unchanged"):
        threads.load_state_dict(state)
    next(iter(threads))
    with pytest.warns(UserWarning, match=r"Counting has a state_dict\(\), and worker threads share the dataset"):
        threads.state_dict()


class Stated(Sampler[int]):
    """A sampler with a state: each epoch is another order."""

    def __init__(self) -> None:
        self.epoch = self.at = self.resume = 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.resume = self.resume, 0
        while self.at < SIZE - 1:
            self.at += 1
            yield (self.at - 1 + self.epoch) % SIZE
        self.at = 0
        self.epoch += 1

    def __len__(self) -> int:
        return SIZE - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resume, self.epoch = state["at"], state["epoch"]


class Iterating(Sampler[int]):
    """A sampler whose iterators have a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(Rewinding())

    def __len__(self) -> int:
        return SIZE


@pytest.mark.parametrize("kind", [Stated, Iterating])
@pytest.mark.parametrize("size", [1, 4, 5, None])
@pytest.mark.parametrize(
    "own", [{"num_workers": 0}, {"num_workers": 2, "worker_method": "thread"}], ids=["0", "thread"]
)
def test_a_sampler_goes_on_where_it_says(own: dict[str, Any], size: int | None, kind: Any) -> None:
    def make(batch_size: int | None = size) -> Any:
        return numbers(batch_size, sampler=kind(), **own)

    begun = make()
    epochs = [flat(begun) for _ in range(2)]
    for stop in (0, 1, 3, len(make())):
        got, state, _ = stopped(make(), stop)
        for other in (size, 3):
            again = loaded(make(other), state)
            assert [flat(got) + flat(again), flat(again)] == epochs, (stop, other)
    begun = make()
    flat(begun)
    assert flat(loaded(make(), stored(begun.state_dict()))) == epochs[1], "from the end of an epoch"


def test_a_samplers_state_needs_a_sampler_that_takes_it() -> None:
    _, state, _ = stopped(numbers(4, sampler=Stated()), 1)
    with refused("list cannot load: it has no load_state_dict"):
        flat(loaded(numbers(4, sampler=list(range(SIZE))), state))


@pytest.mark.parametrize("before", [1, 2, None])
@pytest.mark.parametrize("after", [1, 3, None])
def test_another_batch_size_goes_on_by_samples(before: int | None, after: int | None) -> None:
    order = list(range(SIZE))[::-1]
    got, state, _ = stopped(numbers(before, sampler=order), 3)
    assert flat(got) + flat(loaded(numbers(after, sampler=order), state)) == order


def test_without_batches_the_shuffle_that_was_drawn_goes_on() -> None:
    for options in ({}, {"worker_method": "thread"}):
        begun, again = (numbers(None, shuffle=True, **options) for _ in range(2))
        got, _ = resumed(begun, again, 5)
        assert sorted(flat(got) + flat(again)) == list(range(SIZE))
    drawn = []
    for kind in (penstock.DataLoader, TorchDataLoader):
        torch.manual_seed(3)
        drawn.append(flat(kind(NUMBERS, None, shuffle=True)))
    assert drawn[0] == drawn[1]


class Anew:
    """Gives batches, itself the iterator, and remembers what it gave since iter(), as Lightning's in prediction."""

    def __init__(self) -> None:
        self.batches = BatchSampler(SequentialSampler(range(13)), 4, False)
        self.given: list[Any] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        self.given, self.left = [], iter(self.batches)
        return self

    def __next__(self) -> list[int]:
        self.given.append(next(self.left))
        return self.given[-1]


class StatedAnew(Anew):
    """The same with a state."""

    def state_dict(self) -> dict[str, Any]:
        return {"given": len(self.given)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skip = state["given"]


@pytest.mark.parametrize("kind", [Anew, StatedAnew])
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"worker_method": "thread", "num_workers": 1}], ids=str)
@pytest.mark.parametrize("dataset", [Made(torch.tensor, 13), rows(13)], ids=["python", "native"])
def test_each_batch_comes_once(dataset: Any, options: dict[str, Any], seed: Any, kind: type[Anew]) -> None:
    sampler = kind()
    loader: Any = penstock.DataLoader(dataset, batch_sampler=sampler, seed=seed, **options)
    wanted = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]
    for _ in range(2):
        got = [(batch[0] if isinstance(batch, list) else batch).tolist() for batch in loader]
        assert got == sampler.given == wanted  # as Lightning asks which samples its predictions are of


def test_a_distributed_sampler_of_other_ranks_is_refused() -> None:
    def make(rank: int, world: int) -> Any:
        return numbers(2, sampler=DistributedSampler(NUMBERS, world, rank, shuffle=False))

    _, state, _ = stopped(make(0, 2), 1)
    assert flat(loaded(make(1, 2), state)) == list(range(1, SIZE, 2))[2:], "both ranks have taken as many steps"
    with refused(r"DistributedSampler of 2 ranks cannot continue with 3: give shard="):
        make(0, 3).load_state_dict(state)


def test_a_state_between_passes_foretells_what_is_drawn() -> None:
    begun, again = (penstock.DataLoader(rows(SIZE), 5, shuffle=True) for _ in range(2))
    for _ in range(2):
        before = torch.get_rng_state()
        state = stored(begun.state_dict())
        assert torch.equal(before, torch.get_rng_state()), "nothing is drawn by asking"
        whole, behind = flat(begun), torch.get_rng_state()
        torch.set_rng_state(before)
        assert flat(loaded(again, state)) == whole
        assert torch.equal(behind, torch.get_rng_state()), "the generator is where it would have been"
    torch.manual_seed(99)
    again.load_state_dict(state)
    assert flat(again) == whole, "whatever the generator holds then"


def test_a_loader_that_was_copied_goes_on_too() -> None:
    begun: Any = penstock.DataLoader(Counting(), 3, num_workers=0)
    _, state, batches = stopped(begun, 1)
    copied = loaded(pickle.loads(pickle.dumps(begun)), state)
    assert stored(copied.state_dict()) == stored(state)
    assert listed(copied) == listed(batches)
    begun.load_state_dict(state)
    begun.load_state_dict(state)
    begun.dataset.read = 50
    assert listed(begun)[0] == [[3, 4, 5], [3, 4, 5]], "loaded twice, and told when the pass begins"


def test_torchdatas_argument_is_taken_and_checked() -> None:
    for value in (1, 0, 15, None):
        assert numbers(1, snapshot_every_n_steps=value).snapshot_every_n_steps == value
    for wrong in (-1, 1.5, "2", True):
        with refused("snapshot_every_n_steps=.*number of steps"):
            numbers(1, snapshot_every_n_steps=wrong)


def test_a_batch_that_was_waited_for_twice_counts_once() -> None:
    dataset = Gated({0, 1})
    begun: Any = penstock.DataLoader(dataset, 2, num_workers=2, worker_method="thread", timeout=0.2)
    batches = iter(begun)
    for _ in range(2):
        with pytest.raises(penstock.WorkerStuck):
            next(batches)
    dataset.gate.set()
    got = None
    while got is None:
        with contextlib.suppress(penstock.WorkerStuck):
            got = next(batches).tolist()
    assert got == [0, 1]
    assert begun.state_dict()["position"] == 2
