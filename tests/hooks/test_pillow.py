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
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from penstock.hooks.calls import natively
from penstock.recipe import encoded_image
from penstock.recipe.encoded_image import is_encoded
from tests.hooks.jpegs import FILES, OTHERS, PLAIN, assert_as_pillow, encoded, jpeg, outcome, picture
from tests.same import assert_same
from tests.waiting import run_in_threads

# Pillow leaves a file open that it could not decode.
pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")]


def attributes(image: Any) -> dict[str, Any]:
    """Return all that an image shows, without a look at its pixels."""
    names = ("mode", "size", "width", "height", "info", "format", "palette", "filename", "tile", "fp", "is_animated")
    shown = {name: getattr(image, name, "none") for name in names}
    return shown | {
        "exif": dict(image.getexif()),
        "type": type(image),
        "bands": image.getbands(),
        "text": repr(image).partition(" at ")[0],
    }


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


def drawn(image: Image.Image) -> Image.Image:
    ImageDraw.Draw(image).line((0, 0, 40, 30), fill=(255, 0, 0), width=3)
    return image


def pasted(image: Image.Image) -> Image.Image:
    image.paste((1, 2, 3), (2, 2, 9, 9))
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
    "draw": drawn,
    "paste": pasted,
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
    def converted() -> Any:
        return LOOKS[look](Image.open(io.BytesIO(FILES[name])).convert("RGB"))

    def source() -> Any:
        image = Image.open(io.BytesIO(FILES[name]))
        image.convert("RGB")
        return LOOKS[look](image)

    for work in (converted, source):
        assert_as_pillow(work)


def test_changes_of_one_image_do_not_reach_another() -> None:
    with natively():
        image = Image.open(io.BytesIO(PLAIN["colours"]))
        first, second = image.convert("RGB"), image.convert("RGB")
        assert is_encoded(first) and not is_encoded(image), "whoever converts an image twice keeps it"
        first.putpixel((0, 0), (1, 2, 3))
        first.info["x"] = 1
    assert "x" not in second.info and "x" not in image.info
    assert second == Image.open(io.BytesIO(PLAIN["colours"])).convert("RGB") == image.convert("RGB")
    assert first.getpixel((0, 0)) == (1, 2, 3)


def test_only_in_workers_and_only_to_rgb() -> None:
    data = PLAIN["colours"]
    image = Image.open(io.BytesIO(data))
    assert not is_encoded(image.convert("RGB"))
    with natively():
        for call in (
            lambda image: image.convert("L"),
            lambda image: image.convert(),
            lambda image: image.convert("RGB", None, Image.Dither.NONE),
            lambda image: image.convert("RGB", (1, 0, 0, 0) * 3),
            lambda image: image.convert(mode="RGB", colors=8),
        ):
            assert not is_encoded(call(Image.open(io.BytesIO(data))))
        for call in (lambda image: image.convert("RGB"), lambda image: image.convert(mode="RGB")):
            assert is_encoded(call(Image.open(io.BytesIO(data))))
        assert not is_encoded(Image.open(io.BytesIO(PLAIN["grey"])).convert())
        assert not is_encoded(Image.open(io.BytesIO(data)).copy())


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
    assert one == other == Image.open(io.BytesIO(PLAIN["colours"])).convert("RGB")


def test_a_file_that_changed_since_it_was_opened(tmp_path: Path) -> None:
    def changed(data: bytes) -> Any:
        path = tmp_path / "x.jpg"
        path.write_bytes(PLAIN["colours"])
        image = Image.open(path)
        path.write_bytes(data)
        return np.asarray(image.convert("RGB"))

    for data in (jpeg(picture(50, 40)), PLAIN["grey"], b"", OTHERS["cut"], OTHERS["png"], jpeg(picture(seed=7))):
        assert_as_pillow(changed, data)


def damaged() -> Iterator[bytes]:
    """Yield a small file with one byte flipped, each in turn, and cut off after each byte."""
    data = jpeg(picture(20, 18), restart_marker_blocks=2, quality=40)
    for at in range(len(data)):
        yield data[:at]
        for flip in (0x01, 0x80, 0xFF):
            yield data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]


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

    for number, data in enumerate(damaged()):
        with natively():
            found = outcome(shown, data)
        wanted = outcome(shown, data)
        if isinstance(wanted[0], type):
            assert found[0] is wanted[0], number
        else:
            assert_same(found, wanted)
    assert encoded > 500


# --- what a program changes -------------------------------------------------------------------------------------------


def test_a_method_of_the_programs_own_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = Image.Image.convert
    for inside in (False, True):
        with monkeypatch.context() as patch, natively() if inside else nullcontext():
            patch.setattr(Image.Image, "convert", lambda self, *args: convert(self, *args).rotate(90))
            with natively():
                found = np.asarray(Image.open(io.BytesIO(PLAIN["colours"])).convert("RGB"))
        wanted = Image.open(io.BytesIO(PLAIN["colours"])).convert("RGB").rotate(90)
        assert_same(found, np.asarray(wanted))


def test_truncated_images_where_the_program_allows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for name in ("cut", "colours", "no end"):
        with natively():
            image = Image.open(io.BytesIO(FILES[name])).convert("RGB")
            assert not is_encoded(image)
        assert image == Image.open(io.BytesIO(FILES[name])).convert("RGB")


def test_a_subclass_and_a_draft_are_pillows() -> None:
    class Own(type(Image.open(io.BytesIO(PLAIN["colours"])))):  # type: ignore[misc]
        pass

    with natively():
        assert not is_encoded(Own(io.BytesIO(PLAIN["colours"])).convert("RGB"))
        image = Image.open(io.BytesIO(PLAIN["colours"]))
        image.draft("RGB", (40, 30))
        assert not is_encoded(image.convert("RGB"))


def test_several_threads_look_at_one_image() -> None:
    rand = random.Random(1)
    for _ in range(20):
        with natively():
            image = Image.open(io.BytesIO(jpeg(picture(200, 160, rand.randrange(99))))).convert("RGB")
        cores: list[Any] = []
        start = threading.Barrier(4)

        def look(thread: int, image: Any = image, cores: list[Any] = cores, start: Any = start) -> None:
            start.wait()
            cores.append(image.im)

        run_in_threads(4, look)
        assert len({id(core) for core in cores}) == 1


def test_what_an_encoded_image_keeps() -> None:
    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    with natively():
        image = Image.open(io.BytesIO(PLAIN["trailing bytes"]))
        image.owner = owner  # type: ignore[attr-defined]
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
