"""Orders that a sampler of torch's or the user's draws: a resumed pass draws the same one again, in any epoch."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import penstock
from tests.values import flat, loaded, resumed, stopped, stored, taken

SIZE = 29
PYTHON: Any = range(SIZE)
NATIVE = TensorDataset(torch.arange(SIZE))
Options = dict[str, Any]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


class Own(Sampler[int]):
    """A sampler of the user's with a generator, which it draws from in iter() or with its first index."""

    def __init__(self, *, eager: bool) -> None:
        self.eager, self.generator = eager, generator()

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return iter(self._order()) if self.eager else (index for _ in range(1) for index in self._order())

    def _order(self) -> list[int]:
        return torch.randperm(SIZE, generator=self.generator).tolist()


class Unknown(Own):
    """A sampler that draws from what no state of a loader's holds."""

    def _order(self) -> list[int]:
        return random.sample(range(SIZE), SIZE)


def sampled(sampler: Any) -> Options:
    return {"sampler": sampler, "batch_size": 4}


def shared(make: Callable[[torch.Generator], Options]) -> Options:
    """Return options in which the loader and its sampler draw from one generator."""
    one = generator()
    return {**make(one), "generator": one}


ONES = [1.0] * SIZE
KINDS: dict[str, Callable[[], Options]] = {
    "shuffle": lambda: shared(lambda one: {"shuffle": True, "batch_size": 4}),
    "no batches": lambda: shared(lambda one: {"shuffle": True, "batch_size": None}),
    "random": lambda: sampled(RandomSampler(PYTHON, generator=generator())),
    "with replacement": lambda: sampled(RandomSampler(PYTHON, True, generator=generator())),
    "global": lambda: sampled(RandomSampler(PYTHON)),
    "weighted": lambda: sampled(WeightedRandomSampler(ONES, SIZE, generator=generator())),
    "weighted, global": lambda: sampled(WeightedRandomSampler(ONES, SIZE, False)),
    "subset": lambda: shared(lambda one: sampled(SubsetRandomSampler(range(SIZE), one))),
    "batches": lambda: shared(
        lambda one: {"batch_sampler": BatchSampler(RandomSampler(PYTHON, generator=one), 4, False)}
    ),
    "own": lambda: sampled(Own(eager=False)),
    "own, eager": lambda: sampled(Own(eager=True)),
    "penstock.Weighted": lambda: sampled(penstock.Weighted(ONES, generator=generator())),
    "penstock.Buckets": lambda: {"batch_sampler": penstock.Buckets([3] * SIZE, batch_size=4, generator=generator())},
    "penstock.Mix": lambda: shared(
        lambda one: {"dataset": penstock.Mix({"one": (NATIVE, 1)}), "shuffle": True, "batch_size": 4}
    ),
}


def loader_of(kind: str, dataset: Any = PYTHON, **options: Any) -> Any:
    return penstock.DataLoader(**{"dataset": dataset, **KINDS[kind](), **options})


WORKERS: dict[str, Options] = {
    "thread": {"num_workers": 2, "worker_method": "thread"},
    "native": {"dataset": NATIVE},
    "native, persistent": {"dataset": NATIVE, "num_workers": 2, "persistent_workers": True},
    "process": {"num_workers": 1},
    "persistent": {"num_workers": 1, "persistent_workers": True},
}


def run(loader: Any, epochs: int) -> list[list[int]]:
    return [flat(loader) for _ in range(epochs)]


def check(make: Callable[[], Any], stop: int | str, later: bool = True) -> None:
    """Check that a loader which goes on in the third epoch gives what one gives that did not stop."""
    torch.manual_seed(1)
    begun = make()
    run(begun, 2)
    if stop == "between epochs":
        state = stored(begun.state_dict())
        wanted = run(begun, 2)
    else:
        _, state, batches = stopped(begun, int(stop))
        wanted = [flat(batches), flat(begun)]
    torch.manual_seed(99)  # another process
    again = loaded(make(), state)
    found = run(again, 2)
    assert found[0] == wanted[0]
    assert found[1] == wanted[1] or not later, "the epoch after it"


@pytest.mark.parametrize("stop", [0, 3, "between epochs"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_a_later_epoch_goes_on(kind: str, stop: int | str) -> None:
    # Who draws from torch's global generator must restore it for the epochs that come later.
    check(lambda: loader_of(kind), stop, later="global" not in kind)


@pytest.mark.parametrize("kind", ["shuffle", "batches", "own, eager", "penstock.Weighted"])
@pytest.mark.parametrize("workers", WORKERS)
def test_whoever_makes_the_batches(workers: str, kind: str) -> None:
    for stop in (3, "between epochs") if kind == "shuffle" else (3,):
        check(lambda: loader_of(kind, **WORKERS[workers]), stop)


def test_a_distributed_sampler_goes_on_in_its_epoch() -> None:
    samplers: list[Any] = [DistributedSampler(PYTHON, 1, 0) for _ in range(2)]
    begun, again = (penstock.DataLoader(PYTHON, 4, sampler=one, num_workers=0) for one in samplers)
    samplers[0].set_epoch(2)
    _, state, batches = stopped(begun, 3)
    rest = iter(loaded(again, state))  # before set_epoch, as Lightning calls it
    assert flat(rest) == flat(batches)


def test_two_loaders_with_one_generator() -> None:
    def make() -> tuple[Any, ...]:
        one = generator()
        return tuple(penstock.DataLoader(NATIVE, 4, shuffle=True, generator=one) for _ in range(2))

    train, valid = make()
    for _ in range(2):
        run(train, 1), run(valid, 1)
    _, state, batches = stopped(train, 3)
    of_valid = stored(valid.state_dict())
    wanted = [flat(batches), flat(valid), flat(train), flat(valid)]
    train, valid = make()
    loaded(train, state)
    assert [flat(train), flat(valid), flat(train), flat(valid)] == wanted
    train, valid = make()
    loaded(train, state), loaded(valid, of_valid)  # what it would have drawn then
    assert flat(train) == wanted[0]
    assert [sorted(epoch) for epoch in (flat(valid), flat(train), flat(valid))] == [list(range(SIZE))] * 3


def test_a_generator_that_the_program_uses_between_epochs() -> None:
    def begin() -> tuple[Any, Callable[[], list[int]]]:
        one = generator()
        loader: Any = penstock.DataLoader(NATIVE, 4, shuffle=True, generator=one)

        def epoch() -> list[int]:
            torch.rand(5, generator=one)
            return flat(loader)

        return loader, epoch

    begun, epoch = begin()
    epoch()
    _, state, batches = stopped(begun, 3)
    wanted = [flat(batches), epoch(), epoch()]
    again, epoch = begin()
    again.load_state_dict(state)
    assert [flat(again), epoch(), epoch()] == wanted


def test_stopped_twice_and_with_another_batch_size() -> None:
    def make(size: int) -> Any:
        return penstock.DataLoader(PYTHON, size, shuffle=True, generator=generator())

    whole = run(make(4), 2)[1]
    begun = make(4)
    flat(begun)
    got = flat(taken(iter(begun), 2))
    for size in (4, 5, 3):
        again = loaded(make(size), stored(begun.state_dict()))
        begun, batches = again, iter(again)
        got += flat(taken(batches, 1))
    assert got + flat(batches) == whole


@pytest.mark.parametrize("kind", ["global", "weighted, global"])
def test_the_global_generator_is_left_where_it_is(kind: str) -> None:
    begun, again = (loader_of(kind, num_workers=0) for _ in range(2))
    resumed(begun, again, 3)
    torch.manual_seed(8)
    batches = iter(again)
    before = torch.get_rng_state()
    next(batches)
    assert torch.equal(torch.get_rng_state(), before)


def test_another_order_is_warned_of() -> None:
    begun, again = (penstock.DataLoader(PYTHON, 4, sampler=Unknown(eager=False)) for _ in range(2))
    resumed(begun, again, 3)
    with pytest.warns(UserWarning, match="Unknown gives another order than it gave before the state was taken: some"):
        flat(again)
    assert sorted(flat(again)) == list(range(SIZE)), "the next epoch is whole, and nothing is warned of"
    again.load_state_dict(stored(begun.state_dict()))
    again.set_epoch(1)
    assert sorted(flat(again)) == list(range(SIZE)), "another epoch is whole too"


def test_states_without_a_generator_stay_small() -> None:
    orders = {"shuffle": True}, {"shuffle": True, "seed": 5}, {"sampler": list(range(SIZE))}
    plain: list[Any] = [penstock.DataLoader(NATIVE, 4, **order) for order in orders]
    for loader, most in (*((one, 1000) for one in plain), (loader_of("shuffle", NATIVE), 6000)):
        next(iter(loader))
        assert len(str(loader.state_dict())) < most


@pytest.mark.parametrize(
    "part", [{"generators": ["no state"]}, {"generators": [7]}, {"epoch": -1}, {"first": 3}, 5], ids=str
)
def test_a_state_that_holds_something_else_is_refused(part: Any) -> None:
    begun = loader_of("shuffle")
    _, state, _ = stopped(begun, 1)
    state["dataset"] = ({**state["dataset"][0], "origin": part},)
    with pytest.raises(penstock.InvalidOption, match="a state whose 'dataset' is not what state_dict"):
        begun.load_state_dict(state)


def test_a_loader_is_copied_behind_a_pass() -> None:
    loader = loader_of("shuffle", NATIVE)
    flat(loader)
    copies = [pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)]
    epoch = flat(loader)
    assert [flat(one) for one in copies] == [epoch, epoch], "with a generator of its own"
