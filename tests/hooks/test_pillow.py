"""JPEG files that Pillow opens in our workers stay encoded until something looks, and show what Pillow shows."""

from __future__ import annotations

import copy
import io
import pickle
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFile, ImageOps
from torchvision import transforms as v1
from torchvision.transforms import functional as F, v2
from torchvision.transforms._presets import ImageClassification

from penstock.hooks.calls import natively
from penstock.recipe import encoded_image
from penstock.recipe.encoded_image import is_encoded
from tests.corrupt import damages
from tests.hooks.jpegs import FILES, OTHERS, PLAIN, assert_as_pillow, encoded, jpeg, outcome, picture
from tests.same import assert_same
from tests.waiting import run_in_threads

# Pillow leaves a file open that it could not decode.
IGNORED = ("ignore:unclosed file:ResourceWarning", "ignore:The transform `ToTensor")
pytestmark = [pytest.mark.native, *map(pytest.mark.filterwarnings, IGNORED)]


def attributes(image: Any) -> list[Any]:
    """Return all that an image shows, without a look at its pixels."""
    names = ("mode", "size", "width", "height", "info", "format", "palette", "filename", "tile", "fp", "is_animated")
    shown = [getattr(image, name, "none") for name in names]
    return [*shown, dict(image.getexif()), type(image), image.getbands(), repr(image).partition(" at ")[0]]


def opened_in_memory(data: bytes) -> Any:
    return Image.open(io.BytesIO(data))


def colours() -> Any:
    return opened_in_memory(PLAIN["colours"])


@pytest.fixture(params=["path", "file", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[bytes], Any]]:
    """Return a function that opens an image, given the bytes of its file."""
    files = []

    def open_it(data: bytes) -> Any:
        if request.param == "memory":
            return Image.open(io.BytesIO(data))
        (tmp_path / "x.jpg").write_bytes(data)
        if request.param == "path":
            return Image.open(tmp_path / "x.jpg")
        files.append(open(tmp_path / "x.jpg", "rb"))  # noqa: SIM115
        return Image.open(files[-1])

    yield open_it
    for file in files:
        file.close()


@pytest.mark.parametrize("name", PLAIN)
def test_an_image_stays_encoded(name: str, opened: Callable[[bytes], Any]) -> None:
    with natively():
        image = opened(FILES[name])
        file = image.fp
        converted = image.convert("RGB")
        assert is_encoded(converted) and is_encoded(image)
        attributes(converted), attributes(image)
        assert is_encoded(converted) and is_encoded(image), "no attribute but its pixels is decoded for"
    theirs = opened(FILES[name])
    their_file = theirs.fp
    wanted = theirs.convert("RGB")
    assert attributes(image) == attributes(theirs) and attributes(converted) == attributes(wanted)
    assert file.closed == their_file.closed
    assert file.closed or file.tell() == their_file.tell()
    assert image == theirs and converted == wanted
    assert not is_encoded(image) and not is_encoded(converted)
    assert vars(image).keys() == vars(theirs).keys() and vars(converted).keys() == vars(wanted).keys()


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_pillows(name: str, opened: Callable[[bytes], Any]) -> None:
    with natively():
        found = outcome(lambda: opened(FILES[name]).convert("RGB"))
    wanted = outcome(lambda: opened(FILES[name]).convert("RGB"))
    if isinstance(wanted[0], type):
        assert found[0] is wanted[0] and found[1].partition("0x")[0] == wanted[1].partition("0x")[0]
    else:
        assert not is_encoded(found[0]) and found[0] == wanted[0]


def drawn_on(image: Any) -> Any:
    ImageDraw.Draw(image).line((0, 0, 40, 30), fill=(255, 0, 0), width=3)
    return image


LOOKS: dict[str, Callable[[Any], Any]] = {
    "array": np.asarray,
    "bytes": lambda image: image.tobytes(),
    "pixel": lambda image: image.getpixel((3, 4)),
    "access": lambda image: image.load()[5, 6],
    "resize": lambda image: image.resize((30, 20)),
    "thumbnail": lambda image: (image.thumbnail((30, 20)), image),
    "crop": lambda image: image.crop((2, 3, 40, 30)),
    "copy": lambda image: image.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),
    "draw": drawn_on,
    "paste": lambda image: (image.paste((1, 2, 3), (2, 2, 9, 9)), image),
    "save": lambda image: encoded(image, "PNG"),
    "split": lambda image: image.split(),
    "grey": lambda image: image.convert("L"),
    "transpose": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "exif_transpose": ImageOps.exif_transpose,
    "histogram": lambda image: image.histogram(),
    "putpixel": lambda image: (image.putpixel((1, 1), (9, 9, 9)), image),
    "extrema": lambda image: image.getextrema(),
    "to_tensor": F.to_tensor,
    "to_image": v2.functional.to_image,
    "readonly": lambda image: image.readonly,
    "close": lambda image: image.close(),
    "use after close": lambda image: (image.close(), image.tobytes()),
    "verify": lambda image: image.verify(),
    "draft": lambda image: image.draft("RGB", (20, 20)),
    "seek": lambda image: (image.seek(0), image.tell()),
    "alpha": lambda image: (image.putalpha(3), image),
}


@pytest.mark.parametrize("name", ["colours", "grey", "exif"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_gives_what_pillow_gives(look: str, name: str) -> None:
    def source() -> Any:
        image = opened_in_memory(FILES[name])
        image.convert("RGB")
        return LOOKS[look](image)

    assert_as_pillow(lambda: LOOKS[look](opened_in_memory(FILES[name]).convert("RGB")))
    assert_as_pillow(source)


def test_changes_of_one_image_do_not_reach_another() -> None:
    with natively():
        image = colours()
        first, second = image.convert("RGB"), image.convert("RGB")
        assert is_encoded(first) and not is_encoded(image), "whoever converts an image twice keeps it"
        first.putpixel((0, 0), (1, 2, 3))
        first.info["x"] = 1
    assert "x" not in second.info and "x" not in image.info
    assert second == colours().convert("RGB") == image.convert("RGB")
    assert first.getpixel((0, 0)) == (1, 2, 3)


def test_only_in_workers_and_only_to_rgb() -> None:
    assert not is_encoded(colours().convert("RGB"))
    with natively():
        for call, stays in (
            (lambda image: image.convert("L"), False),
            (lambda image: image.convert(), False),
            (lambda image: image.convert("RGB", None, Image.Dither.NONE), False),
            (lambda image: image.convert("RGB", (1, 0, 0, 0) * 3), False),
            (lambda image: image.convert(mode="RGB", colors=8), False),
            (lambda image: image.convert("RGB"), True),
            (lambda image: image.convert(mode="RGB"), True),
            (lambda image: image.copy(), False),
        ):
            assert is_encoded(call(colours())) is stays
        assert not is_encoded(opened_in_memory(PLAIN["grey"]).convert())


def test_files_that_are_gone_or_changed_by_then(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(PLAIN["colours"])
    with natively():
        with open(path, "rb") as file:
            one = Image.open(file).convert("RGB")
        with Image.open(path) as image:
            other = image.convert("RGB")
        path.write_bytes(jpeg(picture(seed=9)))
        path.unlink()
        memory = io.BytesIO(PLAIN["colours"])
        closed = Image.open(memory)
        memory.close()
        with pytest.raises(ValueError, match="closed file"):
            closed.convert("RGB")
    assert one == other == colours().convert("RGB")

    def changed(data: bytes) -> Any:
        path.write_bytes(PLAIN["colours"])
        image = Image.open(path)
        path.write_bytes(data)
        return np.asarray(image.convert("RGB"))

    for data in (jpeg(picture(50, 40)), PLAIN["grey"], b"", OTHERS["cut"], OTHERS["png"], jpeg(picture(seed=7))):
        assert_as_pillow(changed, data)


@pytest.mark.filterwarnings("ignore")
def test_damaged_files() -> None:
    crop = v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()])
    encoded = 0

    def shown(data: bytes) -> Any:
        nonlocal encoded
        image = Image.open(io.BytesIO(data)).convert("RGB")
        encoded += is_encoded(image)
        try:
            return image.size, crop(image), np.asarray(image)
        except Exception as error:
            raise AssertionError("an error came after convert()") from error

    small = jpeg(picture(20, 18), restart_marker_blocks=2, quality=40)
    for number, data in enumerate(damages(small, random.Random(2), flips=3)):
        with natively():
            found = outcome(shown, data)
        wanted = outcome(shown, data)
        if isinstance(wanted[0], type):
            assert found[0] is wanted[0], number
        else:
            assert_same(found, wanted)
    assert encoded > 500


def test_a_method_of_the_programs_own_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = Image.Image.convert
    for inside in (False, True):
        with monkeypatch.context() as patch, natively() if inside else nullcontext():
            patch.setattr(Image.Image, "convert", lambda self, *args: convert(self, *args).rotate(90))
            with natively():
                found = np.asarray(colours().convert("RGB"))
        assert_same(found, np.asarray(colours().convert("RGB").rotate(90)))


def test_truncated_images_where_the_program_allows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for name in ("cut", "colours", "no end"):
        with natively():
            image = opened_in_memory(FILES[name]).convert("RGB")
            assert not is_encoded(image)
        assert image == opened_in_memory(FILES[name]).convert("RGB")


def test_a_subclass_and_a_draft_are_pillows() -> None:
    own = type("Own", (type(colours()),), {})
    with natively():
        assert not is_encoded(own(io.BytesIO(PLAIN["colours"])).convert("RGB"))
        image = colours()
        image.draft("RGB", (40, 30))
        assert not is_encoded(image.convert("RGB"))


def test_several_threads_look_at_one_image() -> None:
    rand = random.Random(1)
    for _ in range(20):
        with natively():
            image = opened_in_memory(jpeg(picture(200, 160, rand.randrange(99)))).convert("RGB")
        cores: list[Any] = []
        start = threading.Barrier(4)

        def look(thread: int, image: Any = image, cores: list[Any] = cores, start: Any = start) -> None:
            start.wait()
            cores.append(image.im)

        run_in_threads(4, look)
        assert len({id(core) for core in cores}) == 1


def test_what_an_encoded_image_keeps() -> None:
    owner = {"a"}  # a set can be referred to weakly
    gone = weakref.ref(owner)
    with natively():
        image = opened_in_memory(PLAIN["trailing bytes"])
        image.owner = owner
        converted = image.convert("RGB")
    del owner, image
    assert gone() is None
    encoded = encoded_image.encoded_of(converted)
    assert encoded is not None and encoded.data == PLAIN["colours"]


def test_images_without_pixels_are_what_they_were() -> None:
    assert not hasattr(Image.Image, encoded_image.PIXELS) or encoded_image.PIXELS in vars(Image.Image)
    bare = Image.Image.__new__(Image.Image)
    with pytest.raises(AttributeError, match="attribute"):
        getattr(bare, encoded_image.PIXELS)
    assert getattr(Image.Image(), encoded_image.PIXELS) is None


NORMAL = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
#: Transforms that need only a part of an image, or a smaller one.
PARTS: dict[str, Callable[[Any], Any]] = {
    "training": lambda t: t.Compose([t.RandomResizedCrop(40), t.RandomHorizontalFlip(), t.ToTensor(), NORMAL]),
    "validation": lambda t: t.Compose([t.Resize(48), t.CenterCrop(40), t.ToTensor(), NORMAL]),
    "reference": lambda t: t.Compose([t.RandomResizedCrop(30), t.TrivialAugmentWide(), t.PILToTensor()]),
    "resized crop": lambda t: t.RandomResizedCrop(32),
    "resize": lambda t: t.Resize(20),
    "to tensor": lambda t: t.ToTensor(),
    "preset": lambda t: ImageClassification(crop_size=40, resize_size=48),
}


@pytest.mark.parametrize("generation", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", PARTS)
def test_transforms_decode_a_part_alone(name: str, generation: Any) -> None:
    transform = PARTS[name](generation)
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
