"""Batches sent to a device, or made on it (of arrays that live there, of files decoded there): all are the host's.

They end, resume and fail as others do. The device is the CPU. How close its pixels are to the host's is for
tests/device; here each crop is exact.
"""

from __future__ import annotations

import pickle
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
#: What explain() says of each way.
WAYS = {
    "sent": "device   convert",
    "resident": "of arrays on cpu: batches are cropped, padded, flipped and gathered there",
    "decoded there": "decode   on the device",
}


@pytest.fixture(params=WAYS)
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    replaced_by_the_cpu(monkeypatch)
    dataset: Any = in_memory("CIFAR10", v1.Compose(STEPS), 26)
    feed = penstock.Feed("cuda", cache="device" if request.param == "resident" else None)
    if request.param == "decoded there":
        dataset = penstock.ImageFolder(photo_files(tmp_path, 26, (40, 60)), v1.Compose(STEPS))
        feed = penstock.Feed("cuda", decode="auto")

    def make_loader(device: Any = feed, **options: Any) -> Any:
        own: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 7, "num_workers": 2}
        loader: Any = penstock.DataLoader(dataset, device=device, **{**own, **options})
        assert device is None or WAYS[request.param] in loader.explain()
        return loader

    return make_loader


@pytest.mark.parametrize(
    "options",
    [
        {}, {"num_workers": 0}, {"drop_last": True}, {"shuffle": False, "sampler": [3, 1, 1, 25, -1]},
        {"shard": (1, 3)}, {"persistent_workers": True},
    ],
    ids=str,
)  # fmt: skip
def test_batches_are_those_of_the_host(make: Any, options: dict[str, Any]) -> None:
    there, host = make(**options), make(None, **options)
    for _ in range(2):
        assert_same(list(there), list(host))
    assert (there.stats().batches, there.stats().samples) == (host.stats().batches, host.stats().samples)
    assert_same(list(pickle.loads(pickle.dumps(there))), list(host))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_pass_follows_set_epoch_until_its_first_batch(make: Any, persistent: bool) -> None:
    host = make(None)
    epochs = [list(host) for _ in range(4)]
    loader = make(persistent_workers=persistent)
    for epoch in (2, 1):
        batches = iter(loader)
        loader.set_epoch(epoch)
        assert_same(list(batches), epochs[epoch])
        assert_same(list(loader), epochs[epoch + 1])


@pytest.mark.parametrize("stop", [0, 3, 7])
def test_the_rest_of_an_epoch_is_bitwise_the_same(make: Any, stop: int) -> None:
    whole, begun = list(make()), make()
    assert_same(taken(iter(begun), stop), whole[:stop])
    state = stored(begun.state_dict())
    for workers, device in ((0, {}), (1, {}), (2, {"device": None})):
        again = loaded(make(num_workers=workers, **device), state)
        assert_same(list(again), whole[stop:])


class Failing:
    """Batches of indices, of which two are out of range, and an error."""

    def __iter__(self) -> Any:
        yield from ([0, 1, 2, 3], [4, 5, 6, 7], [8, 99], [9, 10, 11, 12], [-51], [13, 14, 15, 16])
        raise KeyError("no more")


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_are_raised_at_their_batch(make: Any, workers: int) -> None:
    options = {"batch_sampler": Failing(), "batch_size": 1, "shuffle": None, "num_workers": workers}
    there, host = (outcomes(make(**options, **device)) for device in ({}, {"device": None}))
    assert_same(there, host)
    kinds = [one[0] if isinstance(one, tuple) else len(one[1]) for one in host]
    assert kinds == [4, 4, "IndexError", 4, "IndexError", 4, "KeyError"]


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
    assert len(list(loader)) == 7
