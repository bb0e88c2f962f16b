"""assert_same_as_torch of penstock.testing: it passes what is the same, and says of a difference where it is."""

from __future__ import annotations

import itertools
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import TensorDataset
from torchvision import transforms as v1, tv_tensors

import penstock
from penstock.testing import assert_same_as_torch, same_as_torch
from penstock.testing.bitwise import difference
from penstock.testing.same_as_torch import words_of
from tests.data import Made, Stream, photo_files
from tests.same import nothing_drawn

CALLER: dict[str, Any] = {"worker_methods": (None,), "num_workers": (0,), "seed": None}


def sample(i: int) -> Any:
    return {"x": torch.arange(6.0).view(2, 3) + i, "more": [f"n{i}", i]}


def altered(alter: Callable[[int, Any], list[Any]]) -> Any:
    """Return a class of loaders in whose passes other batches come in the place of each one of torch's."""

    class Altered(penstock.DataLoader[Any]):
        def __iter__(self) -> Any:
            for number, batch in enumerate(super().__iter__()):
                yield from alter(number, batch)

    return Altered


def warning(number: int, batch: Any) -> list[Any]:
    warnings.warn("something is odd", RuntimeWarning, stacklevel=2)
    return [batch]


def element(number: int, batch: Any) -> list[Any]:
    if number == 1:
        batch["x"][3, 0, 2] = -1
    return [batch]


def text(number: int, batch: Any) -> list[Any]:
    names = tuple("n?" if name == "n9" else name for name in batch["more"][0])
    return [{**batch, "more": [names, batch["more"][1]]}]


def acting(act: Callable[[], Any]) -> Callable[[int, Any], list[Any]]:
    """Return what acts with the third batch, and changes none."""
    return lambda number, batch: [batch, act() if number == 2 else None][:1]


def raising() -> None:
    raise ValueError("nothing is here")


DIFFERENCES: dict[str, tuple[Callable[[int, Any], list[Any]], str]] = {
    "element": (
        element,
        "worker_method=None, num_workers=0: batch 1, sample 7: sample['x'][0, 2] is -1.0, and 9.0 with torch's",
    ),
    "text": (text, "batch 2, sample 9: sample['more'][0] is 'n?', and 'n9' with torch's loader"),
    "dtype": (
        lambda number, batch: [{**batch, "x": batch["x"].double()}],
        "batch 0, samples 0, 1, 2, 3: batch['x'] has dtype torch.float64, and torch.float32 with torch's",
    ),
    "strides": (
        lambda number, batch: [{**batch, "x": batch["x"].transpose(0, 1).contiguous().transpose(0, 1)}],
        "batch 0, samples 0, 1, 2, 3: batch['x'] has strides (3, 12, 1), and (6, 3, 1) with torch's loader",
    ),
    "container": (
        lambda number, batch: [{**batch, "more": tuple(batch["more"])}],
        "batch['more'] is a tuple, and a list with torch's loader",
    ),
    "keys": (
        lambda number, batch: [dict(reversed(batch.items()))],
        "batch has the keys ['more', 'x'], and ['x', 'more'] with torch's loader",
    ),
    "fewer": (lambda number, batch: [batch][number // 2 :], "there are 2 batches, and 3 with torch's loader"),
    "more": (lambda number, batch: [batch] * (1 + number // 2), "there are 4 batches, and 3 with torch's loader"),
    "raising": (
        acting(raising),
        "batch 2, samples 8, 9, 10: batch raises ValueError: nothing is here, and is a dict with torch's",
    ),
    "drawing": (
        acting(np.random.rand),
        "the pass leaves the global generators of numpy.random in other states than torch's loader",
    ),
    "warning": (warning, "warns RuntimeWarning: something is odd, RuntimeWarning: something is odd"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alter, words = DIFFERENCES[name]
    monkeypatch.setattr(same_as_torch, "DataLoader", altered(alter))
    with pytest.raises(AssertionError, match=re.escape(words)):
        assert_same_as_torch(Made(sample, 11), **CALLER)


def test_the_sample_is_named_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_as_torch, "DataLoader", altered(element))
    options: list[dict[str, Any]] = [
        {"shuffle": True}, {"samples": 8}, {"samples": [9, 8, 7, 6, 5, 4, 3, 2]},
        {"batch_sampler": [[5], [1, 2, 3, 4]]}, {"sampler": range(10, 2, -1)},
    ]  # fmt: skip
    for given in options:
        with pytest.raises(AssertionError) as caught:
            assert_same_as_torch(Made(sample, 11), **CALLER, **given)
        found = re.search(r"sample (\d+): sample\['x'\]\[0, 2\] is -1.0, and (\S+) with", str(caught.value))
        assert found is not None and float(found[2]) == int(found[1]) + 2


def test_the_same() -> None:
    with nothing_drawn():
        assert_same_as_torch(Made(sample, 11), shuffle=True, worker_invariant=True)
        assert_same_as_torch(TensorDataset(torch.arange(40.0)), samples=9)
        assert_same_as_torch(Stream(), samples=None, seed=None)
        assert_same_as_torch(Made(sample, 11), batch_size=None, **CALLER)
        assert_same_as_torch(Made(sample, 11), batch_sampler=[[1, 2], [10]], **CALLER)


def test_draws() -> None:
    """Draws of threads are theirs; those of all others are torch's, and the same for any workers with a seed."""
    assert_same_as_torch(Made(lambda i: (i, random.random(), torch.rand(1)), 11), worker_invariant=True)
    with pytest.raises(AssertionError, match=r"num_workers=2, seed=7: .* with num_workers=0"):
        assert_same_as_torch(Counting(), worker_methods=(None,), worker_invariant=True)


class Counting(Made):
    def __init__(self) -> None:
        super().__init__(self.counted, 11)
        self.calls = 0

    def counted(self, index: int) -> int:
        self.calls += 1
        return self.calls


def test_what_a_pass_changes_is_not_seen_by_the_next() -> None:
    dataset = Counting()
    assert_same_as_torch(dataset, num_workers=(0,))
    assert dataset.calls == 0


CALLS = itertools.count()  # shared by all copies of a dataset


def test_a_dataset_that_differs_from_itself() -> None:
    with pytest.raises(AssertionError, match="Two passes of torch's loader differ too"):
        assert_same_as_torch(Made(lambda index: next(CALLS), 3), **CALLER)


def test_a_dataset_that_threads_cannot_copy(tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with open(tmp_path / "file", "rb") as file:
        dataset = Made(lambda i: i + file.seek(0), 5)
        with pytest.raises(penstock.InvalidOption, match="cannot be copied"):
            assert_same_as_torch(dataset)
        assert_same_as_torch(dataset, worker_methods=(None,), seed=None)


def test_errors() -> None:
    assert_same_as_torch(Stream(6, lambda i: dict(enumerate("abcde"))[i], shared=False), seed=None)
    assert_same_as_torch(Made(lambda i: [][i], 5), worker_invariant=True)


def test_a_recognised_dataset_with_random_transforms(tmp_path: Any) -> None:
    """Without a seed the native core draws otherwise than torchvision, as the documentation says."""
    transform = v1.Compose([v1.RandomCrop(20), v1.ToTensor()])
    dataset = torchvision.datasets.ImageFolder(str(photo_files(tmp_path, 6, (30, 31))), transform)
    assert_same_as_torch(dataset, worker_invariant=True)


def test_words_of_errors() -> None:
    """Frames, errors before it and the notes of a loader are left out."""
    carried = (
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\nValueError: first\n\nDuring handling of the above exception, another exception '
        "occurred:\n\nTraceback (most recent call last):\n  File x\nKeyError: 'k'\nin __getitem__ of sample 9\n"
    )
    assert words_of(RuntimeError(carried)) == words_of(ValueError(carried.replace("ValueError: first\n", "")))
    assert words_of(ValueError("one\ntwo")) == "ValueError: one\ntwo"


@pytest.mark.parametrize(("option", "words"), [({"batch_size": -1}, "positive"), ({"batchsize": 2}, "batchsize")])
def test_options_that_no_loader_takes(option: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        assert_same_as_torch(list(range(9)), **option)


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


def boxes(form: str) -> Any:
    return tv_tensors.BoundingBoxes(torch.zeros(1, 4), format=form, canvas_size=(4, 4))


def test_difference_of_layouts() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(3, 2).t()
    image, noted = Image.new("L", (2, 2)), Image.new("L", (2, 2))
    noted.info["dpi"] = (72, 72)
    for one, other in ((a, b), (boxes("XYXY"), boxes("XYWH")), (Slotted(1), Slotted(1)), (image, noted)):
        assert difference(one, other) is None
    assert difference(Slotted(1), Slotted(2)) == (".x", None, "is 1, and 2")
    assert difference([a], [b], layout=True) == ("[0]", None, "has strides (3, 1), and (1, 2)")
    assert difference(image, noted, layout=True) == ("", None, "has info {}, and {'dpi': (72, 72)}")
    for one, other in ((a, torch.zeros(2, 3, requires_grad=True)), (boxes("XYXY"), boxes("XYWH"))):
        assert difference(one, other, layout=True) is not None
