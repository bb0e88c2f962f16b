"""Calls that a dataset's own code makes, counted for its loader: answered natively, or refused and why."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from PIL import Image

import penstock
from penstock import call_counts
from penstock.call_counts import MOST_REASONS, OTHER_REASONS, CallCounts, CallMeter, RefusedCalls, this_thread
from penstock.errors import WorkerDied
from penstock.hooks.calls import example_of, natively
from tests.executors_under_test import options

SIZE = 12
WAYS = options(
    "caller", "caller, seed", "caller, fed", "threads, 2", "threads, caller", "processes, 2", "processes, persistent",
    "processes, out of order",
)  # fmt: skip
ARCHIVE = "an .npz archive, whose arrays numpy reads when they are asked for"


class Files(tud.Dataset[Any]):
    """Loads a tensor, and an array or, for every third sample, an archive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        values = torch.load(f"{self.folder}/{index}.pt")
        found = np.load(self.folder / "0.npy") if index % 3 else np.load(f"{self.folder}/0.npz")["x"]
        return values, found


class Stream(tud.IterableDataset[Any]):
    """The same samples, one after the other."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def __iter__(self) -> Iterator[Any]:
        return (self.files[index] for index in range(SIZE))


class Dying(Files):
    """Ends its worker process at the sixth sample, behind the load."""

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for index in range(SIZE):
        torch.save(torch.full((4,), float(index)), root / f"{index}.pt")
    np.save(root / "0.npy", np.zeros(4))
    np.savez(root / "0.npz", x=np.zeros(4))
    return root


def go_through(loader: Any, epochs: int = 1) -> Any:
    for _ in range(epochs):
        for _ in loader:
            pass
    return loader


def lines_of(loader: Any) -> list[str]:
    return [line for line in loader.explain().splitlines() if line.startswith("calls")]


def counts_of(epochs: int, folder: Path) -> dict[str, CallCounts]:
    example = f"{folder}/0.npz"
    archives = RefusedCalls(4 * epochs, example if len(example) <= 40 else f"...{example[-37:]}")
    return {
        "numpy.load": CallCounts(8 * epochs, {ARCHIVE: archives}),
        "torch.load": CallCounts(SIZE * epochs),
    }


@WAYS
def test_calls_are_counted_in_every_kind_of_worker(folder: Path, options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(Files(folder), 4, **options)
    assert loader.stats().calls == {} and lines_of(loader) == []
    for epochs in (1, 2):
        go_through(loader)
        assert loader.stats().calls == counts_of(epochs, folder)
    example = counts_of(1, folder)["numpy.load"].refused[ARCHIVE].example
    assert lines_of(loader) == [
        f'calls    numpy.load: 16 answered natively; 8 numpy\'s own ("{example}": {ARCHIVE})',
        "calls    torch.load: 24 answered natively",
    ]


@options("caller", "threads, 2", "processes, 1")
def test_an_iterable_dataset(folder: Path, options: dict[str, Any]) -> None:
    made = {**options, "num_workers": min(1, options["num_workers"])}  # each worker goes through all of it
    loader = go_through(penstock.DataLoader(Stream(Files(folder)), 4, **made))
    assert loader.stats().calls == counts_of(1, folder)


def test_a_spawned_worker(folder: Path) -> None:
    loader = go_through(penstock.DataLoader(Files(folder), 4, num_workers=1, multiprocessing_context="spawn"))
    assert loader.stats().calls == counts_of(1, folder)


def test_nothing_is_counted_where_nothing_is_answered(folder: Path) -> None:
    loader = go_through(penstock.DataLoader(Files(folder), 4, num_workers=1, worker_method="process"))
    assert loader.stats().calls == {}


def test_calls_outside_of_workers_are_not_counted(folder: Path) -> None:
    dataset = Files(folder)
    loader = penstock.DataLoader(dataset, 4)
    for _ in loader:
        dataset[0]
    dataset[0]
    assert loader.stats().calls == counts_of(1, folder)
    assert this_thread.sink is None


@options("caller", "threads, 2", "processes, 2")
def test_each_loader_has_its_own_counts(folder: Path, options: dict[str, Any]) -> None:
    one, other = (penstock.DataLoader(Files(folder), 4, **options) for _ in range(2))
    for _ in zip(one, other, strict=True):
        pass
    go_through(other)
    assert one.stats().calls == counts_of(1, folder)
    assert other.stats().calls == counts_of(2, folder)


def test_a_loader_in_a_dataset_counts_for_itself(folder: Path) -> None:
    inner = penstock.DataLoader(Files(folder), 4)

    class Outer(tud.Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            go_through(inner)
            torch.load(f"{folder}/0.pt")
            return index

    outer = go_through(penstock.DataLoader(Outer()))
    assert outer.stats().calls == {"torch.load": CallCounts(2)}
    assert inner.stats().calls == counts_of(2, folder)


def test_a_worker_that_dies_leaves_the_counts_of_its_batches(folder: Path) -> None:
    loader = penstock.DataLoader(Dying(folder), 4, num_workers=1)
    with pytest.raises(WorkerDied):
        go_through(loader)
    assert loader.stats().calls["torch.load"].answered == 4


def test_a_copy_counts_anew(folder: Path) -> None:
    loader = go_through(penstock.DataLoader(Files(folder), 4))
    for twin in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert twin.stats().calls == {}


def test_transforms_count_by_image() -> None:
    transforms = pytest.importorskip("torchvision.transforms")

    class Images(tud.Dataset[Any]):
        def __init__(self, *rest: Any) -> None:
            self.transform = transforms.Compose([transforms.Resize(8), *rest, transforms.ToTensor()])

        def __len__(self) -> int:
            return SIZE

        def __getitem__(self, index: int) -> Any:
            return self.transform(Image.new("RGB" if index else "CMYK", (16, 16)))[:3]

    name = "torchvision transforms"
    another_mode = "the image is of mode CMYK"
    for made in ({}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}):
        plain = go_through(penstock.DataLoader(Images(), 4, **made))
        assert plain.stats().calls == {name: CallCounts(11, {another_mode: RefusedCalls(1, "")})}
        assert lines_of(plain) == [f"calls    {name}: 11 answered natively; 1 torchvision's own ({another_mode})"]
        part = go_through(penstock.DataLoader(Images(transforms.ElasticTransform(sigma=1.0)), 4, **made))
        jitter = RefusedCalls(11, "")
        assert part.stats().calls[name] == CallCounts(
            11, {"ElasticTransform has no native form": jitter, another_mode: RefusedCalls(1, "")}
        )


def test_a_compose_that_cannot_be_followed_is_counted() -> None:
    transforms = pytest.importorskip("torchvision.transforms")

    class Changing(tud.Dataset[Any]):
        def __len__(self) -> int:
            return SIZE

        def __getitem__(self, index: int) -> Any:
            self.transform = transforms.Compose([transforms.Resize(8), transforms.ToTensor()])
            handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
            try:
                return self.transform(Image.new("RGB", (16, 16)))
            finally:
                handle.remove()

    loader = go_through(penstock.DataLoader(Changing(), 4))
    why = "the Compose, or what its transforms call, was changed"
    assert loader.stats().calls == {"torchvision transforms": CallCounts(0, {why: RefusedCalls(SIZE, "")})}


def test_names_of_owners_and_many_reasons() -> None:
    loader: Any = penstock.DataLoader([1])  # type: ignore[arg-type]
    with natively(loader._executors.counters.meter.calls):
        for number in range(6):
            for _ in range(number + 1):
                call_counts.refused("PIL.Image.open", f"reason {number}", "" if number else "x" * 100)
    assert lines_of(loader) == [
        "calls    PIL.Image.open: 0 answered natively; 6 Pillow's own (reason 5); 5 Pillow's own (reason 4); "
        "4 Pillow's own (reason 3); 3 Pillow's own (reason 2); 3 more Pillow's own"
    ]
    assert loader.stats().calls["PIL.Image.open"].refused["reason 0"].example == "..." + "x" * 37


def test_examples_are_paths(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert example_of("a/b") == "a/b" and example_of(Path("a/b")) == "a/b"
    assert example_of(3) == ""
    with (tmp_path / "a").open("rb") as file:
        assert example_of(file) == str(tmp_path / "a")


def test_a_meter_keeps_so_many_reasons() -> None:
    meter = CallMeter()
    sink = meter.of_this_thread()
    for number in range(3 * MOST_REASONS):
        sink.count("f", str(number))
        sink.count("g", "one")
    counts = meter.counts()
    assert len(counts["f"].refused) == MOST_REASONS + 1
    assert counts["f"].refused[OTHER_REASONS].calls == 2 * MOST_REASONS
    assert counts["g"].refused == {"one": RefusedCalls(3 * MOST_REASONS, "")}


def unchanged(image: Any) -> Any:
    return image


@options("caller", "threads, 2", "processes, 2")
def test_the_rest_of_a_folders_transform_counts(tmp_path: Path, options: dict[str, Any]) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    (tmp_path / "cats").mkdir()
    for number in range(SIZE):
        Image.new("RGB", (20, 16)).save(tmp_path / "cats" / f"{number}.jpg")
    transform = transforms.Compose([transforms.CenterCrop(16), unchanged, transforms.Resize(8), transforms.ToTensor()])
    loader = go_through(penstock.DataLoader(penstock.ImageFolder(tmp_path, transform), 4, **options))
    calls = loader.stats().calls
    assert calls["PIL.Image.convert"] == CallCounts(SIZE, {})
    assert calls["torchvision transforms"].answered == SIZE
