"""Map-style datasets without a length are read by their sampler, as torch's loader reads them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock.errors import InvalidOption
from tests.carriers_under_test import PYTHON
from tests.same import assert_same

BATCHES = [[5, 3], [9, 1, 7], [2]]
ROUTES: dict[str, dict[str, Any]] = {
    "auto": {"num_workers": 2, "worker_method": "auto"},
    "threads, seed": {"num_workers": 2, "worker_method": "thread", "seed": 3},
    **{name: executor.options for name, executor in PYTHON.items() if name != "processes, out of order"},
}


class Unbounded(Dataset[Any]):
    """Samples of any index, as of a stream of cuts; a list of samples that is not all of them."""

    samples = (("a.wav", 0), ("b.wav", 1))

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, 2 * index])


class Refusing(Unbounded):
    def __len__(self) -> int:
        raise NotImplementedError("the number of samples is not known")


class Broken(Unbounded):
    def __len__(self) -> int:
        raise TypeError("no length")


@pytest.mark.parametrize("kind", [Unbounded, Refusing, Broken])
@pytest.mark.parametrize("route", ROUTES)
def test_batches_and_a_resumed_epoch_are_torchs(kind: Any, route: str) -> None:
    choosing: tuple[dict[str, Any], ...] = ({"batch_sampler": BATCHES}, {"sampler": list(chain(*BATCHES))})
    for chosen in choosing:
        expected = list(DataLoader(kind(), **chosen))
        loader: Any = penstock.DataLoader(kind(), **chosen, **ROUTES[route])
        batches = iter(loader)
        first, state = next(batches), loader.state_dict()
        assert_same([first, *batches], expected)
        resumed: Any = penstock.DataLoader(kind(), **chosen, **ROUTES[route])
        resumed.load_state_dict(state)
        assert_same(list(resumed), expected[1:])
        assert resumed.state_dict()["data"] == {} and loader.explain()


def test_a_state_of_a_dataset_that_had_a_length_is_a_state() -> None:
    class Sized(Unbounded):
        def __len__(self) -> int:
            return 10

    sized: Any = penstock.DataLoader(Sized(), batch_sampler=BATCHES)
    next(iter(sized))
    loader: Any = penstock.DataLoader(Unbounded(), batch_sampler=BATCHES)
    loader.load_state_dict(sized.state_dict())
    assert_same(list(loader), list(DataLoader(Unbounded(), batch_sampler=BATCHES))[1:])
    sized.load_state_dict(loader.state_dict())


def test_a_subset_of_a_dataset_without_a_length_has_a_fingerprint() -> None:
    states = [
        penstock.DataLoader(torch.utils.data.Subset(Refusing(), chosen)).state_dict()["data"]
        for chosen in ([1, 2], [1, 2], [2, 1])
    ]
    assert states[0] == states[1] != states[2] and states[0]["size"] == 2


def test_replacement_needs_a_length() -> None:
    with pytest.raises(InvalidOption, match="needs a dataset with a length: Refusing has none"):
        penstock.DataLoader(Refusing(), sampler=[1], on_error="replace")
