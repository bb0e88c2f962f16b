"""Errors of a user's dataset say at which sample, on every path; their type and arguments stay torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset, TensorDataset

import penstock

SIZE = 20


class Samples(Dataset[Any]):
    """Samples that a function makes."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Whole(Samples):
    """Gives whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.make(index) for index in indices]


WAYS: dict[str, dict[str, Any]] = {
    "caller": {"num_workers": 0},
    "caller, default": {},
    "caller, plain torch": {"num_workers": 0, "worker_method": "process"},
    "caller, seed": {"num_workers": 0, "seed": 1},
    "processes": {"num_workers": 1},
    "processes, seed": {"num_workers": 1, "seed": 1},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "threads, none": {"num_workers": 0, "worker_method": "thread"},
    "device": {"device": "cpu"},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


def raised(loader: Any) -> Exception:
    """Return the error of a loader, without the frames that would keep its iterator and its worker processes."""
    try:
        list(loader)
    except Exception as error:
        found: BaseException | None = error
        while found is not None:
            found = found.with_traceback(None).__context__
        return error
    raise AssertionError("the loader raised nothing")


def said(error: Exception) -> str:
    """Return what a traceback shows below its frames; of a worker process it is in the message."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def compare(dataset: Any, way: dict[str, Any], **options: Any) -> str:
    """Return what is said of an error that is else torch's."""
    ours = raised(penstock.DataLoader(dataset, **options, **way))
    workers = min(way.get("num_workers", 0), 1) if way.get("worker_method") != "thread" else 0
    theirs = raised(torch.utils.data.DataLoader(dataset, **options, num_workers=workers))
    assert type(ours) is type(theirs)
    if not workers:
        assert ours.args == theirs.args
    else:
        assert str(ours).splitlines()[0] == str(theirs).splitlines()[0]
    return said(ours)


def _key_error_at_13(index: int) -> Any:
    return {"y": 1}["x"] if index == 13 else index


def test_a_samples_error(way: dict[str, Any]) -> None:
    text = compare(Samples(_key_error_at_13), way, batch_size=4)
    assert "sample 13" in text
    assert "sample 12" not in text


def test_an_error_of_a_sample_by_itself(way: dict[str, Any]) -> None:
    assert "13" in compare(Samples(_key_error_at_13), way, batch_size=None)


def test_an_error_of_a_whole_batch(way: dict[str, Any]) -> None:
    assert "samples [12, 13, 14, 15]" in compare(Whole(_key_error_at_13), way, batch_size=4)


def test_an_index_of_another_kind(way: dict[str, Any]) -> None:
    dataset: Any = {"a": 1}
    assert "'b'" in compare(dataset, way, batch_sampler=[("a", "b")])


DIFFERING: dict[str, tuple[Callable[[int], Any], str]] = {
    "shapes": (lambda i: torch.zeros(3, 60 if i == 6 else 64), "sample 6 has shape (3, 60), sample 4 shape (3, 64)"),
    "arrays": (lambda i: np.zeros(3 if i == 6 else 2), "sample 6 has shape (3,), sample 4 shape (2,)"),
    "inside": (
        lambda i: {"x": (torch.zeros(2), torch.zeros(1 + (i == 6)))},
        "sample 6 has shape (2,) at ['x'][1], sample 4 shape (1,)",
    ),
    "types": (lambda i: ("a", None if i == 6 else 1), "sample 6 has NoneType at [1], sample 4 int"),
    "lengths": (lambda i: (1,) * (3 if i == 6 else 2), "sample 6 has 3 elements, sample 4 2 elements"),
    "keys": (
        lambda i: {"a": 1} if i == 6 else {"a": 1, "b": 2},
        "sample 6 has keys ['a'], sample 4 keys ['a', 'b']",
    ),
    "nothing": (lambda i: [None], "in a batch of samples [0, 1, 2, 3]"),
}


@pytest.mark.parametrize("kind", DIFFERING)
def test_samples_that_cannot_be_collated(way: dict[str, Any], kind: str) -> None:
    make, words = DIFFERING[kind]
    text = compare(Samples(make), way, batch_size=4)
    assert words.replace(" at ", "") in text.replace(" at ", "")
    if kind != "nothing":
        assert "in a batch of samples [4, 5, 6, 7]: " in text


def _own_collate(samples: list[Any]) -> Any:
    raise ZeroDivisionError("no")


def test_an_error_of_a_collate_fn(way: dict[str, Any]) -> None:
    text = compare(Samples(float), way, batch_size=15, collate_fn=_own_collate)
    assert "in a batch of samples [0, 1, 2, 3, 4, 5, 6, 7] and 7 more" in text


def test_what_is_no_index_of_a_native_dataset() -> None:
    dataset = TensorDataset(torch.arange(SIZE))
    for workers in (0, 2):
        text = said(raised(penstock.DataLoader(dataset, batch_sampler=[[1, "x"]], num_workers=workers)))
        assert "sample 'x'" in text


def test_a_loader_goes_on_behind_an_error_and_notes_no_error_twice() -> None:
    error = ValueError("the same one")

    def make(index: int) -> Any:
        if index % 5 == 0:
            raise error
        return index

    def read(batches: Iterator[Any]) -> Iterator[list[int] | None]:
        while True:
            try:
                yield next(batches).tolist()
            except StopIteration:
                return
            except ValueError:
                yield None

    for _ in range(2):
        found = list(read(iter(penstock.DataLoader(Samples(make), 2))))
        assert found == [None, [2, 3], None, [6, 7], [8, 9], None, [12, 13], None, [16, 17], [18, 19]]
    assert error.__notes__ == [f"in __getitem__ of sample {index}" for index in (0, 5, 10, 15)]


class Frozen(Exception):
    """Takes no notes."""

    def add_note(self, note: str) -> None:
        raise TypeError("no notes")


class Unspeakable:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __hash__(self) -> int:
        return 1


def test_errors_and_indices_that_resist(way: dict[str, Any]) -> None:
    def make(index: int) -> Any:
        raise Frozen("as it is")

    assert "as it is" in compare(Samples(make), way, batch_size=4)
    dataset: Any = {}
    if "seed" not in way:  # which is mixed with the index's repr
        assert type(raised(penstock.DataLoader(dataset, sampler=[Unspeakable()], **way))) is KeyError
