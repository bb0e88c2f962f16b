"""Batches made on a device: of arrays that live there, of files decoded there; they end, resume and fail as others do.

The device is the CPU. How close its pixels are to the host's is for tests/device; here each crop is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1

import penstock
from tests.accelerator import replaced_by_the_cpu
from tests.data import in_memory, photo_files
from tests.resources import held
from tests.same import assert_same, outcomes
from tests.values import loaded, stored, taken
from tests.waiting import wait_until

STEPS = [v1.RandomCrop(28), v1.RandomHorizontalFlip(), v1.ToTensor()]


@pytest.fixture(params=["resident", "decoded there"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    replaced_by_the_cpu(monkeypatch)
    if request.param == "resident":
        dataset, feed = in_memory("CIFAR10", v1.Compose(STEPS), 26), penstock.Feed("cuda", cache="device")
    else:
        photos = photo_files(tmp_path, 26, (40, 60))
        dataset, feed = penstock.ImageFolder(photos, v1.Compose(STEPS)), penstock.Feed("cuda", decode="gpu")

    def make_loader(device: Any = feed, **options: Any) -> Any:
        own: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 7, "num_workers": 2}
        return penstock.DataLoader(dataset, device=device, **{**own, **options})

    return make_loader


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 0}, {"drop_last": True}, {"shuffle": False, "sampler": [3, 1, 1, 25, -1]}, {"shard": (1, 3)}],
    ids=str,
)
def test_batches_are_those_of_the_host(make: Any, options: dict[str, Any]) -> None:
    there, host = make(**options), make(None, **options)
    assert "on the device" in there.explain() or "of arrays on cpu" in there.explain()
    for _ in range(2):
        assert_same(list(there), list(host))
    assert (there.stats().batches, there.stats().samples) == (host.stats().batches, host.stats().samples)


@pytest.mark.parametrize("stop", [0, 3, 7])
def test_the_rest_of_an_epoch_is_bitwise_the_same(make: Any, stop: int) -> None:
    whole, begun = list(make()), make()
    assert_same(taken(iter(begun), stop), whole[:stop])
    state = stored(begun.state_dict())
    for workers, device in ((0, {}), (1, {}), (2, {"device": None})):
        again = loaded(make(num_workers=workers, **device), state)
        assert_same(list(again), whole[stop:])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_goes_on_behind_an_index_that_is_none(make: Any, workers: int) -> None:
    orders: Any = [[0, 1], [2, 99], [3, 4]]
    options = {"batch_sampler": orders, "batch_size": 1, "shuffle": None, "num_workers": workers}
    there, host = (outcomes(make(**options, **device)) for device in ({}, {"device": None}))
    assert_same(there, host)
    assert [isinstance(one, tuple) and one[0] for one in host] == [False, "IndexError", False]


@pytest.mark.parametrize("end", ["exhausted", "left", "closed"])
def test_nothing_is_left_behind(make: Any, end: str) -> None:
    loader = make()
    list(loader)
    before, batches = held(), iter(loader)
    batch = next(batches)
    if end == "exhausted":
        assert len(list(batches)) == 6
    elif end == "closed":
        batches.close()
        batches.close()
        assert list(batches) == []
    del batches
    wait_until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))
    assert isinstance(batch[0], torch.Tensor) and len(batch[0]) == 4
