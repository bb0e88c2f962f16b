"""Subclasses of the loader with iterators of their own: `_get_iterator` is called, and may be, as torch's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from tests.data import Made, rows
from tests.same import assert_same


class Wrapper:
    """As torch_geometric's DataLoaderIterator: changes the batches of the iterator that it holds."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Wrapper:
        return self

    def __next__(self) -> Any:
        return "wrapped", next(self.batches)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:  # torch calls it where workers persist
        self.batches._reset(loader, first_iter)


def overriding(base: Any, kind: str) -> Any:
    class Wrapping(base):
        def _get_iterator(self) -> Any:
            return Wrapper(super()._get_iterator())

    class Twice(base):
        def _get_iterator(self) -> Any:
            return itertools.chain(super()._get_iterator(), super()._get_iterator())

    class Asking(base):
        def __iter__(self) -> Any:
            return self._get_iterator()

    class Both(Wrapping):
        def __iter__(self) -> Iterator[Any]:
            yield from zip(self._get_iterator(), self._get_iterator(), strict=True)

    return {made.__name__: made for made in (Wrapping, Twice, Asking, Both)}[kind]


OPTIONS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


@pytest.mark.parametrize("kind", ["Wrapping", "Twice", "Asking", "Both"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("method", [None, "thread"])
def test_an_iterator_of_ones_own_is_the_loaders(kind: str, options: dict[str, Any], method: Any) -> None:
    for dataset in (rows(6), Made(size=6)):
        ours = overriding(penstock.DataLoader, kind)(dataset, 2, shuffle=True, worker_method=method, **options)
        theirs = overriding(tud.DataLoader, kind)(dataset, 2, shuffle=True, **options)
        # Workers that persist make a second pass; torch needs a _reset() for it, which a chain lacks.
        for epoch in range(1 + (len(options) == 2 and kind != "Twice")):
            torch.manual_seed(epoch)
            wanted = list(theirs)
            torch.manual_seed(epoch)
            assert_same(list(ours), wanted)


def test_workers_that_are_kept_make_the_passes_of_an_iterator_of_ones_own() -> None:
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
    loader = overriding(penstock.DataLoader, "Wrapping")(Made(lambda index: os.getpid(), 4), 2, **options)
    workers = [{int(pid) for _, batch in loader for pid in batch} for _ in range(3)]
    assert workers[0] == workers[1] == workers[2] and len(workers[0]) == 1
    fresh = {int(pid) for batch in super(type(loader), loader)._get_iterator() for pid in batch}
    assert fresh.isdisjoint(workers[0])
    assert {int(pid) for _, batch in loader for pid in batch} == workers[0]
