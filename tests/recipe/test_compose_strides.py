"""What a Compose gives natively has torchvision's strides, and is the image itself where nothing was done to it."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from PIL import Image, ImageFile
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock._native as _native
from penstock.recipe.compose_hook import Debt
from tests.recipe.against_torchvision import assert_as_torchvision, natively, picture, runs

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore:The transform `ToTensor")]

SIZES = [(20, 17), (12, 12), (16, 20), (14, 12), (1, 1), (13, 1)]


def parts(generation: Any) -> dict[str, Callable[[], Any]]:
    t = generation
    both: dict[str, Callable[[], Any]] = {
        "resized crop": lambda: t.RandomResizedCrop(12),
        "resize": lambda: t.Resize((12, 14)),
        "resize shorter": lambda: t.Resize(16),
        "center": lambda: t.CenterCrop(12),
        "center of more": lambda: t.CenterCrop(30),
        "crop": lambda: t.RandomCrop(12),
        "padded crop": lambda: t.RandomCrop(12, padding=2),
        "pad": lambda: t.Pad(2),
        "flip": lambda: t.RandomHorizontalFlip(),
        "turn": lambda: t.RandomVerticalFlip(1.0),
        "grey": lambda: t.Grayscale(),
        "floats": lambda: t.ConvertImageDtype(torch.float32),
        "normal": lambda: t.Normalize([0.5], [0.5]),
        "in place": lambda: t.Normalize([0.5], [0.5], inplace=True),
    }
    if generation is v2:
        both["dtype"] = lambda: t.ToDtype(torch.float32, scale=True)
        both["same"] = lambda: t.Identity()
        both["pure"] = lambda: t.ToPureTensor()
    return both


CONVERSIONS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "ToTensor": (v1, v1.ToTensor),
    "PILToTensor": (v1, v1.PILToTensor),
    "ToImage": (v2, v2.ToImage),
    "PILToTensor of v2": (v2, v2.PILToTensor),
}
ORDERS = [
    (name, order)
    for name, (generation, _) in CONVERSIONS.items()
    for order in itertools.chain([()], *(itertools.product(parts(generation), repeat=n) for n in (1, 2, 3)))
]
#: All of one part, and some of those of more, by their place. (All of two parts were tried once, and held.)
CHOSEN = [case for number, case in enumerate(ORDERS) if number % {0: 1, 1: 1, 2: 17, 3: 397}[len(case[1])] == 0]


@pytest.mark.parametrize("conversion", list(CONVERSIONS))
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_orders_of_known_transforms(conversion: str, mode: str) -> None:
    generation, convert = CONVERSIONS[conversion]
    make = parts(generation)
    for name, order in CHOSEN:
        if name != conversion:
            continue
        transform = generation.Compose([convert(), *(make[part]() for part in order)])
        Debt.images = 0
        for size in SIZES:
            for seed in (1, 2) if len(order) > 1 else (1, 2, 3):  # what one has taught is used by the next
                try:
                    assert_as_torchvision(transform, picture(*size, mode), [seed])
                except AssertionError as error:
                    raise AssertionError(f"{conversion}, {order}, size {size}, {mode}, seed {seed}") from error


@pytest.mark.parametrize("generation", [v1, v2], ids=["v1", "v2"])
def test_before_and_after_the_conversion(generation: Any) -> None:
    make = parts(generation)
    convert = v2.ToImage if generation is v2 else v1.ToTensor
    for before, after in itertools.product(["resized crop", "padded crop", "flip", "grey"], make):
        transform = generation.Compose([make[before](), convert(), make[after]()])
        Debt.images = 0
        for size, seed in itertools.product(SIZES[:3], (1, 2)):
            assert_as_torchvision(transform, picture(*size), [seed])


@pytest.mark.parametrize("conversion", list(CONVERSIONS))
def test_tensors(conversion: str) -> None:
    generation, convert = CONVERSIONS[conversion]
    for make in parts(generation).values():
        transform = generation.Compose([make()])
        assert_as_torchvision(transform, convert()(picture(20, 17)))


def test_the_usual_pipeline_of_version_2_is_native() -> None:
    steps = [v2.ToImage(), v2.RandomResizedCrop(12, antialias=True), v2.RandomHorizontalFlip()]
    transform = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])
    with mock.patch.object(_native, "transform_image", wraps=_native.transform_image) as counted:
        for seed in range(40):
            assert_as_torchvision(transform, picture(40 + seed % 5, 50), [seed])
    assert counted.call_count > 20


def test_a_crop_after_the_conversion_leaves_what_is_before_it_native() -> None:
    transform = v1.Compose([v1.RandomResizedCrop(20), v1.ToTensor(), v1.RandomCrop(12)])
    natively(transform, picture(40, 30))
    assert runs(transform) == [(0, 2)]


def opened(mode: str = "RGB", size: tuple[int, int] = (20, 16)) -> Any:
    """Return an image of a file, with Exif."""
    exif = Image.Exif()
    exif[0x010E] = "a picture"
    file = io.BytesIO()
    picture(*size, mode).save(file, "JPEG", exif=exif, comment=b"of the file")
    file.name = "one.jpg"
    image: Any = Image.open(file)
    image.filename = "one.jpg"
    image.mine = [1]
    return image


def seen(image: Any, given: Any) -> Any:
    """Return what a program can see of an image."""
    info = [(key, image.info[key], image.info[key] is given.info.get(key)) for key in sorted(image.info, key=str)]
    own = getattr(image, "filename", None), getattr(image, "mine", None), dict(image.getexif()), info
    return type(image), image is given, own, image.format, image.mode, image.size, image.readonly, image.tobytes()


NOTHING = {
    "the same size": lambda t: [t.Resize((16, 20))],
    "the shorter side": lambda t: [t.Resize(16)],
    "twice": lambda t: [t.Resize(16), t.Resize((16, 20))],
    "not flipped": lambda t: [t.Resize(16), t.RandomHorizontalFlip(0.0)],
    "flipped": lambda t: [t.Resize(16), t.RandomHorizontalFlip(1.0)],
    "flipped first": lambda t: [t.RandomVerticalFlip(1.0), t.Resize(16)],
    "a crop of all": lambda t: [t.Resize(16), t.CenterCrop((16, 20))],
    "a random crop of all": lambda t: [t.Resize(16), t.RandomCrop((16, 20))],
    "a random crop of all, padded if needed": lambda t: [t.Resize(16), t.RandomCrop((16, 20), pad_if_needed=True)],
    "padded by nothing": lambda t: [t.Resize(16), t.Pad(0)],
    "a padded crop": lambda t: [t.Resize(16), t.RandomCrop((16, 20), padding=0)],
    "grey": lambda t: [t.Resize(16), t.Grayscale()],
    "grey, three times": lambda t: [t.Resize(16), t.Grayscale(3)],
    "a resized crop": lambda t: [t.RandomResizedCrop((16, 20), scale=(1, 1), ratio=(1.25, 1.25))],
    "smaller": lambda t: [t.Resize((8, 9))],
    "smaller and back": lambda t: [t.Resize((8, 9)), t.Resize((16, 20))],
}


@pytest.mark.parametrize("generation", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", list(NOTHING))
def test_images_that_nothing_is_done_to(name: str, mode: str, generation: Any) -> None:
    transform = generation.Compose(NOTHING[name](generation))
    for _ in range(2):
        ours, theirs = opened(mode), opened(mode)
        torch.manual_seed(2)
        wanted = transform(theirs)
        torch.manual_seed(2)
        found = natively(transform, ours)
        assert seen(found, ours) == seen(wanted, theirs)
        assert isinstance(found, ImageFile.ImageFile) == isinstance(wanted, ImageFile.ImageFile)
        found.putpixel((0, 0), 77 if found.mode == "L" else (1, 2, 3))
        wanted.putpixel((0, 0), 77 if found.mode == "L" else (1, 2, 3))
        assert ours.tobytes() == theirs.tobytes()
        found.info["more"] = 1
        assert ("more" in ours.info) == (found is ours)


@pytest.mark.parametrize("generation", [v1, v2], ids=["v1", "v2"])
def test_transforms_of_a_programs_own_see_the_file(generation: Any) -> None:
    names: list[Any] = []

    def look(image: Any) -> Any:
        names.append((type(image).__name__, getattr(image, "filename", None), getattr(image, "mine", None)))
        return image

    transform = generation.Compose([generation.Resize(16), v1.Lambda(look), generation.Resize(8), v1.Lambda(look)])
    transform(opened())
    natively(transform, opened())
    assert names[:2] == names[2:]
    assert names[0] == ("JpegImageFile", "one.jpg", [1])
