"""A class that only calls a transform that it holds is read as that transform is: torchvision's reference presets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import datasets, transforms as v1, tv_tensors
from torchvision.transforms import v2

import penstock
from tests.data import photo_files
from tests.recipe.against_torchvision import MEAN, STD, assert_as_torchvision, picture, recipe_of, refusal_of
from tests.same import assert_same

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore:The transform `ToTensor")]


class TrainPreset:
    """As references/classification/presets.py of torchvision has it."""

    def __init__(
        self, *, crop_size: int = 24, hflip_prob: float = 0.5, erase: float = 0.0, use_v2: bool = False
    ) -> None:
        T: Any = v2 if use_v2 else v1
        transforms = [T.RandomResizedCrop(crop_size, antialias=True)]
        if hflip_prob > 0:
            transforms.append(T.RandomHorizontalFlip(hflip_prob))
        transforms.append(T.PILToTensor())
        transforms.append(T.ToDtype(torch.float, scale=True) if use_v2 else T.ConvertImageDtype(torch.float))
        transforms.append(T.Normalize(mean=MEAN, std=STD))
        if erase:
            transforms.append(T.RandomErasing(p=erase))
        if use_v2:
            transforms.append(T.ToPureTensor())
        self.transforms = T.Compose(transforms)

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class EvalPreset:
    """As the other one there."""

    def __init__(self) -> None:
        steps = [v1.Resize(30, antialias=True), v1.CenterCrop(24), v1.PILToTensor(), v1.ConvertImageDtype(torch.float)]
        self.transforms = v1.Compose([*steps, v1.Normalize(mean=MEAN, std=STD)])

    def __call__(self, img: Any) -> Any:
        """A docstring, which changes nothing."""
        return self.transforms(img)


class Module(torch.nn.Module):
    """A module with forward(), of another name."""

    def __init__(self, inner: Any = None) -> None:
        super().__init__()
        self.augment = inner or v2.Compose([v2.Resize((24, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.augment(x)
        return x  # noqa: RET504


class Inherited(TrainPreset):
    pass


def one() -> v1.Compose:
    return v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])


KNOWN: dict[str, Callable[[], Any]] = {
    "train": TrainPreset,
    "train, v2": lambda: TrainPreset(use_v2=True),
    "train, erasing": lambda: TrainPreset(erase=0.5),
    "evaluation": EvalPreset,
    "module": Module,
    "module of the first generation": lambda: Module(one()),
    "nested": lambda: Module(TrainPreset()),
    "inherited": Inherited,
    "in a Compose": lambda: v1.Compose([v1.CenterCrop(40), EvalPreset()]),
}


def made(method: str = "__call__", **members: Any) -> Any:
    """Return an object of a class with these members, whose attribute `transforms` is a Compose."""
    base = torch.nn.Module if method == "forward" else object
    members.setdefault(method, lambda self, image: self.transforms(image))
    mine = type("Mine", (base,), {"__module__": __name__, **members})()
    vars(mine)["transforms"] = one()
    return mine


def with_own_forward() -> Any:
    module = made("forward")
    module.forward = lambda image: 3
    return module


def with_hook() -> Any:
    module = made("forward")
    module.register_forward_hook(lambda module, given, result: result + 1)
    return module


def generator(self: Any, image: Any) -> Any:
    yield self.transforms(image)


def closed_over(name: str) -> Any:
    return lambda self, image: self.transforms(image) if name else image


UNKNOWN: dict[str, Callable[[], Any]] = {
    "more": lambda: made(__call__=lambda self, image: self.transforms(image) + 1),
    "two": lambda: made(__call__=lambda self, image: self.transforms(self.transforms(image))),
    "another argument": lambda: made(__call__=lambda self, image, more=None: self.transforms(image)),
    "any arguments": lambda: made(__call__=lambda self, *image: self.transforms(image[0])),
    "by name": lambda: made(__call__=lambda self, img: self.transforms(img=img)),
    "the other way": lambda: made(__call__=lambda self, image: image.transforms(self)),
    "itself": lambda: made(__call__=lambda self, image: self.transforms(self)),
    "a generator": lambda: made(__call__=generator),
    "a closure": lambda: made(__call__=closed_over("x")),
    "a property": lambda: made(transforms=property(lambda self: one())),
    "__getattribute__": lambda: made(__getattribute__=lambda self, name: object.__getattribute__(self, name)),
    "__getattr__ of a module": lambda: made("forward", __getattr__=lambda self, name: 1),
    "__call__ of a module": lambda: made("forward", __call__=lambda self, image: 1),
    "a static method": lambda: made(__call__=staticmethod(lambda self, image: self.transforms(image))),
    "forward of an object": with_own_forward,
    "a hook": with_hook,
    "slots": lambda: type("Mine", (), {"__slots__": ("transforms",), "__call__": made().__class__.__call__})(),
    "a function": lambda: made().__class__.__call__,
}


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    transform = KNOWN[name]()
    recipe = recipe_of(transform)
    assert recipe.shape == (3, 24, 24)
    assert_as_torchvision(transform, picture(60, 50))


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown(name: str) -> None:
    refusal_of(UNKNOWN[name]())


def test_advice_is_one_short_sentence(tmp_path: Path) -> None:
    found = refusal_of(UNKNOWN["more"]())
    assert (found.what, found.why) == ("Mine", "its call does other things than return self.transforms(image)")
    photo_files(tmp_path, 6)
    text = penstock.DataLoader(datasets.ImageFolder(str(tmp_path), UNKNOWN["more"]()), batch_size=2).explain()
    (advice,) = (line for line in text.splitlines() if line.startswith("advice   with"))
    assert len(advice) < 130 and "a __call__ that is only `return self.transforms(image)`" in advice


@pytest.mark.parametrize("name", ["train", "train, v2", "module", "nested"])
def test_an_image_folder_is_read_as_over_the_compose_inside(tmp_path: Path, name: str) -> None:
    photo_files(tmp_path, 12)
    transform = KNOWN[name]()
    inside: Any = transform
    while type(inside).__module__ == __name__:  # a class of the program's own holds one transform
        held = [*vars(inside).values(), *vars(inside).get("_modules", {}).values()]
        (inside,) = (one for one in held if type(one).__module__.startswith((__name__, "torchvision")))
    ours, theirs = (
        penstock.DataLoader(datasets.ImageFolder(str(tmp_path), one), batch_size=4, shuffle=True, seed=5)
        for one in (transform, inside)
    )
    assert_same(list(ours), list(theirs))
    assert ours.read_by == "native threads"
    assert "native   resize" in ours.explain() and "advice" not in ours.explain()


def test_what_is_changed_counts_from_the_next_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo_files(tmp_path, 8)
    preset = EvalPreset()
    dataset = datasets.ImageFolder(str(tmp_path), preset)
    loader: Any = penstock.DataLoader(dataset, batch_size=4)

    def check(read_by: str = "native threads") -> None:
        assert_same(list(loader), list(TorchDataLoader(dataset, batch_size=4)))
        assert loader.read_by == read_by

    check()
    preset.transforms.transforms[1].size = (20, 22)
    check()
    preset.transforms = one()
    check()
    with monkeypatch.context() as patch:
        patch.setattr(EvalPreset, "__call__", lambda self, img: self.transforms(img) + 1)
        check("Python")
    check()


def test_a_change_within_a_pass(tmp_path: Path) -> None:
    photo_files(tmp_path, 8)
    preset = EvalPreset()
    dataset = datasets.ImageFolder(str(tmp_path), preset)
    batches = iter(penstock.DataLoader(dataset, batch_size=2, prefetch_factor=None))
    next(batches)
    preset.transforms = one()
    *_, last = batches
    assert_same(last, list(TorchDataLoader(dataset, batch_size=2))[-1])


class SegmentationPreset:
    """As references/segmentation/presets.py has it: an image and its mask."""

    def __init__(self) -> None:
        steps = [v2.RandomResizedCrop((24, 24), antialias=True), v2.RandomHorizontalFlip(0.5), v2.PILToTensor()]
        self.transforms = v2.Compose([*steps, v2.ToDtype(torch.float, scale=True)])

    def __call__(self, img: Any, target: Any) -> Any:
        return self.transforms(img, target)


def test_a_preset_of_two_values_runs_natively_in_workers() -> None:
    mask = tv_tensors.Mask(torch.zeros(50, 60, dtype=torch.uint8))
    assert_as_torchvision(SegmentationPreset(), lambda: (picture(60, 50), mask), range(3))
