"""Whether ledgers give each sample of an epoch once: of one run, or of runs that continued each other."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from penstock.errors import InvalidOption
from penstock.state.coverage import seen
from penstock.state.ledger import read
from tests.commands import command, fails

SIZE = 103


def run(folder: Path, name: str, world: int, batch_size: int, state: Any = None, stop: int | None = None, **more: Any):
    """Have each rank take `stop` steps, and one that the state does not count; return rank 0's state, and the files."""
    kept, files = None, []
    for rank in range(world):
        files.append(str(folder / f"{name}-{rank}"))
        options: Any = {"shuffle": True, "seed": 3, "shard": (rank, world), "ledger": files[-1], **more}
        loader = penstock.DataLoader(TensorDataset(torch.arange(SIZE)), batch_size, **options)
        if state is not None:
            loader.load_state_dict(state)
        if stop is None:
            list(loader)
        else:
            passed = iter(loader)
            list(islice(passed, stop))
            kept = kept or loader.state_dict()
            next(passed, None)  # a step that the next run does again
    return kept, files


@pytest.mark.parametrize(
    "runs",
    [
        [(1, 4, None)],
        [(2, 4, 5), (3, 5, None)],
        [(3, 5, 2), (2, 4, 3), (1, 7, None)],
        [(2, 4, 0), (4, 2, None)],
        [(2, 4, 3), (2, 4, None)],
        [(4, 8, 2), (1, 1, None)],
        [(1, 1, 40), (7, 3, None)],
    ],
    ids=str,
)
def test_runs_that_continue_each_other(runs: list[tuple[int, int, int | None]], tmp_path: Path) -> None:
    state, files = None, []
    for number, (world, batch_size, stop) in enumerate(runs):
        state, made = run(tmp_path, str(number), world, batch_size, state, stop)
        files += made
    (found,) = seen(map(read, files))
    assert found.given - SIZE in range(runs[-1][0])  # what the last step has twice, to be as long on each rank
    assert found.once == (found.given == SIZE)
    if len(runs) > 1 and runs[0][2]:  # the steps before the last run, which did them once more or not at all
        assert not seen(map(read, files[len(files) - runs[-1][0] :]))[0].once


def test_what_is_said(tmp_path: Path) -> None:
    state, first = run(tmp_path, "a", 2, 4, stop=5)
    _, second = run(tmp_path, "b", 3, 5, state)
    assert command("ledger", "seen", *second, *first) == (
        "epoch 0: each of 103 samples once (5 steps on 2 ranks, then 5 steps on 3 ranks; 1 step did not count: a later "
        "run repeated it)\n"
    )
    some = command("ledger", "seen", *first, code=1)
    assert some == "epoch 0: 48 of 103 samples once, the others not at all (6 steps on 2 ranks)\n"
    assert "do not continue each other" in command("ledger", "seen", *second, code=1)
    words = "the ledger of rank 1 is missing, of a run of 3 ranks with batches of 5"
    assert words in fails("ledger", "seen", *first, second[0], second[2])


def test_dropped_and_repeated_samples(tmp_path: Path) -> None:
    _, files = run(tmp_path, "dropped", 2, 5, drop_last=True)
    assert [(one.given, one.once) for one in seen(map(read, files))] == [(100, False)]
    _, files = run(tmp_path, "repeated", 2, 10)
    assert [(one.given, one.once) for one in seen(map(read, files))] == [(104, False)]


def test_other_runs_and_orders_are_refused(tmp_path: Path) -> None:
    _, files = run(tmp_path, "a", 1, 50)
    _, others = run(tmp_path, "b", 1, 50, seed=4)
    with pytest.raises(InvalidOption, match="are of other runs: seed is 3 and 4"):
        seen(map(read, files + others))
    _, weighted = run(tmp_path, "c", 1, 50, shuffle=False, sampler=penstock.Weighted([1.0] * SIZE, SIZE))
    with pytest.raises(InvalidOption, match=r"of the order 'Weighted .*', which need not hold each sample once"):
        seen(map(read, weighted))


def test_a_ledger_without_the_order_is_continued_and_not_judged(tmp_path: Path) -> None:
    _, (file,) = run(tmp_path, "a", 1, 50, stop=1)
    older = Path(file)
    older.write_text(older.read_text().replace(', "order": "shuffled"', ""))
    run(tmp_path, "a", 1, 50)
    assert [step[:3] for step in read(file)] == [(0, 0, 50), (0, 1, 50), (0, 2, 3)]
    with pytest.raises(InvalidOption, match="does not say the order of its run"):
        seen([read(file)])
