"""What a loader says: errors of arguments, warnings at the line that called it, and explain()."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

import penstock
from tests.data import Made, Stream, photo_files, rows
from tests.values import stopped

TORCH: Any = torch.utils.data.DataLoader
OURS: Any = penstock.DataLoader
ROWS = TensorDataset(torch.arange(8.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_workers": "2"}, "num_workers must be an integer, or None for the default, not '2'"),
        ({"num_workers": 2.0}, "num_workers must be an integer, or None for the default, not 2.0"),
        ({"num_workers": [1]}, r"num_workers must be an integer, .* not \[1\]"),
        ({"timeout": "1"}, "timeout must be a number of seconds, not '1'"),
        ({"timeout": None}, "timeout must be a number of seconds, not None"),
        ({"num_workers": 1, "prefetch_factor": "2"}, "prefetch_factor must be an integer, .* not '2'"),
        ({"num_workers": 1, "prefetch_factor": 2.5}, "prefetch_factor must be an integer, .* not 2.5"),
        ({"batch_size": "4"}, "batch_size must be an int or None, which batches nothing, not '4' of type str"),
        ({"batch_size": 4.0}, "batch_size must be .* not 4.0 of type float"),
        ({"batch_size": np.int64(4)}, r"batch_size must be .* not np.int64\(4\) of type int64"),
    ],
)
def test_what_is_no_number(options: dict[str, Any], words: str) -> None:
    kind: Any = TypeError  # of torch's iterator, where its loader takes it: no workers are started for that
    try:
        TORCH(ROWS, **options)
    except Exception as error:
        kind = type(error)
    with pytest.raises(kind, match=words):
        OURS(ROWS, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": True}, {"num_workers": np.int64(1)}, {"num_workers": torch.tensor(1)}, {"batch_size": None},
        {"num_workers": 1, "timeout": 5.5}, {"num_workers": 1, "timeout": np.float32(5)},
        {"num_workers": 1, "prefetch_factor": np.int64(2)},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_a_number(options: dict[str, Any]) -> None:
    assert len(list(OURS(ROWS, **options))) == len(list(TORCH(ROWS, **options)))


def test_a_shuffle_of_nothing(tmp_path: Path) -> None:
    folder = penstock.TensorFolder(tmp_path, [])
    for dataset, name in ((folder, "TensorFolder has no samples"), (Made(size=0), "Made has no samples")):
        with pytest.raises(ValueError, match="num_samples=0"):
            TORCH(dataset, shuffle=True)
        for options in ({}, {"seed": 3}):
            with pytest.raises(ValueError, match="shuffle=True needs one at least") as caught:
                OURS(dataset, shuffle=True, **options)
            assert isinstance(caught.value, penstock.InvalidOption) and name in str(caught.value)
        assert list(OURS(dataset)) == list(TORCH(dataset)) == []
    assert list(OURS(Stream(0))) == []


arrays = partial(rows, 8)
samples = partial(Made, float, 8)


def _warned(call: Any, *, here: bool = True) -> list[str]:
    """Return what a call, a lambda of one line, warned of; all warnings point at that line (here)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # Python 3.12
        call()
    places = {(one.filename, one.lineno) for one in caught}
    assert not here or places <= {(__file__, call.__code__.co_firstlineno)}
    return [str(one.message) for one in caught]


needs_no_accelerator = pytest.mark.skipif(torch.accelerator.is_available(), reason="the warning is of its absence")


@needs_no_accelerator
@pytest.mark.parametrize("dataset", [arrays, samples])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_that_is_not_there(dataset: Callable[[], Any], workers: int) -> None:
    loader = penstock.DataLoader(dataset(), num_workers=workers, device="cuda")
    (message,) = _warned(lambda: list(loader))
    assert "no cuda device is available" in message
    batches = penstock.prefetch([torch.ones(1)])
    assert len(_warned(lambda: list(batches))) == 1


@needs_no_accelerator
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_pinning_without_an_accelerator(options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(arrays(), pin_memory=True, num_workers=2, **options)
    for _ in range(2):
        assert all("no accelerator is found" in message for message in _warned(lambda: next(iter(loader))))
    out_of_order = penstock.DataLoader(arrays(), pin_memory=True, seed=1)
    assert len(_warned(lambda: out_of_order.batch_at(0, 0))) == 1


def test_too_many_processes_are_warned_of_by_torch() -> None:
    messages = _warned(lambda: penstock.DataLoader(samples(), num_workers=5000), here=False)
    assert "worker processes in total" in messages[0]


def test_far_more_native_threads_than_cpus() -> None:
    cpus = len(os.sched_getaffinity(0))
    (message,) = _warned(lambda: penstock.DataLoader(arrays(), num_workers=1000 * cpus))
    assert message.startswith(f"num_workers={1000 * cpus}: native threads") and "Leave num_workers= out" in message
    assert not _warned(lambda: penstock.DataLoader(arrays(), num_workers=4 * cpus))
    assert not _warned(lambda: penstock.DataLoader(samples(), num_workers=1000, worker_method="thread"))


def test_a_stream_that_is_gone_through_again() -> None:
    _, state, _ = stopped(penstock.DataLoader(Stream(8), batch_size=2), 1)
    loader = penstock.DataLoader(Stream(8), batch_size=2)
    (message,) = _warned(lambda: loader.load_state_dict(state))
    assert "1 batch will be read and dropped" in message


class Own(penstock.DataLoader[Any]):
    """A loader of a program's own class."""


@pytest.mark.parametrize("kind", [penstock.DataLoader, Own])
def test_a_damaged_manifest(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": broken\n', encoding="utf-8")
    (message,) = _warned(lambda: kind(arrays(), on_error=penstock.Replace(manifest=path)))
    assert "damaged lines" in message


def words(loader: Any) -> list[tuple[str, str]]:
    lines = loader.explain().splitlines()
    return [(line.split()[0], line) for line in lines]


def numbers(**attributes: Any) -> Made:
    """Return a dataset that has these attributes, and no images."""
    made = Made(float, 8)
    vars(made).update(attributes)
    return made


@pytest.mark.parametrize("method", [None, "thread", "process", "auto"])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_could_be_is_advice_at_the_end(method: str | None, workers: int) -> None:
    options: dict[str, Any] = {"worker_method": method, "num_workers": workers}
    loader: Any = penstock.DataLoader(numbers(), 4, **options)
    list(loader)
    kinds, lines = zip(*words(loader), strict=True)
    assert "native" not in kinds and "because" in kinds and kinds.index("advice") == len(kinds) - 1
    auto = "" if method else " or worker_method='auto'"
    assert lines[-1] == f"advice   Python reads it: more workers (num_workers=){auto} may be faster (docs/workers.md)"


class Pairs(Dataset[Any]):
    """Photos with masks: two files a sample."""

    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index]).convert("RGB")
        return np.array(image), np.array(Image.open(self.files[index]))


class Photos(Pairs):
    def __getitem__(self, index: int) -> Any:
        return np.array(Image.open(self.files[index]).convert("RGB"))


def mixed(samples: Any) -> Any:
    return default_collate(samples)


@pytest.mark.parametrize("make", [Pairs, Photos])
def test_only_who_reads_one_file_a_sample_is_advised_to_have_it_read(tmp_path: Path, make: Any) -> None:
    folder = photo_files(tmp_path, 4, (8, 9), ("jpg",))
    dataset = make([str(path) for path in sorted(folder.rglob("*.jpg"))])
    loader = penstock.DataLoader(dataset, 2, num_workers=1)
    list(loader)
    assert ("penstock.Images" in loader.explain()) == (make is Photos)


def test_nothing_is_advised_where_the_batches_are_filled_natively(tmp_path: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    photos = penstock.ImageFolder(photo_files(tmp_path, 4, (8, 9), ("jpg",)), transforms.ToTensor())
    text = penstock.DataLoader(photos, 2, collate_fn=mixed, num_workers=2).explain()
    assert "native   each batch in one piece" in text and "advice" not in text


def test_who_is_not_advised() -> None:
    assert "worker_method" not in penstock.DataLoader(Stream(8), num_workers=2).explain()
    assert "advice" not in penstock.DataLoader(TensorDataset(torch.arange(8))).explain()


def test_only_a_dataset_that_shows_a_compose_gets_a_line_on_it() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    v2 = pytest.importorskip("torchvision.transforms.v2")

    def line(dataset: Any, **options: Any) -> list[str]:
        return [line for kind, line in words(penstock.DataLoader(dataset, **options)) if kind == "native"]

    compose = transforms.Compose([transforms.ToTensor()])
    assert line(numbers()) == line(numbers(transform=transforms.ToTensor())) == []
    (shown,) = line(numbers(transform=compose))
    assert shown.startswith("native   the known transforms of the Compose at .transform, when the dataset calls it")
    held = numbers(aug=v2.Compose([v2.ToImage()]), mask=compose)
    datasets: list[Any] = [held, Subset(Subset(held, range(4)), range(2)), ConcatDataset([numbers(), held])]
    for dataset in datasets:
        assert "the Compose at .aug and .mask," in line(dataset)[0]
    assert line(numbers(transform=compose), worker_method="process") == []
