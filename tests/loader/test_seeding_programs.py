"""A program that seeds global generators while it makes a sample gets the draws that torch's loader would give it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import setstate
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from PIL import Image
from torch import manual_seed
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from tests.data import Made, photo_files
from tests.same import assert_same
from tests.values import flat

ROUTES: list[dict[str, Any]] = [
    {}, {"num_workers": 2}, {"num_workers": 1, "worker_method": "process", "persistent_workers": True},
    {"worker_method": "thread", "num_workers": 0}, {"num_workers": 2, "worker_method": "auto"},
]  # fmt: skip
each_route = pytest.mark.parametrize("route", ROUTES, ids=str)
each_seed = pytest.mark.parametrize("seed", [None, 3])

# --- the same draws twice: each begins them anew, behind what yields -------------------------------------------------


def numbers(index: int) -> Iterator[None]:
    number = int(torch.randint(2**31, ()))
    for _ in range(2):
        torch.manual_seed(number)
        yield


def indices(index: int) -> Iterator[None]:
    manual_seed(index)
    yield
    torch.default_generator.manual_seed(index)
    yield


def initial(index: int) -> Iterator[None]:
    for _ in range(2):
        torch.random.manual_seed(torch.initial_seed())
        yield


def states(index: int) -> Iterator[None]:
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)
    yield


def other_states(index: int) -> Iterator[None]:
    state = torch.random.get_rng_state()
    yield
    torch.random.set_rng_state(state)
    yield


def forks(index: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield
    yield


def transforms(t: Any) -> list[Callable[[Any], Any]]:
    inner = t.Compose([t.RandomHorizontalFlip(), t.RandomResizedCrop(20)])
    return [
        t.RandomCrop(20), t.RandomVerticalFlip(), inner, t.Compose([t.RandomCrop(30), inner, t.ColorJitter(0.4)]),
        t.RandomRotation(40), t.RandomApply([t.RandomCrop(20)]), t.TrivialAugmentWide(), t.GaussianBlur(3),
        t.RandomChoice([t.RandomCrop(20), t.RandomResizedCrop(20)]),
    ]  # fmt: skip


WAYS = (numbers, indices, initial, states, other_states, forks)
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8))
TENSOR = torch.from_numpy(np.array(IMAGE)).permute(2, 0, 1).contiguous()
#: Each way with each transform, of images and of tensors in turn: each of these meets each transform, and each way.
CASES = [
    (way, transform, (IMAGE, TENSOR)[(row + column) % 2])
    for row, way in enumerate(WAYS)
    for column, transform in enumerate([*transforms(v1), *transforms(v2)])
]


def pair(index: int) -> tuple[bool, float]:
    way, transform, image = CASES[index]
    made: list[Any] = []
    for _ in way(index):
        random.seed(index)  # RandomChoice of the first generation draws from it
        done = transform(image)
        made.append(done if isinstance(done, torch.Tensor) else v1.functional.pil_to_tensor(done))
    return torch.equal(*made), float(made[0].float().mean())


def passed(kind: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    alike, means = zip(*kind(Made(pair, len(CASES)), batch_size=9, **options), strict=True)
    return torch.cat(alike), torch.cat(means)


@cache
def expected_means(kind: Any, **options: Any) -> torch.Tensor:
    return passed(kind, **options)[1]


@each_route
@each_seed
def test_an_image_and_its_mask_are_changed_alike(route: dict[str, Any], seed: int | None) -> None:
    alike, means = passed(penstock.DataLoader, seed=seed, **route)
    assert [CASES[i][:2] for i in range(len(CASES)) if not alike[i]] == []
    by_index = torch.tensor([way is indices for way, *_ in CASES])
    assert torch.equal(means[by_index], expected_means(tud.DataLoader)[by_index])
    if seed is not None:
        assert torch.equal(means, expected_means(penstock.DataLoader, seed=seed))


@each_route
def test_other_samples_draw_as_if_none_seeded(route: dict[str, Any]) -> None:
    crop = v2.Compose([v2.RandomCrop(20), v2.PILToTensor()])

    def sample(seeds: bool, index: int) -> Any:
        if seeds and index % 2:
            torch.manual_seed(index)
        return crop(IMAGE)

    def collate(samples: list[Any]) -> Any:
        return torch.stack([*samples, crop(IMAGE)])  # the batch draws by its own key

    def batches(seeds: bool, **options: Any) -> list[Any]:
        dataset = Made(lambda index: sample(seeds, index), 12)
        return list(penstock.DataLoader(dataset, 4, seed=5, collate_fn=collate, **options))

    found, without = batches(True, **route), batches(False)
    assert_same([batch[[0, 2, 4]] for batch in found], [batch[[0, 2, 4]] for batch in without])
    assert not torch.equal(found[0][1], without[0][1])


def seed_five(image: Any) -> Any:
    torch.manual_seed(5)
    return image


@each_route
@each_seed
@pytest.mark.parametrize("t", [v1, v2])
def test_a_step_of_a_folder_s_transform_seeds(tmp_path: Path, route: dict[str, Any], seed: Any, t: Any) -> None:
    photo_files(tmp_path, 7, (50, 80), ("jpg", "png"))
    inner = t.RandomApply([t.Lambda(seed_five)], 1.0)  # an operation has its own generator meanwhile
    steps = [t.RandomCrop(48), inner, t.RandomResizedCrop(20), t.Compose([t.RandomHorizontalFlip()]), t.PILToTensor()]
    crops = torchvision.datasets.ImageFolder(str(tmp_path), t.Compose([t.CenterCrop(48), *steps[1:]]))
    ours = [list(penstock.DataLoader(crops, 3, seed=seed, **route)) for _ in range(2)]
    assert_same(ours, [list(tud.DataLoader(crops, 3))] * 2)


# --- threads share the generators -------------------------------------------------------------------------------------


def fork(index: int) -> None:
    with torch.random.fork_rng(devices=[]):
        pass


CALLS: dict[str, Callable[[int], object]] = {
    "torch.manual_seed": lambda index: torch.manual_seed(index),
    "torch.manual_seed ": manual_seed,
    "torch.seed": lambda index: torch.random.seed(),
    "torch.set_rng_state": fork,
    "numpy.random.seed": lambda index: np.random.seed(index),
    "numpy.random.set_state": lambda index: np.random.set_state(np.random.RandomState(index).get_state()),
    "random.seed": lambda index: random.seed(index),
    "random.setstate": lambda index: setstate(random.Random(index).getstate()),
}


def seeded_by(name: str) -> Any:
    def make(index: int) -> Any:
        CALLS[name](index) if name != "torch.manual_seed " else manual_seed(index)
        return index, (torch.rand(2) if "torch" in name and name not in ("torch.seed", "torch.set_rng_state") else 0)

    return Made(make, 12)


@pytest.mark.filterwarnings("ignore:seed= does not reach:UserWarning")
@pytest.mark.parametrize("name", CALLS)
@each_seed
def test_a_worker_thread_that_seeds_is_an_error(name: str, seed: int | None) -> None:
    loader: Any = penstock.DataLoader(seeded_by(name), 4, num_workers=2, worker_method="thread", seed=seed)
    before = torch.default_generator, np.random.seed, random.setstate
    batches = iter(loader)
    random.seed(4)  # the program's own threads may
    np.random.seed(4)
    torch.manual_seed(4)
    said = rf"{name.strip()}\(\) was called in a worker thread.*worker_method='process'.*thread_safe_generator"
    with pytest.raises(penstock.InvalidOption, match=said):
        next(batches)
    loader = batches = None
    assert (vars(torch.random)["default_generator"], np.random.seed, random.setstate) == before


@pytest.mark.parametrize("name", CALLS)
def test_auto_takes_processes_for_it(name: str) -> None:
    dataset = seeded_by(name)
    loader: Any = penstock.DataLoader(dataset, 4, num_workers=2, worker_method="auto")
    assert_same(list(loader), list(tud.DataLoader(dataset, 4)))
    assert f"processes: {name.strip()}() was called in a worker thread" in loader.explain()


def test_generators_of_the_program_s_own_and_reading_a_state_are_none() -> None:
    def make(index: int) -> int:
        torch.get_rng_state(), torch.Generator().manual_seed(index), np.random.default_rng(index)
        return random.Random(index).randrange(100) + int(np.random.RandomState(index).randint(9))

    options: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
    assert flat(penstock.DataLoader(Made(make), 4, **options)) == [make(index) for index in range(23)]


def test_it_is_no_fault_of_the_sample_and_worker_init_fn_may_seed() -> None:
    options: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
    with pytest.raises(penstock.InvalidOption, match="in a worker thread"):
        list(penstock.DataLoader(seeded_by("random.seed"), 4, on_error="replace", **options))
    loader: Any = penstock.DataLoader(Made(), 4, worker_init_fn=lambda worker: np.random.seed(worker), **options)
    assert flat(loader) == list(range(23))
