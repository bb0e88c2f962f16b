"""The same batches as torch's own loader, for every recognised dataset and the options of DataLoader."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from tests.commands import command
from tests.data import Doubling, Made, in_memory, photo_files, rows, tensor_files
from tests.resources import run_script
from tests.same import assert_same, assert_same_batches

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def tutorial(root: Path, list_ids: list[str], labels: dict[str, Any] | None) -> Made:
    """The __getitem__ of the tutorial, word for word."""

    def get(index: int) -> Any:
        name = list_ids[index]
        x = torch.load(root / f"{name}.pt", weights_only=True)
        return x if labels is None else (x, labels[name])

    return Made(get, len(list_ids))


def assert_as_torch(ours: Any, theirs: Any = None, *, workers: int | None = 2, **options: Any) -> Any:
    """Assert that our loader gives the batches of torch's, natively; return it."""
    loader: Any = penstock.DataLoader(ours, num_workers=workers, **options)
    assert_same_batches(loader, tud.DataLoader(ours if theirs is None else theirs, **options))
    return loader


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tensor_files(tmp_path_factory.mktemp("tensors"), 37, (3, 5, 4), "id-{}")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    forms = ("4:4:4", "upper case", "grey", "png", "CMYK", "progressive")
    return photo_files(tmp_path_factory.mktemp("photos"), 23, (40, 90), forms)


IDS = [f"id-{i}" for i in range(37)]
NUMBERED = {name: i for i, name in enumerate(IDS)}
LABELS: dict[str, Any] = {
    "int": NUMBERED,
    "float": {name: i / 3 for name, i in NUMBERED.items()},
    "str": {name: str(i) for name, i in NUMBERED.items()},
    "array": {name: np.arange(i % 2, i % 2 + 3) for name, i in NUMBERED.items()},
    "none": None,
}


@pytest.mark.parametrize("workers", [0, 1, 2, 8])
@pytest.mark.parametrize("labels", LABELS)
def test_tensor_folder(tensors: Path, workers: int, labels: str) -> None:
    ours = penstock.TensorFolder(tensors, IDS, LABELS[labels])
    assert_as_torch(ours, tutorial(tensors, IDS, LABELS[labels]), batch_size=8, workers=workers)


DENSE: dict[str, Any] = {
    "transposed": lambda x: x.transpose(0, 2),
    "strided view": lambda x: x[:, 1:, ::2],
    "expanded": lambda x: x[1].expand(3, 5, 4),
    "bfloat16": lambda x: x.to(torch.bfloat16),
    "bool": lambda x: x > 0,
    "complex": lambda x: x.to(torch.complex64) * 1j,
    "conjugate": lambda x: x.to(torch.complex64).conj(),
    "uint16": lambda x: x.to(torch.uint16),
    "0-d": lambda x: x[0, 0, 0],
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("name", DENSE)
def test_any_dense_tensor(tmp_path: Path, name: str) -> None:
    for i in range(5):
        torch.save(DENSE[name](torch.arange(60.0).view(3, 5, 4) + i), tmp_path / f"{i}.pt")
    assert_as_torch(penstock.TensorFolder(tmp_path), tutorial(tmp_path, list("01234"), None), batch_size=2)


def test_files_that_only_torch_reads(tmp_path: Path) -> None:
    samples = [torch.arange(4.0) + i for i in range(6)]
    for i, sample in enumerate(samples):
        torch.save(sample, tmp_path / f"{i}.pt", _use_new_zipfile_serialization=i % 2 == 0)
    loader = penstock.DataLoader(penstock.TensorFolder(tmp_path), batch_size=6, num_workers=2)
    assert torch.equal(next(iter(loader)), torch.stack(samples))
    assert sum(loader.stats().read_by_python.values()) == 3
    assert "3 samples read by Pillow, torch.load or numpy" in loader.explain()


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays(workers: int, tmp_path: Path) -> None:
    images = np.random.default_rng(2).integers(0, 256, (41, 3, 6, 5), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    scores = torch.randn(41, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    dataset = penstock.Arrays(tmp_path / "images.npy", scores, np.arange(41))
    reference = tud.TensorDataset(torch.from_numpy(images), scores, torch.arange(41))
    assert len(dataset) == 41
    assert_same(dataset[-1], reference[-1])
    assert_as_torch(dataset, reference, workers=workers, batch_size=7, drop_last=True)


def test_subset_and_concat(tensors: Path) -> None:
    def combine(dataset: Any) -> Any:
        parts = [tud.Subset(dataset, [3, -1, 5, 5]), dataset, tud.Subset(tud.Subset(dataset, range(20)), [0, 19])]
        return tud.ConcatDataset(parts)

    ours, plain = penstock.TensorFolder(tensors, IDS, NUMBERED), tutorial(tensors, IDS, NUMBERED)
    assert_as_torch(combine(ours), combine(plain), batch_size=5)


def test_random_split_shuffled(tensors: Path) -> None:
    folder = penstock.TensorFolder(tensors, IDS, NUMBERED)
    train, _ = tud.random_split(folder, [30, 7], generator=torch.Generator().manual_seed(1))
    torch.manual_seed(5)
    ours = list(penstock.DataLoader(train, batch_size=4, shuffle=True, num_workers=2))
    torch.manual_seed(5)
    assert_same(ours, list(tud.DataLoader(train, batch_size=4, shuffle=True)))


DETERMINISTIC = {
    "v1": v1.Compose([v1.Resize(32), v1.CenterCrop(28), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "v1 bytes": v1.Compose([v1.Resize((30, 20), v1.InterpolationMode.BICUBIC), v1.PILToTensor()]),
    "v2": v2.Compose(
        [v2.Resize(32), v2.CenterCrop(28), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    ),
    "grey": v1.Compose([v1.Grayscale(), v1.Resize((17, 19)), v1.ToTensor()]),
    "padded": v1.Compose([v1.CenterCrop(100), v1.Pad(3, padding_mode="reflect"), v1.PILToTensor()]),
    "half": v1.Compose([v1.CenterCrop(24), v1.ToTensor(), v1.ConvertImageDtype(torch.float16)]),
}


@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder])
def test_image_folder(photos: Path, name: str, kind: Any) -> None:
    theirs, ours = (one(str(photos), DETERMINISTIC[name]) for one in (torchvision.datasets.ImageFolder, kind))
    by_python = assert_as_torch(ours, theirs, batch_size=6).stats().read_by_python
    assert sum(by_python.values()) == 8, by_python  # the PNG and CMYK files


def test_image_folder_target_transform(photos: Path) -> None:
    kind = torchvision.datasets.ImageFolder
    assert_as_torch(kind(str(photos), DETERMINISTIC["v1"], target_transform=lambda y: f"class {y}"), batch_size=5)


WITH_LAMBDA = v1.Compose([v1.Resize((8, 8)), v1.Lambda(lambda image: image), v1.ToTensor()])


def test_num_workers_none_follows_the_plan(photos: Path) -> None:
    native = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
    dataset = torchvision.datasets.ImageFolder(str(photos), native)
    loader = penstock.DataLoader(dataset, batch_size=6)
    said = re.search(r"(\d+) CPUs? usable", command("doctor", code=None))
    assert said is not None and loader.num_workers == int(said[1])
    dataset.transform = WITH_LAMBDA
    next(iter(loader))
    assert loader.num_workers == 0  # torch's default, where torch reads
    assert "in the caller's thread" in loader.explain()
    dataset.transform = native
    next(iter(loader))
    assert loader.num_workers == int(said[1])


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST"])
@pytest.mark.parametrize("tail", [v1.ToTensor(), v1.PILToTensor()], ids=["float", "bytes"])
def test_images_in_memory(name: str, tail: Any) -> None:
    planar = name != "CIFAR100"
    for steps in ([v1.Pad((2, 0, 1, 3), fill=7), v1.CenterCrop(30)], [v1.Pad(2, padding_mode="edge")], [v1.Resize(40)]):
        dataset = in_memory(name, v1.Compose([*steps, tail]), planar=planar)
        for workers in (0, 2):
            assert_as_torch(dataset, workers=workers, batch_size=16)


def test_planar_images_with_draws_and_changes() -> None:
    dataset = in_memory("CIFAR10", v1.Compose([v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor()]))
    ways: list[Any] = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "process"}]
    first, *others = [list(penstock.DataLoader(dataset, batch_size=16, seed=3, **way)) for way in ways]
    assert_same(others, [first] * 2)
    dataset.transform = v1.ToTensor()
    loader = assert_as_torch(dataset, workers=None, batch_size=16)
    dataset.data[:] = 255 - dataset.data
    dataset.targets = dataset.targets[::-1]
    assert_same_batches(loader, tud.DataLoader(dataset, batch_size=16))
    dataset.data = dataset.data[:9]
    assert "CIFAR10.targets: they are not as many as the images" in loader.explain()


def test_attributes_are_torchs() -> None:
    options: Any = {"batch_size": 4, "shuffle": True, "num_workers": 2, "drop_last": True, "pin_memory": False}
    ours = penstock.DataLoader(rows(), **options)
    for name, value in vars(tud.DataLoader(rows(), **options)).items():
        held = getattr(ours, name)
        assert type(held) is type(value), name
        assert held == value or not isinstance(value, (int, float, str, bool, type(None))), name
    assert isinstance(ours, tud.DataLoader)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        ours.batch_size = 8


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (dict(collate_fn=lambda samples: samples), "collate_fn"),
        (dict(batch_size=None), "batch_size=None"),
        (dict(worker_init_fn=print, num_workers=0), "worker_init_fn"),
    ],
)
def test_other_options_are_torchs(options: dict[str, Any], what: str) -> None:
    ours = penstock.DataLoader(rows(9), **options)
    assert f"because  {what}" in ours.explain()
    assert_same(list(ours), list(tud.DataLoader(rows(9), **options)))


class Rebuilt(penstock.TensorFolder):
    def __getitem__(self, index: int) -> Any:
        return index


def test_other_datasets_are_torchs(tensors: Path) -> None:
    for dataset, what in ((Made(size=10), "Made"), (Rebuilt(tensors), "a subclass of TensorFolder")):
        ours = penstock.DataLoader(dataset, batch_size=4)
        assert ours.num_workers == 0 and what in ours.explain()
        assert_same(list(ours), list(tud.DataLoader(dataset, batch_size=4)))
    ours = penstock.DataLoader(Made(size=10), batch_size=4, num_workers=2)
    assert_same(list(ours), list(tud.DataLoader(Made(size=10), batch_size=4, num_workers=2)))


def test_loader_pickles(tensors: Path) -> None:
    folder = penstock.TensorFolder(tensors, IDS, NUMBERED)
    copy = pickle.loads(pickle.dumps(folder))
    assert (len(copy), copy.ids) == (37, folder.ids)
    assert_same(list(copy[4]), list(folder[4]))
    assert pickle.loads(pickle.dumps(penstock.Arrays(np.arange(5))))[3][0] == 3


def test_more_threads_than_the_system_has() -> None:
    script = """
import resource, warnings
import numpy as np, penstock
from penstock import Arrays, DataLoader  # import torch, which takes room
warnings.simplefilter("ignore")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)  # room for the stacks of some hundred threads
loader = penstock.DataLoader(penstock.Arrays(np.arange(10_000)), 10_000, num_workers=5000)
try:
    iter(loader)
except penstock.InvalidOption as error:
    print(error)
print(sum(int(x) for (x,) in penstock.DataLoader(penstock.Arrays(np.arange(9)), num_workers=2)))
"""
    done = run_script(script)
    assert done.stdout.startswith("num_workers=5000: the system cannot start so many threads"), done.stderr
    assert done.stdout.endswith("\n36\n")


@pytest.mark.parametrize(
    "combine",
    [
        lambda ours, theirs: [ours, theirs],
        lambda ours, theirs: [theirs, ours],
        lambda ours, theirs: [tud.Subset(theirs, [5, 2]), ours, theirs],
    ],
)
def test_torchvisions_folder_beside_ours(tmp_path: Path, combine: Any) -> None:
    """One has a table of its files, the other names those of each batch."""
    photo_files(tmp_path, 8, (20, 21))
    kinds: list[Any] = [penstock.ImageFolder, torchvision.datasets.ImageFolder]
    dataset: Any = tud.ConcatDataset(combine(*(kind(str(tmp_path), v1.ToTensor()) for kind in kinds)))
    order = np.random.default_rng(1).permutation(len(dataset)).tolist()
    assert_as_torch(dataset, batch_sampler=[order[begin : begin + 5] for begin in range(0, len(order), 5)])


def of_rows(kind: Any) -> Any:
    return lambda: kind(torch.arange(10.0))


def subset() -> Any:
    return tud.Subset(tud.TensorDataset(torch.arange(20.0)), [*range(20)])


def put(owner: Any, **attributes: Any) -> None:
    for name, value in attributes.items():
        object.__setattr__(owner, name, value)


#: A dataset, and what a program does to it.
CHANGES: dict[str, Any] = {
    "exchanged": (of_rows(tud.TensorDataset), lambda rows: put(rows, tensors=(torch.arange(50.0, 60.0),))),
    "exchanged by others": (of_rows(tud.TensorDataset), lambda rows: put(rows, tensors=(torch.ones(10, 2),) * 2)),
    "exchanged, of a class": (of_rows(Doubling), lambda rows: put(rows, tensors=(torch.arange(50.0, 60.0),))),
    "written": (of_rows(tud.TensorDataset), lambda rows: rows.tensors[0].add_(100)),
    "of a gradient": (of_rows(tud.TensorDataset), lambda rows: rows.tensors[0].requires_grad_()),
    "of another class": (of_rows(tud.TensorDataset), lambda rows: put(rows, __class__=Doubling)),
    "of a known class": (of_rows(Doubling), lambda rows: put(rows, __class__=tud.TensorDataset)),
    "read otherwise": (
        of_rows(tud.TensorDataset),
        lambda rows: put(rows, __getitems__=lambda some: [(i,) for i in some]),
    ),
    "indices": (subset, lambda part: part.indices.reverse()),
    "dataset of a subset": (subset, lambda part: put(part, dataset=tud.TensorDataset(torch.arange(40.0).view(20, 2)))),
    "rows of a subset": (subset, lambda part: put(part.dataset, tensors=(-part.dataset.tensors[0],))),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("options", [{}, {"num_workers": 0}])
def test_a_plan_that_is_kept_sees_what_changes_between_epochs(change: Any, options: Any) -> None:
    make, act = CHANGES[change]
    loader, other = make(), make()
    ours, theirs = penstock.DataLoader(loader, 4, **options), tud.DataLoader(other, 4)
    for _ in range(3):
        for _ in range(2):
            assert_same(list(ours), list(theirs))
        assert [batch[0].requires_grad for batch in ours] == [batch[0].requires_grad for batch in theirs]
        for dataset in (loader, other):
            act(dataset)


def test_options_that_a_program_sets_between_epochs_count() -> None:
    loader = penstock.DataLoader(tud.TensorDataset(torch.arange(10)), 4, num_workers=0)
    assert [len(batch[0]) for batch in loader] == [4, 4, 2]
    loader.batch_sampler.batch_size = 5  # as some programs do, though the loader's own batch_size stays
    assert [len(batch[0]) for batch in loader] == [5, 5]
    loader.collate_fn = len
    assert list(loader) == [5, 5]
