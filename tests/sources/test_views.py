"""Several views of each image, natively and as Python makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import penstock
from penstock import Views
from tests.filled_batches import batches, handed_on, save_pictures
from tests.same import assert_same

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore:The transform `ToTensor")]
GENERATIONS = pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def test_native_views_draw_what_python_draws(folder, t, name):
    """With a seed, torchvision's own code in worker processes makes the same views."""
    views = CHOICES[name](t)
    loader = penstock.DataLoader(ImageFolder(folder, views), batch_size=8, num_workers=2, seed=4)
    assert "native threads fill" in loader.explain(), loader.explain()
    ours = batches(penstock.DataLoader, ImageFolder(folder, views), num_workers=2, seed=4)
    python = batches(penstock.DataLoader, ImageFolder(folder, views), num_workers=2, seed=4, worker_method="process")
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
def test_views_without_draws_are_torchs(folder, make):
    assert_as_torch(make(folder, eval_views()), num_workers=2)


def test_subsets_and_concatenations(folder):
    whole = ImageFolder(folder, eval_views())
    assert_as_torch(ConcatDataset([Subset(whole, range(3, 20)), ImageFolder(folder, eval_views())]), num_workers=2)
    mixed: Any = ConcatDataset([whole, ImageFolder(folder, eval_views().transforms[0])])
    assert "native threads fill" not in penstock.DataLoader(mixed, batch_size=4).explain()


def listed(batch):
    return [torch.stack([views[0] for views, _ in batch]), [views[1] for views, _ in batch], [y for _, y in batch]]


@pytest.mark.parametrize("collate", [handed_on, listed])
@pytest.mark.parametrize("workers", [0, 2])
def test_views_in_a_collate_fn(folder, workers, collate):
    dataset = ImageFolder(folder, eval_views())
    assert "in one piece" in penstock.DataLoader(dataset, batch_size=4, collate_fn=collate).explain()
    ours = batches(penstock.DataLoader, dataset, num_workers=workers, collate_fn=collate)
    assert_same(ours, batches(torch.utils.data.DataLoader, dataset, num_workers=workers, collate_fn=collate))


def test_views_in_a_cache(folder):
    dataset = ImageFolder(folder, eval_views())
    plain = batches(penstock.DataLoader, dataset, num_workers=2)
    loader = penstock.DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, cache="8MB")
    for _ in range(2):
        torch.manual_seed(5)
        assert_same(list(loader), plain)


def test_a_view_that_is_not_known_is_pythons(folder):
    class Mine:
        def __call__(self, image):
            return v1.functional.to_tensor(image.resize((9, 9)))

    dataset = ImageFolder(folder, Views([eval_views().transforms[0], Mine()]))
    assert "Mine" in penstock.DataLoader(dataset, batch_size=4).explain()
    assert_as_torch(dataset, native=False)


def test_changes_are_noticed(folder):
    views: Any = eval_views()
    dataset = ImageFolder(folder, views)
    loader = penstock.DataLoader(dataset, batch_size=30)
    before = next(iter(loader))[0]
    views.transforms.append(views.transforms[0])
    views.transforms[1].transforms[0].size = (7, 5)
    after = next(iter(loader))[0]
    assert [tuple(view.shape[2:]) for view in before] == [(20, 20), (10, 12)]
    assert [tuple(view.shape[2:]) for view in after] == [(20, 20), (7, 5), (20, 20)]
    assert torch.equal(after[0], after[2])


def test_subclasses_and_odd_views(folder):
    class Twice(Views):
        def __call__(self, image):
            return [view * 2 for view in super().__call__(image)]

    assert_as_torch(ImageFolder(folder, Twice(eval_views().transforms)), native=False)
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
def test_a_class_of_the_users_gets_the_same_views(folder, t):
    recipe = simclr(t, blurs=True)
    datasets = [ImageFolder(folder, transform) for transform in (TwoCrops(recipe), Views([recipe, recipe]))]
    assert_same(*(batches(penstock.DataLoader, dataset, num_workers=2, seed=4) for dataset in datasets))
