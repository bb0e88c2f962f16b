"""Which collate functions hand their samples on to default_collate untouched, and what it returns to them then."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch.utils.data
from torch.utils.data import default_collate
from torch.utils.data.dataloader import default_collate as from_dataloader

import penstock
from tests.filled_batches import FILLED


def mix(images, labels=None):
    return images, labels


def recipe(batch):
    return mix(*default_collate(batch))


def rebinding(batch):
    batch = default_collate(batch)
    batch[0] = batch[0].flip(-1)
    return mix(*batch)


def in_branches(batch, *, often=False):
    if often:
        for _ in range(2):
            mix(1)
        return mix(*default_collate(batch))
    return default_collate(batch)


class Collator:
    def __call__(self, batch):
        return mix(*default_collate(batch))

    def method(self, batch):
        return default_collate(batch)

    @staticmethod
    def static(batch):
        return default_collate(batch)


def closure():
    collate, cut = default_collate, mix

    def collate_fn(batch):
        return cut(*collate(batch))

    return collate_fn


HANDING_ON = {
    "the recipe": recipe,
    "by attributes": lambda batch: torch.utils.data.default_collate(batch),
    "another name": lambda samples: from_dataloader(samples),
    "rebinding": rebinding,
    "lambda": lambda batch: mix(*default_collate(batch)),
    "callable object": Collator(),
    "method": Collator().method,
    "static method": Collator.static,
    "partial": functools.partial(lambda prefix, batch: (prefix, default_collate(batch)), 1),
    "closure": closure(),
}


def keeps(batch, kept=[]):  # noqa: B006
    kept.append(batch)
    return default_collate(batch)


def late_rebinding(batch):
    for _ in range(2):
        batch = default_collate(batch)
    return batch


def again(batch, *, often=False):
    found = [default_collate(batch)]
    if often:
        found.append(default_collate(batch))
    return found


def looped(batch):
    while True:
        found = default_collate(batch)
        if len(found) > 1:
            return found


def generator(batch):
    yield default_collate(batch)


def guarded(batch):
    try:
        return default_collate(batch)
    except RuntimeError:
        return batch


def own(batch):
    default_collate = list
    return default_collate(batch)


OTHERS = {
    "the samples": lambda batch: batch,
    "something else": lambda batch: mix(batch),
    "in branches": in_branches,
    "looks": lambda batch: (default_collate(batch), len(batch)),
    "keeps": keeps,
    "a part": lambda batch: default_collate(batch[1:]),
    "changes": lambda batch: default_collate([(image * 2, label) for image, label in batch]),
    "by name": lambda batch: default_collate(batch=batch),  # type: ignore[call-arg]
    "through another": lambda batch: recipe(batch),
    "a loop": late_rebinding,
    "a loop of calls": looped,
    "twice": lambda batch: (default_collate(batch), default_collate(batch)),
    "perhaps twice": again,
    "its variables": lambda batch: (default_collate(batch), locals()),
    "captured": lambda batch: (default_collate(batch), (lambda: batch)),
    "generator": generator,
    "guarded": guarded,
    "any arguments": lambda *batch: default_collate(*batch),
    "its own name": own,
    "without": lambda batch: None,
    "batch bound": functools.partial(lambda batch, prefix: (prefix, default_collate(batch)), batch=[]),
    "built in": list,
    "default_collate": None,
}


def only_collates(collate_fn):
    """Return whether the native core makes the batches that a function hands on."""
    dataset = penstock.Arrays(np.zeros((8, 3)), np.arange(8))
    explained = penstock.DataLoader(dataset, 4, collate_fn=collate_fn, num_workers=0).explain()
    return f"{FILLED}, which default_collate returns inside collate_fn" in explained


@pytest.mark.parametrize("name", [*HANDING_ON, *OTHERS])
def test_functions_that_hand_on_and_others(name):
    assert only_collates({**HANDING_ON, **OTHERS}[name]) == (name in HANDING_ON)


def test_another_function_of_that_name(monkeypatch):
    monkeypatch.setitem(recipe.__globals__, "default_collate", list)
    assert not only_collates(recipe)
