"""Errors of a user's dataset: of torch's type and arguments, they say at which sample; the pass goes on behind them.

A StopIteration of a user's function is an error, as in Python's generators; torch's loader ends the epoch there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

import penstock
from tests.carriers_under_test import PYTHON, Executor, executors
from tests.data import Made, Numbers, Stream, Whole, photo_files, rows
from tests.same import outcomes
from tests.values import flat, listed, taken

IN_CALLER = ("caller", "caller, default", "caller, torch's", "caller, seed", "caller, fed", "threads, caller")
EVERY = executors(*IN_CALLER, "threads, 2", "processes, 1", "processes, 1, seed")


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


def compare(dataset: Any, executor: Executor, **options: Any) -> str:
    ours = raised(penstock.DataLoader(dataset, **options, **executor.options))
    theirs = raised(torch.utils.data.DataLoader(dataset, **options, **executor.torchs))
    assert type(ours) is type(theirs)
    assert ours.args == theirs.args or (executor.torchs and str(ours).splitlines()[0] == str(theirs).splitlines()[0])
    return said(ours)


@executors(*IN_CALLER, "threads, 1", "threads, 2", "threads, persistent", "processes, 2", "processes, fed")
def test_a_pass_goes_on_behind_an_error(executor: Executor) -> None:
    loader: Any = penstock.DataLoader(Numbers({9}, error=KeyError), 4, **executor.options)
    batches = iter(loader)
    assert listed(taken(batches, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(KeyError, match="number 9") as caught:
        next(batches)
    assert "sample 9" in said(caught.value)
    if not executor.torchs:
        assert caught.traceback[-1].name == "number"  # the user's own line
    assert loader.state_dict()["position"] == 8, "an error counts once a later batch came"
    assert next(batches).tolist() == [12, 13, 14, 15] and loader.state_dict()["position"] == 16
    assert listed(batches) == [[16, 17, 18, 19], [20, 21, 22]]
    assert (loader.stats().batches, loader.stats().samples) == (5, 19)


def _at_13(index: int) -> Any:
    return {"y": 1}["x"] if index == 13 else index


def _no_collate(samples: list[Any]) -> Any:
    raise ZeroDivisionError("no")


FIFTEEN: dict[str, Any] = {"batch_size": 15, "collate_fn": _no_collate}
#: What fails, and what is said of it.
FAILING: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a sample": (Made(_at_13), {"batch_size": 4}, "sample 13"),
    "a sample by itself": (Made(_at_13), {"batch_size": None}, "13"),
    "a whole batch": (Whole(_at_13), {"batch_size": 4}, "samples [12, 13, 14, 15]"),
    "an index of another kind": ({"a": 1}, {"batch_sampler": [("a", "b")]}, "'b'"),
    "a collate_fn": (Made(float), FIFTEEN, "in a batch of samples [0, 1, 2, 3, 4, 5, 6, 7] and 7 more"),
}


@EVERY
@pytest.mark.parametrize("what", FAILING)
def test_an_error_says_where(executor: Executor, what: str) -> None:
    dataset, options, words = FAILING[what]
    text = compare(dataset, executor, **options)
    assert words in text
    assert what != "a sample" or "sample 12" not in text


DIFFERING: dict[str, tuple[Callable[[int], Any], str]] = {
    "shapes": (lambda i: torch.zeros(3, 60 if i == 6 else 64), "sample 6 has shape (3, 60), sample 4 shape (3, 64)"),
    "arrays": (lambda i: np.zeros(3 if i == 6 else 2), "sample 6 has shape (3,), sample 4 shape (2,)"),
    "inside": (
        lambda i: {"x": (torch.zeros(2), torch.zeros(1 + (i == 6)))},
        "sample 6 has shape (2,) at ['x'][1], sample 4 shape (1,)",
    ),
    "types": (lambda i: ("a", None if i == 6 else 1), "sample 6 has NoneType at [1], sample 4 int"),
    "lengths": (lambda i: (1,) * (3 if i == 6 else 2), "sample 6 has 3 elements, sample 4 2 elements"),
    "keys": (lambda i: {"a": 1} if i == 6 else {"a": 1, "b": 2}, "sample 6 has keys ['a'], sample 4 keys ['a', 'b']"),
    "nothing": (lambda i: [None], "in a batch of samples [0, 1, 2, 3]"),
}


@EVERY
@pytest.mark.parametrize("kind", DIFFERING)
def test_samples_that_cannot_be_collated(executor: Executor, kind: str) -> None:
    make, words = DIFFERING[kind]
    text = compare(Made(make), executor, batch_size=4)
    assert words.replace(" at ", "") in text.replace(" at ", "")
    assert kind == "nothing" or "in a batch of samples [4, 5, 6, 7]: " in text


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_no_index_of_a_native_dataset(workers: int) -> None:
    loader = penstock.DataLoader(rows(20), batch_sampler=[[1, "x"]], num_workers=workers)
    assert "sample 'x'" in said(raised(loader))


def test_a_loader_goes_on_behind_an_error_and_notes_no_error_twice() -> None:
    error = ValueError("the same one")

    def make(index: int) -> Any:
        if index % 5 == 0:
            raise error
        return index

    for _ in range(2):
        bad, *found = outcomes(penstock.DataLoader(Made(make, 20), 2))
        assert bad == ("ValueError", "the same one")
        assert listed(found) == [[2, 3], list(bad), [6, 7], [8, 9], list(bad), [12, 13], list(bad), [16, 17], [18, 19]]
    assert error.__notes__ == [f"in __getitem__ of sample {index}" for index in (0, 5, 10, 15)]


def ends_at_five(index: int) -> int:
    if index == 5:
        next(iter(()))
    return index


def ends_its_collation(samples: Any) -> Any:
    return torch.tensor([ends_at_five(int(sample)) for sample in samples])


#: A dataset and the options of its loader, and where a StopIteration is raised.
ENDING: dict[str, tuple[Any, dict[str, Any], str]] = {
    "__getitem__": (Made(ends_at_five, 8), {}, "in __getitem__ of sample 5"),
    "__getitems__": (Whole(ends_at_five, 8), {}, r"in a batch of samples \[4, 5\]"),
    "collate_fn": (Made(int, 8), {"collate_fn": ends_its_collation}, r"in a batch of samples \[4, 5\]"),
}
IN_ORDER = [name for name in PYTHON if name != "processes, out of order"]


@executors(*IN_ORDER)
@pytest.mark.parametrize("what", ENDING)
def test_a_stop_iteration_does_not_end_the_epoch(what: str, executor: Executor) -> None:
    dataset, given, place = ENDING[what]
    loader: Any = penstock.DataLoader(dataset, 2, **given, **executor.options)
    batches = iter(loader)
    assert flat([next(batches), next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=f"StopIteration was raised {place}") as caught:
        next(batches)
    if "Caught" in str(caught.value):  # by a worker process, which sends text
        assert "direct cause" in str(caught.value)
    else:
        assert isinstance(caught.value.__cause__, StopIteration)
    assert flat(batches) == [6, 7] and loader.state_dict()["epoch"] == 1


@executors("caller", "threads, 1", "processes, 1")
def test_a_stop_iteration_of_other_functions(executor: Executor, tmp_path: Path) -> None:
    photo_files(tmp_path / "class", 2)
    folders = [
        ImageFolder(tmp_path, **{"transform": ToTensor(), fails: lambda _: next(iter(()))})
        for fails in ("transform", "target_transform")
    ]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (Made(ends_at_five, 8), {"batch_size": None}, "in __getitem__ of sample 5"),
        *((folder, {}, "in (__getitem__ of sample 0|a batch of samples)") for folder in folders),
    ]
    if executor.options["num_workers"]:
        cases.append((Made(), {"worker_init_fn": lambda _: next(iter(()))}, ""))
    if executor.options.get("worker_method") != "thread":
        cases.append((Stream(8), {"batch_size": 2, "collate_fn": ends_its_collation}, "in collate_fn"))
    for dataset, options, place in cases:
        with pytest.raises(RuntimeError, match=f"StopIteration.*{place}"):
            list(penstock.DataLoader(dataset, **options, **executor.options))


class Frozen(Exception):
    def add_note(self, note: str) -> None:
        raise TypeError("no notes")


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __hash__(self) -> int:
        return 1


@EVERY
def test_errors_and_indices_that_resist(executor: Executor) -> None:
    def make(index: int) -> Any:
        raise Frozen("as it is")

    assert "as it is" in compare(Made(make), executor, batch_size=4)
    dataset: Any = {}
    if "seed" not in executor.options:  # which is mixed with the index's repr
        assert type(raised(penstock.DataLoader(dataset, sampler=[Unspeakable()], **executor.options))) is KeyError
