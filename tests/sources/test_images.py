"""Images, torchvision's datasets of image files by name, and Views, against torch's loader over the same samples."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets, transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import penstock
from penstock import Views
from tests.data import Made, save_pictures
from tests.filled_batches import batches, handed_on
from tests.same import assert_same, assert_same_batches, assert_same_outcome

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore:The transform `ToTensor")]
GENERATIONS = pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])

EVAL = v1.Compose([v1.Resize(24), v1.CenterCrop(20), v1.ToTensor()])


def draw(path: Path, number: int) -> Path:
    """Save an image of its own, of some size, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (30 + number % 5, 36, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [str(draw(tmp_path / f"{i % 2}/{i}.{'png' if i == 3 else 'jpg'}", i)) for i in range(10)]


def table(files: Any, labels: Any, transform: Any) -> Made:
    """Return what a program writes for a table of files and labels."""

    def read(index: int) -> Any:
        image: Any = Image.open(files[index]).convert("RGB")
        image = image if transform is None else transform(image)
        return image if labels is None else (image, labels[index])

    return Made(read, len(files))


def column(values: list[Any]) -> Any:
    """Return a column of a DataFrame, as far as that is looked at."""
    return SimpleNamespace(ndim=1, tolist=lambda: values)


def loaders(ours: Any, theirs: Any, workers: int = 2) -> tuple[Any, Any]:
    return (
        penstock.DataLoader(ours, batch_size=4, num_workers=workers),
        torch.utils.data.DataLoader(theirs, batch_size=4, num_workers=0),
    )


@pytest.mark.parametrize("labels", [None, list(range(10)), [i / 4 for i in range(10)], [f"n{i}" for i in range(10)]])
@pytest.mark.parametrize("workers", [0, 2])
def test_images_by_a_list(files, labels, workers):
    assert_same_batches(*loaders(penstock.Images(files, labels, EVAL), table(files, labels, EVAL), workers))


def test_samples(files):
    for labels in (None, list("abcdefghij")):
        ours, theirs = penstock.Images(files, labels), table(files, labels, None)
        for index in (0, 3, -1):
            assert_same(ours[index], theirs[index])
    changed = penstock.Images(files, range(10), EVAL, target_transform=lambda label: -label)
    assert changed[4][1] == -4
    assert_same_batches(*loaders(changed, table(files, [-i for i in range(10)], EVAL)))
    with pytest.raises(IndexError, match="sample index 10 is out of range: there are 10 samples"):
        changed[10]


@pytest.mark.parametrize("kind", [list, tuple, np.array, column, lambda values: map(Path, values)])
def test_kinds_of_columns(files, kind):
    assert_same(penstock.Images(kind(files), transform=EVAL)[7], penstock.Images(files, transform=EVAL)[7])
    if kind in (np.array, column):
        assert penstock.Images(files, kind(list(range(10))))[5][1] == 5
    rows = np.arange(20.0).reshape(10, 2)
    assert_same_batches(*loaders(penstock.Images(files, rows, EVAL), table(files, rows, EVAL)))


def test_relative_paths(files, tmp_path, monkeypatch):
    names = [os.path.relpath(path, tmp_path) for path in files]
    expected = penstock.Images(files, transform=EVAL)[2]
    below = penstock.Images(names, transform=EVAL, root=tmp_path)
    monkeypatch.chdir(tmp_path)
    here = penstock.Images(names, transform=EVAL)
    monkeypatch.chdir("/")
    mixed = penstock.Images([names[0], *files[1:]], transform=EVAL, root=str(tmp_path))
    for dataset in (below, here, mixed):
        assert_same(dataset[2], expected)
        assert_same(pickle.loads(pickle.dumps(dataset))[2], expected)
        assert dataset.path(2) == files[2]
    loader = penstock.DataLoader(below, batch_size=4, seed=0)
    assert loader.ids(0, 0) == names[:4]


@pytest.mark.parametrize(("paths", "labels", "error", "words"), [
    ("a.jpg", None, TypeError, None), ([1], None, TypeError, None), ([b"a"], None, TypeError, None),
    ([""], None, penstock.InvalidID, "no file has that name"),
    (["a\0b"], None, penstock.InvalidID, "no file has that name"),
    (["a"] * 10, range(9), penstock.InvalidOption, "9 labels for 10 paths"),
])  # fmt: skip
def test_what_is_refused(paths, labels, error, words):
    with pytest.raises(error, match=words):
        penstock.Images(paths, labels)


NAMED = (
    *("DatasetFolder", "ImageNet", "Country211", "EuroSAT", "DTD", "FGVCAircraft", "Flowers102", "Food101", "SUN397"),
    *("GTSRB", "Imagenette", "RenderedSST2", "StanfordCars"),
)


def by_name(name: str, files: list[str], transform: Any = EVAL) -> Any:
    """Return a dataset of exactly the class of this name, of any files; each class finds them under its own names."""
    kind = getattr(datasets, name)
    dataset = kind.__new__(kind)
    dataset.root, dataset.loader = os.path.dirname(os.path.dirname(files[0])), datasets.folder.default_loader
    dataset.transform, dataset.target_transform = transform, None
    dataset._image_files, dataset._labels = list(map(Path, files)), [7 * number % 4 for number in range(len(files))]
    dataset.samples = dataset._samples = list(zip(files, dataset._labels, strict=True))
    return dataset


@pytest.mark.parametrize("name", NAMED)
def test_datasets_by_name(files, name):
    dataset = by_name(name, files)
    ours, theirs = loaders(dataset, dataset)
    assert "native threads fill" in ours.explain()
    assert_same_batches(ours, theirs)
    dataset.target_transform = lambda label: label * 2.5
    assert_same_batches(*loaders(dataset, dataset))
    dataset.transform = np.array
    ours, theirs = penstock.DataLoader(dataset, batch_size=1), torch.utils.data.DataLoader(dataset, batch_size=1)
    assert_same(list(ours), list(theirs))
    assert "answered natively" in ours.explain()


def test_names_of_samples(files):
    dataset = by_name("Food101", files)
    loader = penstock.DataLoader(dataset, batch_size=2, seed=0)
    assert loader.ids(0, 0) == ["0/0.jpg", "1/1.jpg"]
    Path(files[1]).write_bytes(b"no image")
    with pytest.raises(penstock.CorruptSample, match=r"^image '1/1\.jpg' \(\S+1/1\.jpg\) is not an image"):
        list(loader)


def test_loaders_of_ones_own(files):
    def red(path):
        return Image.new("RGB", (30, 30), (255, 0, 0))

    dataset = by_name("DatasetFolder", files)
    for loader in (red, datasets.folder.accimage_loader):
        dataset.loader = loader
        assert "Python calls your own loader" in penstock.DataLoader(dataset, batch_size=2).explain()
    dataset.loader = red
    ours, theirs = loaders(dataset, dataset)
    assert_same(list(ours), list(theirs))
    dataset.loader = datasets.folder.pil_loader
    assert_same_batches(*loaders(dataset, dataset))


def test_lists_that_change(files):
    dataset = by_name("Food101", files)
    ours, theirs = loaders(dataset, dataset, workers=0)
    dataset._labels.reverse()
    assert_same(list(ours), list(theirs))
    dataset._image_files = dataset._image_files[::-1]
    assert_same(list(ours), list(theirs))
    del dataset._labels[0]
    assert_same_outcome(lambda: list(ours), lambda: list(theirs))


@pytest.mark.parametrize("name", ["EMNIST", "KMNIST"])
def test_digits_by_name(name):
    kind = getattr(datasets, name)
    dataset = kind.__new__(kind)
    dataset.data = torch.randint(0, 256, (20, 28, 28), dtype=torch.uint8)
    dataset.targets = torch.arange(20)
    dataset.transform, dataset.target_transform = v1.ToTensor(), None
    assert_same_batches(*loaders(dataset, dataset))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pictures(tmp_path_factory.mktemp("images"))


def simclr(t: Any, size: int = 16, *, blurs: bool = False) -> Any:
    """Return SimCLR's augmentation of one view, with its blur or without."""
    jitter = t.RandomApply([t.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    blur = [t.RandomApply([t.GaussianBlur(5, (0.1, 2.0))], p=0.5)] if blurs else []
    steps = [t.RandomResizedCrop(size), t.RandomHorizontalFlip(), jitter, t.RandomGrayscale(0.2), *blur]
    return t.Compose([*steps, t.ToTensor()])


def dino(t: Any) -> Views:
    """Return DINO's crops: two global ones, of which one may be solarized, and four local ones."""
    solarized = t.Compose([simclr(t, 20), t.Normalize([0.5] * 3, [0.2] * 3)])
    first = t.Compose([t.RandomResizedCrop(20, (0.4, 1.0)), t.RandomSolarize(128, 0.2), t.PILToTensor()])
    return Views([first, solarized, *[simclr(t, 8)] * 4])


def eval_views() -> Views:
    crop = v1.Compose([v1.Resize(24), v1.CenterCrop(20), v1.ToTensor()])
    return Views([crop, v1.Compose([v1.Resize((10, 12)), v1.ToTensor()])])


CHOICES = {"simclr": lambda t: Views([simclr(t)] * 2), "dino": dino}


@GENERATIONS
@pytest.mark.parametrize("name", CHOICES)
def test_native_views_draw_what_python_draws(pictures, t, name):
    """With a seed, torchvision's own code in worker processes makes the same views."""
    views = CHOICES[name](t)
    loader = penstock.DataLoader(ImageFolder(pictures, views), batch_size=8, num_workers=2, seed=4)
    assert "native threads fill" in loader.explain(), loader.explain()
    ours = batches(penstock.DataLoader, ImageFolder(pictures, views), num_workers=2, seed=4)
    python = batches(penstock.DataLoader, ImageFolder(pictures, views), num_workers=2, seed=4, worker_method="process")
    assert_same(ours, python)
    assert len(ours[0]) == 2
    assert len(ours[0][0]) == len(views.transforms)


def assert_as_torch(dataset, native=True, **options):
    assert ("native threads fill" in penstock.DataLoader(dataset, batch_size=4).explain()) is native
    ours = batches(penstock.DataLoader, dataset, **options)
    assert_same(ours, batches(torch.utils.data.DataLoader, dataset))


@pytest.mark.parametrize(
    "make", [ImageFolder, penstock.ImageFolder, lambda root, v: penstock.Images(sorted(root.glob("*/*")), None, v)]
)
def test_views_without_draws_are_torchs(pictures, make):
    assert_as_torch(make(pictures, eval_views()), num_workers=2)


def test_subsets_and_concatenations(pictures):
    whole = ImageFolder(pictures, eval_views())
    assert_as_torch(ConcatDataset([Subset(whole, range(3, 20)), ImageFolder(pictures, eval_views())]), num_workers=2)
    mixed: Any = ConcatDataset([whole, ImageFolder(pictures, eval_views().transforms[0])])
    assert "native threads fill" not in penstock.DataLoader(mixed, batch_size=4).explain()


def listed(batch):
    return [torch.stack([views[0] for views, _ in batch]), [views[1] for views, _ in batch], [y for _, y in batch]]


@pytest.mark.parametrize("collate", [handed_on, listed])
@pytest.mark.parametrize("workers", [0, 2])
def test_views_in_a_collate_fn(pictures, workers, collate):
    dataset = ImageFolder(pictures, eval_views())
    assert "in one piece" in penstock.DataLoader(dataset, batch_size=4, collate_fn=collate).explain()
    ours = batches(penstock.DataLoader, dataset, num_workers=workers, collate_fn=collate)
    assert_same(ours, batches(torch.utils.data.DataLoader, dataset, num_workers=workers, collate_fn=collate))


def test_views_in_a_cache(pictures):
    dataset = ImageFolder(pictures, eval_views())
    plain = batches(penstock.DataLoader, dataset, num_workers=2)
    loader = penstock.DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, cache="8MB")
    for _ in range(2):
        torch.manual_seed(5)
        assert_same(list(loader), plain)


def test_a_view_that_is_not_known_is_pythons(pictures):
    class Mine:
        def __call__(self, image):
            return v1.functional.to_tensor(image.resize((9, 9)))

    dataset = ImageFolder(pictures, Views([eval_views().transforms[0], Mine()]))
    assert "Mine" in penstock.DataLoader(dataset, batch_size=4).explain()
    assert_as_torch(dataset, native=False)


def test_changes_are_noticed(pictures):
    views: Any = eval_views()
    dataset = ImageFolder(pictures, views)
    loader = penstock.DataLoader(dataset, batch_size=30)
    before = next(iter(loader))[0]
    views.transforms.append(views.transforms[0])
    views.transforms[1].transforms[0].size = (7, 5)
    after = next(iter(loader))[0]
    assert [tuple(view.shape[2:]) for view in before] == [(20, 20), (10, 12)]
    assert [tuple(view.shape[2:]) for view in after] == [(20, 20), (7, 5), (20, 20)]
    assert torch.equal(after[0], after[2])


def test_subclasses_and_odd_views(pictures):
    class Twice(Views):
        def __call__(self, image):
            return [view * 2 for view in super().__call__(image)]

    assert_as_torch(ImageFolder(pictures, Twice(eval_views().transforms)), native=False)
    with pytest.raises(penstock.InvalidOption, match="makes no view"):
        Views([])
    assert repr(Views([v1.ToTensor()])) == "Views([\n    ToTensor(),\n])"
    image = v1.functional.to_pil_image(torch.zeros(3, 4, 4))
    assert [view.shape for view in Views([v1.ToTensor(), v1.Grayscale()])(image)[:1]] == [(3, 4, 4)]


class TwoCrops:
    """A transform as people write it."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> Any:
        return [self.transform(image), self.transform(image)]


@GENERATIONS
def test_a_class_of_the_users_gets_the_same_views(pictures, t):
    recipe = simclr(t, blurs=True)
    datasets = [ImageFolder(pictures, transform) for transform in (TwoCrops(recipe), Views([recipe, recipe]))]
    assert_same(*(batches(penstock.DataLoader, dataset, num_workers=2, seed=4) for dataset in datasets))
