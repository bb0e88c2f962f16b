"""stats() counts what every kind of pass hands out: batches, their samples, and the time of next()."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from tests.carriers_under_test import options
from tests.data import Made, Numbers, Stream, Whole
from tests.same import outcomes

IN_ORDER = [
    "caller", "caller, torch's", "caller, seed", "caller, fed", "threads, 2",
    "processes, 2", "processes, persistent", "processes, fed",
]  # fmt: skip
EVERY = options(*IN_ORDER, "processes, out of order")
WITHOUT_SEED = options(*[name for name in IN_ORDER if "seed" not in name], "processes, out of order")


def sample(index: int) -> Any:
    return {"pair": (torch.full((3, 2), float(index)), str(index))}


def named(index: int) -> Any:
    return f"{index}", torch.zeros(3, 2)


class Stated(Stream):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def counts(loader: Any) -> tuple[int, int]:
    return loader.stats().batches, loader.stats().samples


@pytest.mark.parametrize(
    "dataset", [Made(sample, 10), Whole(sample, 10), TensorDataset(torch.zeros(10, 3))], ids=["one", "all", "rows"]
)
@EVERY
@pytest.mark.parametrize("collate", [None, list])
def test_a_map_style_dataset(dataset: Any, options: dict[str, Any], collate: Any) -> None:
    loader = penstock.DataLoader(dataset, 4, collate_fn=collate, **options)
    for epochs in (1, 2):
        list(loader)
        stats = loader.stats()
        assert counts(loader) == (3 * epochs, 10 * epochs) and stats.wait_seconds > 0
        assert all(stage.seconds > 0 for stage in stats.stages.values())
        assert {stage.samples for stage in stats.stages.values()} == {10 * epochs}
        assert stats.stages.keys() - {"collate"} in ({"getitem"}, {"gather"})
    assert "20 samples in 6 batches" in loader.explain()


@EVERY
def test_single_samples(options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(Made(sample, 10), None, **options)
    list(loader)
    assert counts(loader) == (10, 10)


@WITHOUT_SEED
@pytest.mark.parametrize("dataset", [Stream(10, named), Stated(10, named)], ids=["plain", "stated"])
def test_an_iterable_dataset(dataset: Any, options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(dataset, 3, **options)
    batches = list(loader)
    assert sum(len(names) for names, _ in batches) == 10 and counts(loader) == (len(batches), 10)
    assert loader.stats().stages.keys() == (set() if options["num_workers"] else {"iterate"})
    single = penstock.DataLoader(dataset, None, **options)
    assert len(list(single)) == 10 and counts(single) == (10, 10)


@WITHOUT_SEED
def test_an_iterable_dataset_with_a_collate_fn_counts_full_batches(options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(Stream(10, named), 3, collate_fn=list, **options)
    batches = len(list(loader))
    assert counts(loader) == (batches, 3 * batches)


@options(*IN_ORDER)
def test_a_batch_that_fails_is_not_counted(options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(Numbers({5}, 10), batch_sampler=[[0, 1, 2], [4, 5, 6, 7], [8]], **options)
    _, (kind, words), _ = outcomes(loader)
    assert kind == "ValueError" and "number 5" in words and counts(loader) == (2, 4)


def test_the_time_of_next_is_what_was_waited() -> None:
    loader = penstock.DataLoader(Made(lambda index: threading.Event().wait(0.05), 10), 10)
    list(loader)
    assert loader.stats().wait_seconds >= 0.5


@options("caller", "processes, 2", "threads, 2")
def test_prefetch_around_a_loader_counts_once(options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(Made(sample, 10), 4, **options)
    assert len(list(penstock.prefetch(loader, "cpu"))) == 3 and counts(loader) == (3, 10)


def test_explain_counts_one_as_one() -> None:
    loader = penstock.DataLoader(Numbers({1}, 3), 3, on_error=penstock.Replace(max_share=0.5))
    assert "bad      0 bad samples, replaced by good ones;" in loader.explain()
    list(loader)
    lines = loader.explain().splitlines()
    assert [line.partition(";")[0] for line in lines if line.startswith(("bad", "so far"))] == [
        "bad      1 bad sample, replaced by good ones",
        "so far   3 samples in 1 batch",
    ]
    one: Any = penstock.DataLoader(Made(size=1))
    list(one)
    assert "so far   1 sample in 1 batch;" in one.explain()
