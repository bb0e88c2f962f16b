"""Decoders of OpenCV, torchvision.io and torchcodec give in our workers what they give elsewhere, and are counted.

torchcodec's tests run with a stand-in for its module, and with torchcodec itself where it is installed.
"""

from __future__ import annotations

import importlib
import os
import random
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision.io
from PIL import Image, ImageOps
from torchvision.io import ImageReadMode

import penstock
from tests.carriers_under_test import options
from tests.data import Made
from tests.hooks import torchcodec_stand_in
from tests.hooks.jpegs import FILES, OTHERS, PLAIN, encoded, jpeg, outcome, picture
from tests.in_workers import Worker, answered, within
from tests.jpegs import PHOTOS, SAMPLINGS, damaged, encode, extreme
from tests.same import assert_same
from tests.waiting import run_in_threads

cv2: Any = pytest.importorskip("cv2")
imread = cv2.imread  # as a program has it that imports the function by name
pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning"),
]
Call = Callable[[], Any]


def row(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


def tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)


class OpenCV:
    counted, alike = "cv2.imdecode", "penstock.hooks.opencv.decoded_alike"
    module, function = cv2, "imdecode"
    flags = (-1, 0, 1, 4, 1 | 128, 2, 6, 0 | 128, *([256] if hasattr(cv2, "IMREAD_COLOR_RGB") else []))

    def decode(self, data: bytes, flags: int = 1) -> Call:
        """Return a call that decodes a file in memory to RGB, turned as its Exif says."""
        return lambda: cv2.imdecode(row(data), flags)

    def calls(self, data: bytes) -> Iterator[Call]:
        """Yield calls that decode a file in every mode."""
        return (self.decode(data, flags) for flags in self.flags)

    def read(self, path: str) -> Any:
        """Read a file, as a dataset does."""
        return cv2.cvtColor(cv2.imdecode(np.fromfile(path, np.uint8), 1), cv2.COLOR_BGR2RGB)


class Torchvision:
    counted, alike = "torchvision.io.decode_image", "penstock.hooks.images.operator_decodes_alike"
    module, function = torch.ops.image, "decode_image"

    def decode(self, data: bytes) -> Call:
        return partial(torchvision.io.decode_image, tensor(data), "RGB", apply_exif_orientation=True)

    def calls(self, data: bytes) -> Iterator[Call]:
        for decode in (torchvision.io.decode_image, torchvision.io.decode_jpeg):
            for mode in (*ImageReadMode, "RGB", "gray", "RGBA", "rubbish"):
                for exif in (False, True):
                    yield partial(decode, tensor(data), mode=mode, apply_exif_orientation=exif)

    def read(self, path: str) -> Any:
        return torchvision.io.decode_image(torchvision.io.read_file(path))


class Torchcodec:
    counted, alike = "torchcodec.decoders.decode_jpeg", "penstock.hooks.images.operator_decodes_alike"
    function = "_decode_jpeg"

    def __init__(self, module: Any) -> None:
        self.module = module

    def decode(self, data: bytes) -> Call:
        return partial(self.module.decode_image, tensor(data))

    def calls(self, data: bytes) -> Iterator[Call]:
        for mode in ("UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA", "rgb", "rubbish", 3):
            for decode in (self.module.decode_image, self.module.decode_jpeg):
                yield partial(decode, tensor(data), mode=mode)
        yield partial(self.module.decode_png, tensor(data))

    def read(self, path: str) -> Any:
        return self.module.decode_image(path)


HOME = "torchcodec.decoders._image_decoders"


@pytest.fixture(params=["OpenCV", "torchvision", "torchcodec's stand-in", "torchcodec"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param in ("OpenCV", "torchvision"):
        return OpenCV() if request.param == "OpenCV" else Torchvision()
    if request.param == "torchcodec":
        try:
            return Torchcodec(importlib.import_module(HOME))
        except Exception as error:  # of a build for another torch, too
            pytest.skip(f"torchcodec 0.16 or newer cannot be imported: {type(error).__name__}: {error}"[:200])
    monkeypatch.setitem(sys.modules, HOME, torchcodec_stand_in)
    return Torchcodec(torchcodec_stand_in)


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, HOME, torchcodec_stand_in)
    return torchcodec_stand_in


def assert_as_outside(call: Callable[..., Any], *arguments: Any, **named: Any) -> int:
    """Assert that a call gives or raises in our workers what it does elsewhere; return how many calls were answered."""
    worker = Worker()
    call = partial(call, *arguments, **named)
    found, wanted = worker(outcome, call), outcome(call)
    if isinstance(wanted[0], np.ndarray):
        one, other = found[0], wanted[0]
        assert (one.shape, one.strides, str(one.flags)) == (other.shape, other.strides, str(other.flags))
        if worker.answered == 0:  # OpenCV leaves the rows that a file lacks as it has found the memory
            return 0
    assert_same(found, wanted)
    return worker.answered


def oriented(orientation: int, *, big_endian: bool = False, image: Image.Image | None = None, **options: Any) -> bytes:
    exif = Image.Exif()
    exif.endian = ">" if big_endian else "<"
    exif[0x010E], exif[0x0112] = "a description", orientation
    return jpeg(image, exif=exif, **options)


SIZES = ((1, 1), (17, 9), (50, 33), (131, 83), (3, 260))
CORPUS = {f"{one}, {width}x{height}": encode(width, height, one) for one in SAMPLINGS for width, height in SIZES}
CORPUS |= FILES | {f"orientation {number}": oriented(number) for number in range(10)}
CORPUS["extreme coefficients"] = extreme()


@pytest.mark.parametrize("name", CORPUS)
def test_every_file_in_every_mode(library: Any, name: str) -> None:
    count = sum(map(assert_as_outside, library.calls(CORPUS[name])))
    progressive = name == "progressive" and not isinstance(library, OpenCV)
    assert bool(count) is (name not in OTHERS or progressive)
    if isinstance(library, OpenCV) and count:  # grey of RGB is OpenCV's
        assert count == len(library.flags) - (3 if name.startswith("rgb") else 0)
    if name in PLAIN:
        assert assert_as_outside(library.decode(CORPUS[name])) == 1


def with_other_metadata(orientation: int, *, big_endian: bool) -> Iterator[bytes]:
    """Yield files whose metadata is damaged, there twice, or not where it should be."""
    data = oriented(orientation, big_endian=big_endian, image=picture(50, 31))
    rng, start = random.Random(2), data.index(b"Exif")
    for _ in range(10):
        out = bytearray(data)
        out[start + rng.randrange(80)] = rng.randrange(256)
        yield bytes(out)
    at = data.index(b"\xff\xe1")
    segment = data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]
    xmp = b"\xff\xe1" + struct.pack(">H", 40) + b"http://ns.adobe.com/xap/1.0/\0" + b"x" * 9
    for more in (xmp, oriented(3)[at : at + len(segment)]):
        yield data[:2] + more + data[2:]
        yield data[: at + len(segment)] + more + data[at + len(segment) :]
    yield data[:30] + data[31:]
    several = oriented(orientation, big_endian=big_endian, progressive=True)
    begin, end = several.index(b"\xff\xe1"), several.index(b"\xff\xdb")
    scan = several.index(b"\xff\xda", several.index(b"\xff\xda") + 2)  # Exif before the second scan
    yield several[:begin] + several[end:scan] + several[begin:end] + several[scan:]


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("orientation", range(10))
def test_orientations(library: Any, orientation: int, big_endian: bool) -> None:
    for mode in ("RGB", "L"):
        data = oriented(orientation, big_endian=big_endian, image=picture(50, 31).convert(mode))
        assert assert_as_outside(library.decode(data)) == 1
    for data in with_other_metadata(orientation, big_endian=big_endian):
        assert_as_outside(library.decode(data))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(10))
def test_damaged_files(library: Any, seed: int) -> None:
    draw, count = random.Random(seed), 0
    for number in range(40):
        whole = encode(70, 50, SAMPLINGS[number % len(SAMPLINGS)], number, progressive=number % 9 == 8)
        data = damaged(oriented(6) if number % 7 == 0 else whole, draw)
        count += assert_as_outside(draw.choice([library.decode(data), *library.calls(data)]))
    assert 0 < count < 40


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="there are no photos")
def test_photos(library: Any) -> None:
    for path in sorted(path for path in PHOTOS.rglob("*") if path.is_file())[::101]:
        assert_as_outside(library.decode(path.read_bytes()))


def test_reasons_are_counted(library: Any) -> None:
    worker = Worker()
    for data in (jpeg(), jpeg(picture().convert("CMYK")), encoded(picture(), "PNG")):
        worker(library.decode(data))
    counts = worker.calls[library.counted]
    assert counts.answered == 1
    others = set(counts.refused) - {"JPEG: CMYK or another number of components"}
    if isinstance(library, Torchcodec):
        others = set(worker.calls["torchcodec.decoders.decode_png"].refused)
    exif = isinstance(library, Torchvision)  # which is asked for the orientation first
    assert others == {"its Exif orientation is unclear" if exif else "not a JPEG"}


def test_other_threads_and_the_time_after_a_pass_are_left_alone(library: Any) -> None:
    before, call = getattr(library.module, library.function), library.decode(jpeg())
    counted: list[Any] = []
    worker = Worker()

    def work() -> None:
        ours = getattr(library.module, library.function)
        assert ours is not before
        if isinstance(library, Torchvision):
            assert (ours.default, str(ours)) == (before.default, str(before)) and isinstance(ours, type(before))
        thread = threading.Thread(target=lambda: counted.append(call()))
        thread.start()
        thread.join()

    worker(work)
    assert worker.calls == {}
    assert getattr(library.module, library.function) is before
    assert_same(counted, [call()])


def test_a_function_of_the_programs_own_wins(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.module, library.function, lambda *given, **named: torch.tensor(7))
    for _ in range(2):
        assert within(library.decode(jpeg())) == 7


def test_a_library_that_decodes_otherwise(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.alike, lambda *operator: False)
    worker = Worker()
    worker(library.decode(jpeg()))
    (reason,) = worker.calls[library.counted].refused
    assert "decodes JPEG in another way" in reason


def test_many_threads(library: Any) -> None:
    calls = [library.decode(encode(60 + seed, 50, SAMPLINGS[seed % 4], seed)) for seed in range(8)]
    wanted = [call() for call in calls]

    def decode() -> None:
        for _ in range(20):
            for call, one in zip(calls, wanted, strict=True):
                assert_same(call(), one)

    run_in_threads(4, lambda _: Worker()(decode))


SIZE = 12
WAYS = options("caller", "threads, 2", "processes, 2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for i in range(SIZE):
        image = picture(70, 70, i)
        data = encoded(image, "PNG") if i == 3 else oriented(1 + i % 4, image=image, progressive=i == 5)
        (root / f"{i}.jpg").write_bytes(data)
    return root


@WAYS
def test_a_dataset_of_ones_own(library: Any, folder: Path, options: dict[str, Any]) -> None:
    dataset = Made(lambda index: (library.read(f"{folder}/{index}.jpg"), index), SIZE)
    theirs = list(tud.DataLoader(dataset, 4))
    loader: Any = penstock.DataLoader(dataset, 4, **options)
    for _ in range(2):
        assert_same(list(loader), theirs)
    count = 2 * (SIZE - 1 - isinstance(library, OpenCV))  # which reads progressive files as fast itself
    assert loader.stats().calls[library.counted].answered == count
    text = loader.explain()
    assert f"calls    {library.counted}: {count} answered natively" in text
    if isinstance(library, Torchcodec):
        assert (
            "calls torchcodec.decoders: where a file is a sample, the native core reads it by penstock.Images" in text
        )


# --- OpenCV -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags", [*range(-3, 9), 16, 17, 32, 33, 64, 65, 128, 129, 255, 256, 257, 258, 260, 263, 384, 512]
)
def test_flags_of_opencv(flags: int) -> None:
    for image in (picture(35, 22), picture(35, 22).convert("L")):
        assert_as_outside(OpenCV().decode(oriented(6, image=image), flags))


def imread_of(*arguments: Any, **named: Any) -> Any:
    return cv2.imread(*arguments, **named)


def imdecode_of(*arguments: Any, **named: Any) -> Any:
    return cv2.imdecode(*arguments, **named)


def test_arguments_of_opencv(tmp_path: Path) -> None:
    data, path = jpeg(), tmp_path / "ä.jpg"
    path.write_bytes(data)
    for name, content in FILES.items():
        (tmp_path / "x.jpg").write_bytes(content)
        for flags in OpenCV.flags:
            assert assert_as_outside(imread_of, str(tmp_path / "x.jpg"), flags) == (name in PLAIN), (name, flags)
    files: list[Any] = [path, PurePosixPath(path), os.fsencode(path), str(path) + "\0", 3, None]
    for file in [*files, str(tmp_path), str(tmp_path / "none")]:
        assert_as_outside(imread_of, file)
    image = np.zeros((70, 90, 3), np.uint8)
    for arguments in ((), ("1",), (True,), (np.int64(0),), (1, 2, 3), (image,)):
        assert_as_outside(imread_of, str(path), *arguments)
    for named in ({"filename": str(path)}, {}, {"filename": str(path), "flags": -1}):
        assert_as_outside(imread_of, **named)
    whole = row(data)
    spread = np.zeros(2 * len(data), np.uint8)
    spread[::2] = whole
    for buffer in (whole.copy(), whole[None], whole[:, None], spread[::2], whole.view(np.int8), data, list(data[:9])):
        assert_as_outside(imdecode_of, buffer, 1)
    assert_as_outside(imdecode_of, whole)


def test_an_array_belongs_to_the_program() -> None:
    first = answered(OpenCV().decode(jpeg()))
    before = first.copy()
    first[:] = 7
    second = answered(OpenCV().decode(jpeg()))
    assert np.array_equal(second, before) and (first == 7).all()


def test_imread_in_a_loader(folder: Path) -> None:
    dataset = Made(lambda index: (imread(f"{folder}/{index}.jpg"), cv2.imread(f"{folder}/0.jpg", 0)), SIZE)
    loader: Any = penstock.DataLoader(dataset, 4)
    for (batch, _), (wanted, _) in zip(loader, tud.DataLoader(dataset, 4), strict=True):
        assert torch.equal(batch, wanted)
        assert type(cv2.imread) is not type(len)
    counts = loader.stats().calls["cv2.imread"]
    assert counts.answered == 2 * SIZE - 2
    reasons = ("not a JPEG", "JPEG: progressive, in several scans, unusual or damaged")
    assert counts.refused == {why: (1, example(folder, n)) for why, n in zip(reasons, (3, 5), strict=True)}
    assert cv2.imread is imread and type(cv2.imread) is type(len)


def example(folder: Path, number: int) -> str:
    path = f"{folder}/{number}.jpg"
    return path if len(path) <= 40 else f"...{path[-37:]}"


@pytest.fixture
def _looked_at_anew() -> Iterator[None]:
    looked = importlib.import_module("penstock.hooks.opencv").decoded_alike
    looked.cache_clear()
    yield
    looked.cache_clear()


@pytest.mark.usefixtures("_looked_at_anew")
@pytest.mark.parametrize("limited", [False, True])
def test_another_opencv_and_limits_of_the_users(limited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if limited:
        monkeypatch.setenv("OPENCV_IO_MAX_IMAGE_PIXELS", "100")
    else:
        monkeypatch.setattr("penstock.hooks.opencv._decode", lambda data, flags: np.zeros((3, 3), np.uint8))
    assert sum(map(assert_as_outside, OpenCV().calls(jpeg()))) == 0


# --- torchvision.io ---------------------------------------------------------------------------------------------------


def test_functions_of_torchvision(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    for content in PLAIN.values():
        path.write_bytes(content)
        data = tensor(content)
        for exif in (False, True):
            assert assert_as_outside(torchvision.io.read_image, str(path), ImageReadMode.RGB, exif) == 1
            assert assert_as_outside(torchvision.io.decode_image, path, "RGB", exif) == 1
        assert assert_as_outside(torchvision.io.decode_jpeg, [data, data]) == 2
        assert assert_as_outside(torchvision.io.decode_jpeg, data, device="cpu") == 1
        assert assert_as_outside(lambda: torch.ops.image.decode_image(data, 3)) == 1  # noqa: B023
    worker = Worker()
    worker(torchvision.io.decode_image, tensor(jpeg()), "GRAY")
    worker(torchvision.io.decode_image, tensor(encoded(picture(), "PNG")))
    reasons = worker.calls["torchvision.io.decode_image"].refused
    assert set(reasons) == {"JPEG: the grey of a colour image", "not a JPEG"}
    if hasattr(torchvision.io.image, "_warn_deprecated"):
        with pytest.warns(DeprecationWarning, match="TorchCodec"):
            within(torchvision.io.decode_image, tensor(jpeg()))
    image = within(torchvision.io.decode_image, tensor(jpeg()))
    assert image.untyped_storage().resizable() and image.untyped_storage().nbytes() == image.numel()


@pytest.mark.parametrize("home", ["torchvision", "torchcodec"])
def test_unusual_inputs(home: str, codec: Any, tmp_path: Path) -> None:
    module: Any = torchvision.io if home == "torchvision" else codec
    plain = tensor(jpeg())
    for given in (
        *(plain.repeat_interleave(2)[::2], plain.to(torch.int8), plain[None], plain[:0]),
        *(plain.to("meta"), torch.nn.Parameter(plain, False)),
    ):
        assert assert_as_outside(module.decode_jpeg, given) == 0
    others: tuple[Any, ...] = (str(tmp_path / "nothing.jpg"), tmp_path, None, 3, [], [1])
    for other in others:
        assert_as_outside(module.decode_image, other)
        assert_as_outside(module.decode_jpeg, other)
    assert assert_as_outside(module.decode_jpeg, [plain, plain[:100]]) == 1
    with torch.inference_mode():
        assert_as_outside(module.decode_image, plain)

    def decode_under_a_mode() -> torch.Tensor:
        with torch.device("meta"):
            decoded: torch.Tensor = module.decode_image(plain)
            return decoded

    if home == "torchvision":
        assert_same(within(decode_under_a_mode), module.decode_image(plain))


def test_arguments_of_torchcodec(codec: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    for name, data in PLAIN.items():
        path.write_bytes(data)
        for decode in (codec.decode_image, codec.decode_jpeg):
            for source in (path, str(path), data, tensor(data)):
                assert assert_as_outside(decode, source) == 1, name
            for mode in ("UNCHANGED", codec.ImageReadMode.RGB, "RGB_ALPHA"):
                assert assert_as_outside(decode, path, mode=mode) == 1
            for dtype in (torch.uint16, "auto"):
                assert assert_as_outside(decode, path, output_dtype=dtype) == 1
        assert assert_as_outside(codec.decode_jpeg, [path, data], device="cpu") == 2
        turned = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        np.testing.assert_array_equal(within(codec.decode_image, path).permute(1, 2, 0).numpy(), np.asarray(turned))
    assert_as_outside(codec.decode_jpeg, tensor(jpeg()), output_dtype=torch.float32)
    assert_as_outside(partial(codec.decode_jpeg, tensor(jpeg()), "RGB"))  # the mode is given by its name only
