"""Whether ledgers give each sample of an epoch once: of one run, or of runs that continued each other."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from penstock.errors import InvalidOption
from tests.commands import attempted, command, fails

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
        [(1, 4, 9), (1, 8, None)],
    ],
    ids=str,
)
def test_runs_that_continue_each_other(runs: list[tuple[int, int, int | None]], tmp_path: Path) -> None:
    state, files = None, []
    for number, (world, batch_size, stop) in enumerate(runs):
        state, made = run(tmp_path, str(number), world, batch_size, state, stop)
        files += made
    said = command("ledger", "seen", *files, code=None)
    twice = re.match(r"epoch 0: (\d) samples? of 103 samples twice, so that each rank has as many", said)
    assert 0 < int(twice[1]) < runs[-1][0] if twice else said.startswith("epoch 0: each of 103 samples once")
    if len(runs) > 1 and runs[0][2]:  # the steps before the last run, which did them once more or not at all
        assert "do not continue each other" in command("ledger", "seen", *files[len(files) - runs[-1][0] :], code=1)


def test_what_is_said(tmp_path: Path) -> None:
    state, first = run(tmp_path, "a", 2, 4, stop=5)
    _, second = run(tmp_path, "b", 3, 5, state)
    assert command("ledger", "seen", *second, *first) == (
        "epoch 0: each of 103 samples once (5 steps on 2 ranks, then 5 steps on 3 ranks; 1 step did not count: a later "
        "run repeated it)\n"
    )
    said = "epoch 0: 48 of 103 samples once, the others not at all (6 steps on 2 ranks)\n"
    assert command("ledger", "seen", *first, code=1) == said
    assert "do not continue each other" in command("ledger", "seen", *second, code=1)
    words = "the ledger of rank 1 is missing, of a run of 3 ranks with batches of 5"
    assert words in fails("ledger", "seen", *first, second[0], second[2])


def test_dropped_and_repeated_samples(tmp_path: Path) -> None:
    for options, words in (({"drop_last": True}, "100 of 103 samples once, "), ({}, "1 sample of 103 samples twice")):
        _, files = run(tmp_path, words, 2, 5 * (2 - len(options)), **options)
        assert command("ledger", "seen", *files, code=1).startswith(f"epoch 0: {words}")


def test_other_runs_and_orders_are_refused(tmp_path: Path) -> None:
    _, files = run(tmp_path, "a", 1, 50)
    _, others = run(tmp_path, "b", 1, 50, seed=4)
    with pytest.raises(InvalidOption, match="are of other runs: seed is 3 and 4"):
        attempted("ledger", "seen", *files, *others)
    _, weighted = run(tmp_path, "c", 1, 50, shuffle=False, sampler=penstock.Weighted([1.0] * SIZE, SIZE))
    with pytest.raises(InvalidOption, match=r"of the order 'Weighted .*', which need not hold each sample once"):
        attempted("ledger", "seen", *weighted)
