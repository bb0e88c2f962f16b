"""Row 6: corrupt samples: bad JPEGs and tensors, wrong shapes and dtypes, NaN labels, classes out of range; one in 100.

Each is an error at its batch, which the error names; with `on_error=` exactly the bad samples are replaced, in batches
of the same size and order on each rank, by the same samples in any worker; `explain()` counts them, the manifest lists
them, and one more than `max_share` ends the run.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import penstock
from tests.data import Made, Numbers, in_memory, tensor_files
from tests.faults.conftest import Count
from tests.same import assert_same

BATCH = 8
NATIVE: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 2}]
PYTHON: list[dict[str, Any]] = [*NATIVE, {"num_workers": 2, "worker_method": "thread"}]


class Kind(NamedTuple):
    """Samples that hold their number, some of which are corrupt."""

    dataset: Any
    names: list[str]
    """Of the samples, as the manifest has them."""
    ways: list[dict[str, Any]]
    """Options with which they are read."""


def photos(root: Path, size: int, bad: list[int]) -> Kind:
    paths = [root / f"{number}.jpg" for number in range(size)]
    Image.new("RGB", (8, 8)).save(paths[0])
    whole = paths[0].read_bytes()
    for path in paths:
        path.write_bytes(whole)
    for number, damaged in zip(bad, [b"", b"no image", whole[: len(whole) // 2], None] * size, strict=False):
        paths[number].unlink() if damaged is None else paths[number].write_bytes(damaged)
    dataset = penstock.Images(paths, range(size), v2.PILToTensor())
    return Kind(dataset, list(map(str, paths)), NATIVE)


def tensors(root: Path, size: int, bad: list[int]) -> Kind:
    tensor_files(root, size, (2, 3), "{:05}")
    names = [f"{number:05}" for number in range(size)]
    labels = {name: number for number, name in enumerate(names) if number not in bad[::5]}
    for number, damaged in zip(
        bad, [None, torch.zeros(2, 4), torch.zeros(2, 3).double(), b"", b"PK"] * size, strict=False
    ):
        path = root / f"{names[number]}.pt"
        if isinstance(damaged, torch.Tensor):
            torch.save(damaged, path)
        elif damaged is not None:
            path.write_bytes(damaged)
    return Kind(penstock.TensorFolder(root, names, labels), names, NATIVE)


def labels(root: Path, size: int, bad: list[int]) -> Kind:
    """Labels that the user's function of them refuses."""
    dataset = in_memory("CIFAR10", v2.PILToTensor(), size)
    classes = list(range(size))
    dataset.targets = list(map(float, classes))
    for number, label in zip(bad, [float("nan"), float(size)] * size, strict=False):
        dataset.targets[number] = label
    dataset.target_transform = lambda label: classes[int(label)]
    return Kind(dataset, list(map(str, classes)), NATIVE)


def checked(root: Path, size: int, bad: list[int]) -> Kind:
    """A dataset that checks its samples itself."""
    return Kind(Numbers(bad, size), list(map(str, range(size))), PYTHON)


def numbers(batch: Any) -> list[int]:
    """Return the numbers of the samples in a batch: their labels."""
    return [int(number) for number in (batch[-1] if isinstance(batch, list) else batch)]


@pytest.fixture(params=[photos, tensors, labels, checked], ids=lambda make: make.__name__)
def made(request: pytest.FixtureRequest, tmp_path: Path, tries: Count) -> tuple[Kind, set[int]]:
    make: Callable[[Path, int, list[int]], Kind] = request.param
    count = tries(5, 100)
    bad = random.Random(6).sample(range(100 * count), count)
    (tmp_path / "samples").mkdir()
    return make(tmp_path / "samples", 100 * count, bad), set(bad)


@pytest.mark.native
@pytest.mark.timeout(600)
def test_replaced(made: tuple[Kind, set[int]], tmp_path: Path) -> None:
    (dataset, names, ways), bad = made
    first: list[Any] = []
    for options in ways:
        manifest, found = tmp_path / f"{ways.index(options)}.jsonl", list[Any]()
        for rank in range(2):
            order: dict[str, Any] = {"shuffle": True, "seed": 6, "shard": (rank, 2)}
            clean = penstock.DataLoader(Made(int, len(names)), BATCH, num_workers=0, **order)
            on_error = penstock.Replace(0.01, manifest)
            loader = penstock.DataLoader(dataset, BATCH, on_error=on_error, **order, **options)
            for _ in range(2):
                found += (batches := list(loader))
                for got, wanted in zip(map(numbers, batches), map(numbers, clean), strict=True):
                    assert len(got) == len(wanted)
                    assert bad.isdisjoint(got)
                    assert [a for a, b in zip(got, wanted, strict=True) if b not in bad] == [
                        b for b in wanted if b not in bad
                    ]
        assert f"bad      {len(bad)} bad samples, replaced by good ones" in loader.explain()
        listed = [json.loads(line)["id"] for line in manifest.read_text().splitlines()]
        assert sorted(listed) == sorted(names[number] for number in bad)
        first = first or found
        assert_same(found, first)
        fewer = penstock.Replace((len(bad) - 1) / len(names))
        with pytest.raises(penstock.TooManyBadSamples, match=f"{len(bad)} of "):
            list(penstock.DataLoader(dataset, BATCH, on_error=fewer, **options))


@pytest.mark.native
@pytest.mark.timeout(600)
def test_raised(made: tuple[Kind, set[int]]) -> None:
    (dataset, names, ways), bad = made
    for options in ways:
        batches = iter(penstock.DataLoader(dataset, BATCH, **options))
        for begin in range(0, len(names), BATCH):
            wanted = list(range(begin, min(begin + BATCH, len(names))))
            here = [names[number] for number in wanted if number in bad]
            if not here:
                assert numbers(next(batches)) == wanted
                continue
            with pytest.raises(Exception) as raised:
                next(batches)
            text = "".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
            assert any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in here), text
        assert next(batches, None) is None


@pytest.mark.parametrize("on_error", ["raise", "replace"])
@pytest.mark.parametrize("options", PYTHON, ids=str)
def test_a_shape_that_the_dataset_does_not_check(options: dict[str, Any], on_error: Any) -> None:
    """Python's samples fit each other or not: no one of them is bad. The batch's error names where they differ."""
    dataset = Made(lambda index: torch.zeros(3 if index != 13 else 4))
    batches = iter(penstock.DataLoader(dataset, BATCH, on_error=on_error, **options))
    next(batches)
    with pytest.raises(RuntimeError) as raised:
        next(batches)
    assert "sample 13 has shape (4,)" in "".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert len(next(batches)) == 7
