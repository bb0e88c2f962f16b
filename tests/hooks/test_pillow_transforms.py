"""torchvision's transforms of JPEG files that Pillow opens in our workers: only a part is decoded."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

from penstock.hooks.calls import natively
from penstock.recipe.encoded_image import is_encoded
from tests.hooks.jpegs import PLAIN, assert_as_pillow, jpeg, outcome, picture

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore:The transform `ToTensor")]
GENERATIONS = pytest.mark.parametrize("generation", [v1, v2], ids=["v1", "v2"])


def steps(t: Any) -> dict[str, Any]:
    crop, normal = t.RandomResizedCrop(30), t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return {
        "training": t.Compose([t.RandomResizedCrop(40), t.RandomHorizontalFlip(), t.ToTensor(), normal]),
        "validation": t.Compose([t.Resize(48), t.CenterCrop(40), t.ToTensor(), normal]),
        "a picture": t.Compose([crop, t.RandomVerticalFlip()]),
        "jitter": t.Compose([crop, t.ColorJitter(0.4, 0.4), t.ToTensor()]),
        "jitter first": t.Compose([t.ColorJitter(0.4, 0.4), crop, t.ToTensor()]),
        "nothing first": t.Compose([t.RandomHorizontalFlip(0.0), t.PILToTensor()]),
        "padded": t.Compose([t.RandomCrop(100, padding=6, pad_if_needed=True, fill=4), t.ToTensor()]),
        "resized crop": t.RandomResizedCrop(32),
        "resize": t.Resize(20),
        "resize both": t.Resize((20, 30), interpolation=v2.InterpolationMode.BICUBIC),
        "centre": t.CenterCrop(33),
        "crop": t.RandomCrop(33),
        "to tensor": t.ToTensor(),
        "flip": t.RandomHorizontalFlip(1.0),
        "preset": ImageClassification(crop_size=40, resize_size=48),
        "reference": t.Compose([crop, t.TrivialAugmentWide(), t.PILToTensor(), t.RandomErasing(0.5)]),
        "grey": t.Grayscale(),
        "five": t.FiveCrop(20),
    }


#: Of which only a part of an image is decoded.
PARTS = ("training", "validation", "resized crop", "resize", "to tensor", "preset", "reference")


@GENERATIONS
@pytest.mark.parametrize("name", steps(v1))
def test_transforms_give_what_torchvisions_give(name: str, generation: Any) -> None:
    transform = steps(generation)[name]

    def work(data: bytes, convert: bool) -> Any:
        image = Image.open(io.BytesIO(data))
        result = transform(image.convert("RGB") if convert else image)
        return result, image.size, image.tile, image.fp is None or convert

    for seed in range(6):
        data = jpeg(picture(80 + 9 * seed, 110 - 9 * seed, seed), subsampling=seed % 3)
        for convert in (True, False):
            assert_as_pillow(work, data, convert)


@GENERATIONS
@pytest.mark.parametrize("name", PARTS)
def test_transforms_decode_a_part_alone(name: str, generation: Any) -> None:
    transform = steps(generation)[name]
    with natively():
        image = Image.open(io.BytesIO(PLAIN["colours"])).convert("RGB")
        transform(image)
        assert is_encoded(image), "the image itself was not decoded"


def test_several_views_of_one_image() -> None:
    crop = v1.Compose([v1.RandomResizedCrop(30), v1.ToTensor()])

    def views(data: bytes) -> Any:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        return [crop(image) for _ in range(3)], image

    with natively():
        decoded_in_part = 0
        for seed in range(40):
            image = Image.open(io.BytesIO(jpeg(picture(seed=seed)))).convert("RGB")
            crop(image)
            decoded_in_part += is_encoded(image)
            crop(image)
            assert not is_encoded(image)
        assert 2 <= decoded_in_part <= 10, "after images of several views most are decoded once, as a whole"
    for seed in range(5):
        assert_as_pillow(views, jpeg(picture(seed=seed)))


def test_pairs_with_functions_of_torchvision() -> None:
    """The same crop of an image and its mask, as people segment."""

    def work() -> Any:
        image = Image.open(io.BytesIO(PLAIN["colours"])).convert("RGB")
        mask = Image.open(io.BytesIO(PLAIN["grey"])).convert("L")
        box = v1.RandomCrop.get_params(image, (32, 40))
        return F.to_tensor(F.crop(image, *box)), F.pil_to_tensor(F.hflip(F.crop(mask, *box)))

    assert_as_pillow(work)


def test_images_as_large_as_pillow_warns_of(monkeypatch: pytest.MonkeyPatch) -> None:
    crop = v1.Compose([v1.CenterCrop(60), v1.ToTensor()])

    def work() -> Any:
        image = Image.open(io.BytesIO(PLAIN["colours"])).convert("RGB")
        with monkeypatch.context() as patch:
            patch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
            return crop(image)

    with natively():
        found = outcome(work)
    assert found == outcome(work) and found[0] is Image.DecompressionBombError
