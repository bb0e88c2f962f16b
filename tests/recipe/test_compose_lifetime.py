"""A Compose of a dataset's own: freed with it, given up where it never stays the same, and never a cause of errors."""

from __future__ import annotations

import dataclasses
import functools
import gc
import io
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from penstock.recipe import compose_hook as composed
from penstock.recipe.compose_hook import KnownTransforms
from tests.data import Made
from tests.recipe.against_torchvision import GENERATIONS, natively, picture
from tests.same import assert_same, assert_same_outcome

pytestmark = pytest.mark.native


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by one with each Compose that is read."""
    made: Any = []
    monkeypatch.setattr(composed, "KnownTransforms", lambda given: made.append(len(given)) or KnownTransforms(given))
    return made


class Photos(Made):
    """Its transforms lead back to it."""

    def __init__(self, t: Any = v1) -> None:
        super().__init__(lambda index: self.transform(picture(20 + index)), 8)
        self.memory = np.zeros(1000, dtype=np.uint8)
        self.transform = t.Compose([t.Resize((12, 12)), t.Lambda(self.augment), v1.ToTensor()])

    def augment(self, image: Any) -> Any:
        return image


@GENERATIONS
@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=["here", "threads"])
def test_datasets_are_freed(t: Any, options: dict[str, Any]) -> None:
    kept = []
    for _ in range(5):
        dataset = Photos(t)
        loader: Any = penstock.DataLoader(dataset, batch_size=4, **options)
        assert len(list(loader)) == 2
        kept.append(weakref.ref(dataset))
        del loader, dataset
    gc.collect()
    assert [reference() for reference in kept] == [None] * 5
    gc.collect()
    before = len(composed._entries)
    natively(Photos().transform, picture())
    gc.collect()
    assert len(composed._entries) == before


def test_datasets_that_are_read_natively_as_far_as_a_transform_are_freed(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for number in range(4):
        picture(20 + number).save(tmp_path / "one" / f"{number}.jpg")

    class Holder:
        def augment(self, image: Any) -> Any:
            return image

    kept = []
    for _ in range(3):
        holder: Any = Holder()
        steps = [v1.Resize((8, 8)), v1.Lambda(holder.augment), v1.ToTensor()]
        holder.dataset = penstock.ImageFolder(str(tmp_path), v1.Compose(steps))
        del steps
        loader: Any = penstock.DataLoader(holder.dataset, batch_size=2, num_workers=2, worker_method="thread")
        assert len(list(loader)) == 2 and "Lambda" in loader.explain()
        kept.append(weakref.ref(holder))
        del loader, holder
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3


def test_a_dataset_without_cycles_is_freed_at_once() -> None:
    transform = v1.Compose(parts())
    natively(transform, picture())
    reference, part = weakref.ref(transform), weakref.ref(transform.transforms[0])
    gc.disable()
    try:
        del transform
        assert reference() is None
    finally:
        gc.enable()
    gc.collect()
    assert part() is None


def test_a_transform_that_is_called_by_itself_is_freed() -> None:
    file = io.BytesIO()
    picture().save(file, "JPEG")
    before = len(composed._entries)
    for _ in range(3):
        natively(v1.Resize((12, 12)), Image.open(file))
        assert len(composed._entries) == before


@GENERATIONS
def test_a_compose_made_for_each_sample_is_given_up(t: Any, reads: list[int]) -> None:
    image = picture()
    for _ in range(60):
        transform = t.Compose([t.Resize((12, 12)), v1.ToTensor()])
        assert_same(natively(transform, image), transform(image))
    assert 1 <= len(reads) <= 8
    lasting = t.Compose([t.Resize((12, 12)), v1.ToTensor()])
    for _ in range(20):
        assert_same(natively(lasting, image), lasting(image))
    assert composed._entries[id(lasting)].known is not None, "one that stays is still read"


@pytest.mark.parametrize(
    ("changes", "each", "least", "most"), [(60, 1, 0, 12), (12, 12, 12, 12)], ids=["seldom read", "not given up"]
)
def test_a_compose_that_is_changed(reads: list[int], changes: int, each: int, least: int, most: int) -> None:
    transform = v1.Compose(parts())
    for number in range(changes):
        transform.transforms[0].size = (5 + number, 6)
        for _ in range(each):
            assert natively(transform, picture()).shape == (3, 5 + number, 6)
    assert least <= len(reads) <= most


@dataclasses.dataclass
class Equal(v1.Compose):
    """Has an __eq__, and so no __hash__."""

    transforms: Any


class Slotted(v1.Compose):
    __slots__ = ("mine",)


class Listed:
    """Can be gone through, and has no len."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)


class Counting(v1.Compose):
    """Makes its transforms anew each time they are asked for, and counts that."""

    def __init__(self) -> None:
        self.asked = 0

    @property
    def transforms(self) -> list[Any]:
        self.asked += 1
        return [v1.Resize((4 + self.asked, 4)), v1.ToTensor()]


class Unweak:
    __slots__ = ()

    def __call__(self, image: Any) -> Any:
        return image


def parts() -> list[Any]:
    return [v1.Resize((12, 12)), v1.ToTensor()]


def with_transforms(value: Any, generation: Any = v1) -> Any:
    compose = generation.Compose(parts())
    if generation is v2:
        compose.__dict__.pop("transforms")
    compose.transforms = value
    return compose


ODD: dict[str, Callable[[], Any]] = {
    "a dataclass": lambda: Equal(parts()),
    "two equal ones": lambda: v1.Compose([Equal([v1.Resize((9, 9))]), Equal([v1.Resize((9, 9))]), v1.ToTensor()]),
    "slots": lambda: Slotted(parts()),
    "a property": Counting,
    "a generator": lambda: with_transforms(part for part in parts()),
    "an iterator": lambda: with_transforms(iter(parts())),
    "an iterable": lambda: with_transforms(Listed(*parts())),
    "a tuple": lambda: with_transforms(tuple(parts())),
    "modules": lambda: with_transforms(torch.nn.ModuleList([v1.Resize((12, 12))])),
    "modules in version 2": lambda: with_transforms(torch.nn.ModuleList([v2.Resize((12, 12))]), v2),
    "modules within": lambda: v1.Compose([with_transforms(torch.nn.ModuleList([v1.Resize((12, 12))])), v1.ToTensor()]),
    "none": lambda: with_transforms(None),
    "none within": lambda: v1.Compose([v1.Resize((12, 12)), with_transforms(None)]),
    "empty": lambda: with_transforms([]),
    "not there": lambda: v1.Compose.__new__(v1.Compose),
    "a dict": lambda: with_transforms(dict.fromkeys(parts())),
    "what cannot be referred to weakly": lambda: v1.Compose([v1.Resize((12, 12)), Unweak(), v1.ToTensor()]),
    "a partial function": lambda: v1.Compose([functools.partial(v1.functional.hflip), *parts()]),
    "what cannot be called": lambda: v1.Compose([v1.Resize((12, 12)), 3]),
    "an attribute that cannot be compared": lambda: with_attribute(torch.ones(2)),
    "an attribute of one's own": lambda: with_attribute(object()),
}


def with_attribute(value: Any) -> Any:
    compose = v1.Compose(parts())
    compose.transforms[0].mine = [value]
    return compose


@pytest.mark.parametrize("make", list(ODD.values()), ids=list(ODD))
def test_nothing_is_raised_that_torchvision_would_not(make: Callable[[], Any]) -> None:
    ours, theirs = make(), make()
    for _ in range(3):
        assert_same_outcome(lambda: natively(ours, picture()), lambda: theirs(picture()))


def test_a_method_of_one_that_is_none() -> None:
    class Other:
        transforms = parts()

    natively(v1.Compose(parts()), picture())
    other: Any = Other()
    assert_same(natively(functools.partial(v1.Compose.__call__, other), picture()), v1.Compose(parts())(picture()))


@pytest.mark.parametrize("nested", [False, True])
@GENERATIONS
def test_a_transform_that_changes_while_it_runs(nested: bool, t: Any) -> None:
    def make() -> Any:
        def act(image: Any) -> Any:
            inner.transforms[-1].size = (5, 7)
            return image

        inner = t.Compose([t.Resize((12, 12)), v1.Lambda(act), t.Resize((9, 9))])
        return t.Compose([t.Resize((20, 20)), inner, t.Resize((16, 8))]) if nested else inner

    ours, theirs = make(), make()
    for _ in range(3):
        assert_same_outcome(lambda: natively(ours, picture()), lambda: theirs(picture()))
