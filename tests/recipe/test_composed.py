"""A Compose that a dataset calls in our workers does what torchvision does: elements, strides, type, draws, errors."""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

import penstock._native as _native
from penstock.recipe import torchvision
from tests.hooks.jpegs import jpeg
from tests.recipe.against_torchvision import GENERATIONS, MEAN, STD, assert_as_torchvision, natively, picture, runs
from tests.same import assert_same
from tests.waiting import run_in_threads

pytestmark = pytest.mark.native

BICUBIC = v2.InterpolationMode.BICUBIC
COLOURS = {
    "imagenet": lambda t: [t.RandomResizedCrop(40), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(MEAN, STD)],
    "validation": lambda t: [t.Resize(48), t.CenterCrop(40), t.ToTensor(), t.Normalize(MEAN, STD)],
    "reference": lambda t: [t.RandomResizedCrop(30), t.TrivialAugmentWide(), t.PILToTensor(), t.RandomErasing(0.5)],
    "jitter between": lambda t: [
        *(t.RandomResizedCrop(40), t.ColorJitter(0.4, 0.4, 0.4), t.RandomVerticalFlip()),
        *(t.ToTensor(), t.Normalize(MEAN, STD), t.RandomErasing()),
    ],
}
ANY = {
    "bytes": lambda t: [t.Resize((30, 50)), t.PILToTensor()],
    "padded": lambda t: [t.RandomCrop(64, padding=(3, 5), pad_if_needed=True, padding_mode="reflect"), t.ToTensor()],
    "padded once": lambda t: [t.RandomCrop((32, 40), padding=4, fill=7), t.PILToTensor()],
    "not padded": lambda t: [t.Resize(70), t.RandomCrop(40), t.RandomGrayscale(0.5), t.ToTensor()],
    "too large": lambda t: [t.Resize(20), t.RandomCrop(64), t.ToTensor()],
    "grey": lambda t: [t.Grayscale(), t.RandomResizedCrop(30, interpolation=BICUBIC), t.ToTensor()],
    "a picture": lambda t: [t.RandomResizedCrop(30), t.RandomHorizontalFlip(0.5), t.RandomVerticalFlip()],
    "a padded picture": lambda t: [t.Resize(30), t.Pad(4, fill=9)],
    "nested": lambda t: [t.Compose([t.CenterCrop(60), t.Compose([t.RandomHorizontalFlip()])]), t.ToTensor()],
    "a function": lambda t: [t.Resize(32), t.Lambda(lambda image: image.rotate(90)), t.Resize(16), t.ToTensor()],
    "nothing known": lambda t: [t.Lambda(lambda image: image)],
    "jitter first": lambda t: [t.ColorJitter(0.4, 0.4), t.RandomResizedCrop(30), t.ToTensor()],
    "nothing done first": lambda t: [t.RandomHorizontalFlip(0.0), t.PILToTensor()],
    "doubles": lambda t: [t.Resize(16), t.ToTensor(), t.ConvertImageDtype(torch.float64)],
}


#: Transforms that are called by themselves.
SINGLE: dict[str, Callable[[Any], Any]] = {
    "resized crop": lambda t: t.RandomResizedCrop(32),
    "resize": lambda t: t.Resize(20),
    "resize both": lambda t: t.Resize((20, 30), interpolation=BICUBIC),
    "centre": lambda t: t.CenterCrop(33),
    "crop": lambda t: t.RandomCrop(33),
    "to tensor": lambda t: t.ToTensor(),
    "flip": lambda t: t.RandomHorizontalFlip(1.0),
    "grey": lambda t: t.Grayscale(),
    "five": lambda t: t.FiveCrop(20),
    "preset": lambda t: ImageClassification(crop_size=40, resize_size=48),
}
FILES = ("file", "file, not converted")
CASES = [
    *((name, given) for name in COLOURS for given in ("RGB", *FILES)),
    *((name, given) for name in ANY for given in ("RGB", "L", "RGBA", *(FILES if name != "nothing known" else ()))),
    *((f"{name}, alone", given) for name in SINGLE for given in FILES),
]


def reading(transform: Any, convert: bool) -> Callable[[bytes], Any]:
    """Return what a dataset does that opens a file itself, and all that it sees of the image afterwards."""

    def read(data: bytes) -> Any:
        image = Image.open(io.BytesIO(data))
        result = transform(image.convert("RGB") if convert else image)
        return result, image.size, image.tile, image.fp is None or convert

    return read


@GENERATIONS
@pytest.mark.parametrize(("name", "given"), CASES)
@pytest.mark.filterwarnings("ignore:The transform `ToTensor")
def test_the_same_as_torchvision(name: str, given: str, t: Any) -> None:
    alone = name.endswith(", alone")
    transform = SINGLE[name.removesuffix(", alone")](t) if alone else t.Compose({**COLOURS, **ANY}[name](t))
    for seed, size in enumerate([(90, 60), (50, 81), (64, 64), (33, 200)]):
        if given in FILES:
            data = jpeg(picture(*size, seed=seed), subsampling=seed % 3)
            assert_as_torchvision(reading(transform, given == "file"), lambda data=data: (data,))
        else:
            assert_as_torchvision(transform, picture(*size, given, seed))
    if name in COLOURS and given != "file, not converted":
        assert (0, 6 if name == "jitter between" else 4) in runs(transform)


def test_the_image_type_of_torchvision() -> None:
    compose = v2.Compose([v2.Resize(20), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    assert_as_torchvision(compose, picture(40, 30))
    assert runs(compose) == [(0, 4)]


@pytest.mark.parametrize("seed", range(40))
def test_random_pipelines(seed: int) -> None:
    draw = random.Random(seed)
    steps: list[Any] = []
    for _ in range(draw.randint(1, 4)):
        size = (draw.randint(1, 60), draw.randint(1, 60))
        padded = v1.RandomCrop(size, padding=draw.choice([None, 3]), pad_if_needed=True)
        flip, pad = v1.RandomHorizontalFlip(draw.random()), v1.Pad(draw.randint(0, 5))
        first = [v1.RandomResizedCrop(size, scale=(0.05, 1)), v1.Resize(size), v1.CenterCrop(size), padded, flip, pad]
        second = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.RandomCrop(size, 2, pad_if_needed=True)]
        steps.append(draw.choice([*first, v1.RandomVerticalFlip(), v1.RandomRotation(20), *second]))
    compose = v1.Compose([*steps, *draw.choice([[], [v1.ToTensor()], [v1.PILToTensor()]])])
    assert_as_torchvision(compose, picture(draw.randint(1, 90), draw.randint(1, 90), draw.choice(["RGB", "L"]), seed))


def test_nothing_changes_outside_of_workers() -> None:
    compose = v1.Compose([v1.Resize(20), v1.ToTensor()])
    natively(v1.Compose([v1.ToTensor()]), picture(8, 8))
    compose(picture(30, 30))
    assert runs(compose) == []
    assert v1.Compose.__call__.__name__ == "__call__" and v1.Compose.__call__.__doc__ is None


@pytest.mark.parametrize(
    "change",
    [
        lambda c: setattr(c.transforms[0], "size", (12, 12)),
        lambda c: setattr(c.transforms[1], "p", 1.0),
        lambda c: c.transforms[3].mean.__setitem__(0, 0.1),
        lambda c: c.transforms[3].std.mul_(2),
        lambda c: c.transforms.pop(),
        lambda c: c.transforms.__setitem__(0, v1.Resize((9, 9))),
        lambda c: c.transforms[0].register_forward_hook(lambda module, given, result: result.rotate(180)),
        lambda c: setattr(c.transforms[2], "__class__", type("Mine", (v1.ToTensor,), {"__call__": lambda s, x: 1})),
        lambda c: setattr(c.transforms[0], "forward", lambda image: image),
    ],
    ids=["size", "p", "mean", "std", "one less", "another", "hook", "class", "method"],
)
def test_what_is_changed_counts_from_the_next_image(change: Callable[[Any], object]) -> None:
    normalize = v1.Normalize(list(MEAN), torch.tensor(STD))
    compose = v1.Compose([v1.Resize((20, 20)), v1.RandomHorizontalFlip(), v1.ToTensor(), normalize])
    image = picture(40, 30)
    assert_as_torchvision(compose, image)
    assert runs(compose) == [(0, 4)]
    change(compose)
    if len(compose.transforms) == 4 and type(compose.transforms[2]) is not v1.ToTensor:
        compose.transforms.pop()
    assert_as_torchvision(compose, image)


def test_numbers_in_an_array_are_not_trusted() -> None:
    mean, image = np.array(MEAN), picture(40, 30)
    compose = v1.Compose([v1.Resize(20), v1.ToTensor(), v1.Normalize(mean, STD)])
    assert_as_torchvision(compose, image)
    mean[0] = 0.9
    assert_as_torchvision(compose, image)
    assert runs(compose) == []


def test_a_global_hook_is_called() -> None:
    called: list[str] = []
    compose = v1.Compose([v1.Resize(20), v1.ToTensor()])
    hook = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: called.append(type(m).__name__))
    try:
        assert_as_torchvision(compose, picture(40, 30))
    finally:
        hook.remove()
    assert called == ["Resize", "Resize"]


def test_another_default_dtype() -> None:
    compose = v1.Compose([v1.Resize(20), v1.ToTensor()])
    assert_as_torchvision(compose, picture(40, 30))
    torch.set_default_dtype(torch.float64)
    try:
        assert_as_torchvision(compose, picture(40, 30))
        assert natively(compose, picture(40, 30)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_native_code_refuses_draws_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = v1.Compose([v1.RandomResizedCrop(20), v1.RandomHorizontalFlip(), v1.ToTensor()])
    monkeypatch.setattr(_native, "transform_image", lambda *given: "not today")
    assert_as_torchvision(compose, picture(40, 30))


def test_an_image_in_several_blocks_of_memory() -> None:
    memory: Any = vars(Image)["core"]
    before = memory.get_block_size()
    memory.set_block_size(4096)
    try:
        image = picture(300, 200)
    finally:
        memory.set_block_size(before)
    assert_as_torchvision(v1.Compose([v1.RandomResizedCrop(20), v1.ToTensor()]), image)


def test_an_image_over_memory_of_another_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = v1.Compose([v1.RandomCrop(20), v1.ToTensor()])
    image = Image.fromarray(np.asarray(picture(30, 30, "L")))
    assert image.readonly
    assert_as_torchvision(compose, image)
    monkeypatch.setattr("penstock.recipe.composed_run._EXPORTS_MAPPED", False)
    exported: list[Any] = []
    monkeypatch.setattr(Image.Image, "__arrow_c_array__", exported.append)  # Pillow 12's ends the process
    assert_as_torchvision(compose, image)
    assert exported == []


def test_an_image_that_is_not_loaded_yet(tmp_path: Any) -> None:
    path = tmp_path / "whole.jpg"
    picture(64, 48).save(path)
    compose = v1.Compose([v1.RandomResizedCrop(20), v1.ToTensor()])
    assert_as_torchvision(compose, lambda: (Image.open(path),))
    with pytest.raises(OSError, match="truncated"):
        natively(compose, Image.open(io.BytesIO(path.read_bytes()[:700])))


class Mine(Image.Image):
    """A user's own class of image, which resizes in a way of its own."""

    def resize(self, *given: Any, **named: Any) -> Image.Image:
        return Image.new("RGB", (5, 5), "red")


def test_images_of_a_class_of_ones_own() -> None:
    image, other = Mine(), picture(40, 30)
    image.im, image._mode, image._size = other.im, "RGB", other.size
    assert_as_torchvision(v1.Compose([v1.Resize((20, 20)), v1.ToTensor()]), image)


def test_several_inputs_are_torchvisions() -> None:
    inputs = picture(20, 10), picture(20, 10, seed=1)
    assert_as_torchvision(v2.Compose([v2.RandomHorizontalFlip(), v2.ToImage()]), lambda: inputs)


def test_many_threads_at_once() -> None:
    compose = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize(MEAN, STD)])
    images = [picture(90, 50 + number, seed=number) for number in range(16)]
    wanted = [compose(image) for image in images]

    def work(begin: int) -> None:
        for number in [*range(begin, 16, 4)] * 20:
            assert_same(natively(compose, images[number]), wanted[number])

    run_in_threads(4, work)


def test_a_thread_leaves_the_filters_of_warnings_alone() -> None:
    """They belong to all threads: what another thread warned of meanwhile was not seen."""

    class Filters(torch.nn.Module):
        def forward(self, value: Any) -> Any:
            return list(warnings.filters)

    before = list(warnings.filters)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(torchvision.run, Filters(), Filters(), None).result() == before
    assert torchvision.run(Filters(), Filters(), None) != before


@pytest.mark.parametrize("flips", [0, 1])
@pytest.mark.parametrize("normalises", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_elements_side_by_side_for_every_width(flips: float, normalises: bool, scale: bool) -> None:
    steps = [v2.RandomHorizontalFlip(flips), v2.ToImage(), v2.ToDtype(torch.float32, scale=scale)]
    compose = v2.Compose([*steps, v2.Normalize(MEAN, STD)] if normalises else steps)
    for width in (*range(2, 36), 100, 257):
        assert_as_torchvision(compose, picture(width, 3, seed=width))
    assert runs(compose) == [(0, len(compose.transforms))]
    padded = v2.Compose([v2.RandomCrop(40, padding=3, fill=9, pad_if_needed=True), *compose.transforms])
    for width in (2, 7, 30, 50):
        assert_as_torchvision(padded, picture(width, 30, seed=width))
