"""Stopping and going on: ranks, state, epochs, replay. Whatever the cut, each sample of the epoch once."""

from __future__ import annotations

import pickle
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader, DistributedSampler, Subset, TensorDataset

import penstock
from penstock.cli import main
from tests.data import Drawing, Made, Stream
from tests.same import assert_same
from tests.values import flat, loaded, resumed, stopped

SIZE = 101
NATIVE = TensorDataset(torch.arange(SIZE), torch.arange(float(SIZE)).view(SIZE, 1).expand(SIZE, 3).contiguous())


def loader(dataset: Any = NATIVE, **options: Any) -> Any:
    return penstock.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 7, **options})


def refused(words: str) -> Any:
    return pytest.raises(penstock.InvalidOption, match=words)


@pytest.mark.parametrize("size", [1, 7, 36, 37])
def test_ranks_share_an_epoch(size: int) -> None:
    for case in product((1, 2, 5), (1, 2, 3, 8), (0, 4, 36), (False, True)):
        assert_shared(size, *case)


def assert_shared(size: int, batch_size: int, world: int, start: int, drop_last: bool) -> None:
    options = {"batch_size": batch_size, "shuffle": False, "drop_last": drop_last, "num_workers": 0}
    ranks = [loader(TensorDataset(torch.arange(size)), shard=(rank, world), **options) for rank in range(world)]
    for rank in ranks:
        rank.load_state_dict({**rank.state_dict(), "position": min(start, size)})
    found: list[int] = []
    for batches in zip(*ranks, strict=True):
        assert len({len(batch[0]) for batch in batches}) == 1
        for rank, (batch,) in zip(ranks, batches, strict=True):
            found += batch.tolist()[: len(batch) - rank.padded]
    wanted = list(range(min(start, size), size))
    full = len(wanted) // (batch_size * world) * (batch_size * world)
    assert found == (wanted[:full] if drop_last else wanted)


def test_auto_asks_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for name, value in (("is_initialized", True), ("get_rank", 4), ("get_world_size", 5)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert "rank 4 of 5 gets its part" in loader(shard="auto").explain()


def test_explain_says_the_share() -> None:
    assert "rank 1 of 3 gets its part of each global batch" in loader(shard=(1, 3)).explain()
    assert "rank" not in loader(shard=(0, 1)).explain()


def test_a_distributed_sampler_is_respected_and_not_doubled() -> None:
    sampler: Any = DistributedSampler(NATIVE, 2, 1, shuffle=True, seed=3)
    mine = penstock.DataLoader(NATIVE, 4, sampler=sampler, shard=(1, 2))
    assert_same(list(mine), list(TorchDataLoader(NATIVE, 4, sampler=sampler)))
    assert len(mine) == len(TorchDataLoader(NATIVE, 4, sampler=sampler))
    mine.set_epoch(5)
    assert sampler.epoch == 5


@pytest.mark.parametrize(
    "make",
    [
        *[partial(loader, shard=shard) for shard in ("all", (2, 2), (-1, 2), (0,), (0, 1.5), 3, (0, 0), (True, 2))],
        partial(loader, seed=None, shard=(0, 2)),
        partial(penstock.DataLoader, NATIVE, 4, sampler=[1, 2, 3], shard=(0, 2)),
        partial(penstock.DataLoader, Stream(20, shared=False), 4, shard=(0, 2)),
    ],
)
def test_shares_that_make_no_sense_or_cannot_be_cut(make: Any) -> None:
    with refused("shard="):
        make()


def test_a_samplers_batches_are_skipped_without_being_read() -> None:
    read: list[int] = []

    def noted(index: int) -> int:
        read.append(index)
        return index

    watched: Any = Made(noted, SIZE)
    order = list(range(0, SIZE, 3))
    begun, again = (penstock.DataLoader(watched, 4, sampler=order) for _ in range(2))
    resumed(begun, again, 3)
    read.clear()
    assert flat(again) == read == order[12:]


@pytest.mark.parametrize(
    "state",
    [
        {}, {"format": 2}, {"format": 1}, {"format": 1, "epoch": -1},
        {"format": 1, "epoch": 0, "position": 0, "batches": "x"}, {**loader().state_dict(), "data": None},
    ],
)  # fmt: skip
def test_states_that_are_none(state: Any) -> None:
    with refused("a state"):
        loader().load_state_dict(state)
    with pytest.raises(TypeError, match="state_dict"):
        loader().load_state_dict([])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"seed": 8}, "seed=7 cannot continue with seed=8"),
        ({}, {"shuffle": False}, "an epoch shuffled cannot continue in sequence"),
        ({"shuffle": None, "sampler": [1, 2, 3]}, {}, "by a sampler cannot continue shuffled"),
        ({}, {"shuffle": None, "sampler": penstock.Weighted([1.0] * SIZE)}, "shuffled cannot continue Weighted"),
    ],
)
def test_a_state_of_another_seed_or_order(before: Any, after: Any, words: str) -> None:
    with refused(words):
        loader(**after).load_state_dict(loader(**before).state_dict())
    with refused("position 102 of an epoch of 101 samples"):
        loader().load_state_dict({**loader().state_dict(), "position": SIZE + 1})


def test_a_ledger_a_rank(tmp_path: Path) -> None:
    each = str(tmp_path / "run-{rank}")
    for rank in range(2):
        list(loader(shard=(rank, 2), ledger=each))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0", "run-1"]
    none, plain = tmp_path / "none" / "run", {"shuffle": None, "seed": None, "sampler": [1, 2]}
    no_file, invalid = r"^ledger='.*/none/run': it cannot be opened or written: No such file", penstock.InvalidOption
    wrong: list[tuple[dict[str, Any], Any, str]] = [
        ({"shard": (0, 2), "seed": 9, "ledger": each}, invalid, "of another run"),
        ({"ledger": tmp_path}, invalid, r"^ledger='.*': it is a folder: name a file in it"),
        ({"ledger": tmp_path}, IsADirectoryError, "it is a folder"),
        ({"ledger": none}, FileNotFoundError, no_file),
        ({**plain, "ledger": tmp_path / "x"}, invalid, "ledger= needs"),
    ]
    for options, error, words in wrong:
        with pytest.raises(error, match=words):
            iter(loader(**options))


def test_every_rank_goes_on_with_the_state_of_one_and_its_own_ledger(tmp_path: Path) -> None:
    def run(name: str, steps: int, *state: Any) -> Any:
        ranks = [loader(shard=(rank, 2), ledger=str(tmp_path / f"{name}-{{rank}}")) for rank in range(2)]
        states = [stopped(loaded(one, *state) if state else one, steps)[1] for one in ranks]
        return states[0]

    run("whole", 9)
    run("killed", 5, run("killed", 4))
    for rank in range(2):
        assert main(["ledger", "diff", str(tmp_path / f"whole-{rank}"), str(tmp_path / f"killed-{rank}")]) == 0


def mixed(dataset: Any = NATIVE, **options: Any) -> Any:
    parts: Any = {"a": (Subset(dataset, range(30)), 3), "b": (Subset(dataset, range(30, SIZE)), 1)}
    return loader(penstock.Mix(parts, length=80), **options)


def test_a_mix_keeps_its_proportions_in_every_window() -> None:
    for dataset in (NATIVE, Drawing(SIZE)):
        numbers = flat(mixed(dataset))
        for begin in range(80 - 8):
            assert abs(sum(number < 30 for number in numbers[begin : begin + 8]) - 6) <= 1


def test_without_a_seed_weights_follow_torchs_generator() -> None:
    sampler = penstock.Weighted([1.0] * SIZE, 20)
    torch.manual_seed(4)
    found = flat(penstock.DataLoader(NATIVE, 4, sampler=sampler))
    torch.manual_seed(4)
    assert found == flat(TorchDataLoader(NATIVE, 4, sampler=sampler))
    with pytest.raises(penstock.InvalidOption, match="weights"):  # of another dataset
        penstock.DataLoader(NATIVE, 4, sampler=penstock.Weighted([1.0, 2.0]))


def test_the_sampler_of_a_copy_sets_the_epoch_of_the_copy() -> None:
    plain = loader()
    epochs = [flat(plain) for _ in range(2)]
    copied = pickle.loads(pickle.dumps(plain))
    copied.batch_sampler.sampler.set_epoch(1)
    plain.set_epoch(0)
    assert [flat(copied), flat(plain)] == epochs[::-1]
    with pytest.raises(penstock.InvalidOption, match="epoch=-1"):
        plain.set_epoch(-1)


@pytest.mark.parametrize("dataset", [NATIVE, Drawing(SIZE)], ids=["native", "python"])
def test_any_batch_can_be_made_again(dataset: Any) -> None:
    plain = loader(dataset, num_workers=2)
    epochs = [list(plain) for _ in range(2)]
    other = loader(dataset)
    for epoch, step in ((1, 17), (0, 0), (1, 25), (0, 3)):
        assert_same(other.batch_at(epoch, step), epochs[epoch][step])
        assert other.ids(epoch, step) == [str(number) for number in epochs[epoch][step][0].tolist()]
    ranks, third = (loader(dataset, shard=(rank, 3)) for rank in (0, 2))
    third.set_epoch(1)
    assert_same(ranks.batch_at(1, 2, rank=2), list(third)[2])
    wrong: list[tuple[Any, tuple[Any, ...], Any, str]] = [
        (other.batch_at, (0, 26), IndexError, "^there is no step 26: the pass has 26 steps, counted from 0$"),
        (ranks.batch_at, (0, 0, 3), penstock.InvalidOption, "there are 3 ranks"),
        (ranks.batch_at, (-1, 0), penstock.InvalidOption, "epoch=-1 is out of range"),
        (ranks.ids, ("1", 0), TypeError, "epoch must be an integer"),
        (loader(dataset, seed=None).batch_at, (0, 0), penstock.InvalidOption, "with seed="),
    ]
    for call, arguments, error, words in wrong:
        with pytest.raises(error, match=words):
            call(*arguments)


def test_any_batch_of_a_pass_that_went_on_can_be_made_again() -> None:
    _, state, _ = stopped(loader(NATIVE, shard=(0, 3)), 3)  # position 36: no multiple of the next batch size
    ranks = [loaded(loader(NATIVE, batch_size=5, shard=(rank, 2)), state) for rank in range(2)]
    for rank, share in enumerate([list(one) for one in ranks]):
        for step, batch in enumerate(share):
            assert_same(ranks[0].batch_at(0, step, rank, state=state), batch)
            assert ranks[0].ids(0, step, rank, state=state) == list(map(str, batch[0].tolist()))
    with pytest.raises(IndexError):
        ranks[0].ids(0, 7, state=state)
    with pytest.raises(penstock.InvalidOption, match="of epoch 0 does not cover epoch 1"):
        ranks[0].batch_at(1, 0, state=state)
