"""torchcodec's decoders of images give in our workers what they give outside of them, and are counted.

Each test runs with a stand-in for torchcodec's module, and with torchcodec itself where it is installed.
"""

from __future__ import annotations

import importlib
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import penstock
from tests.data import Made
from tests.hooks import torchcodec_stand_in
from tests.hooks.jpegs import FILES, PLAIN, encoded, jpeg, outcome, picture
from tests.in_workers import Worker, within
from tests.jpegs import PHOTOS, SAMPLINGS, encode
from tests.same import assert_same

pytestmark = pytest.mark.native
HOME = "torchcodec.decoders._image_decoders"


@pytest.fixture(params=["stand-in", "torchcodec"])
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "torchcodec":
        try:
            return importlib.import_module(HOME)
        except Exception as error:  # of a build for another torch, too
            pytest.skip(f"torchcodec 0.16 or newer cannot be imported: {type(error).__name__}: {error}"[:200])
    monkeypatch.setitem(sys.modules, HOME, torchcodec_stand_in)
    return torchcodec_stand_in


def tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)


def assert_as_outside(call: Callable[..., Any], *arguments: Any, **named: Any) -> int:
    """Assert that a call gives or raises in our workers what it does elsewhere; return how many calls were answered."""
    worker = Worker()
    assert_same(worker(outcome, partial(call, *arguments, **named)), outcome(partial(call, *arguments, **named)))
    return worker.answered


def oriented(orientation: int, *, big_endian: bool = False, image: Image.Image | None = None, **options: Any) -> bytes:
    exif = Image.Exif()
    exif.endian = ">" if big_endian else "<"
    exif[0x0112] = orientation
    return jpeg(image, exif=exif, **options)


CORPUS = {f"{sampling}, {width}x{height}": encode(width, height, sampling)
          for sampling in SAMPLINGS for width, height in ((1, 1), (17, 9), (50, 33))}  # fmt: skip
CORPUS |= FILES | {f"orientation {number}": oriented(number) for number in range(10)}
MODES = ["UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA", "rgb", "rubbish", 3]


@pytest.mark.parametrize("name", CORPUS)
def test_every_file_in_every_mode(codec: Any, name: str) -> None:
    for mode in MODES:
        for decode in (codec.decode_image, codec.decode_jpeg):
            assert_as_outside(decode, tensor(CORPUS[name]), mode=mode)
    assert_as_outside(codec.decode_png, tensor(CORPUS[name]))


@pytest.mark.parametrize("name", PLAIN)
def test_plain_files_are_answered(codec: Any, name: str, tmp_path: Path) -> None:
    path, data = tmp_path / "a.jpg", PLAIN[name]
    path.write_bytes(data)
    for decode in (codec.decode_image, codec.decode_jpeg):
        for source in (path, str(path), data, tensor(data)):
            assert assert_as_outside(decode, source) == 1
        for mode in ("UNCHANGED", codec.ImageReadMode.RGB, "RGB_ALPHA"):
            assert assert_as_outside(decode, path, mode=mode) == 1
        assert assert_as_outside(decode, path, output_dtype=torch.uint16) == 1
        assert assert_as_outside(decode, path, output_dtype="auto") == 1
    assert assert_as_outside(codec.decode_jpeg, [path, data], device="cpu") == 2
    turned = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    np.testing.assert_array_equal(within(codec.decode_image, path).permute(1, 2, 0).numpy(), np.asarray(turned))


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("orientation", range(10))
def test_orientations(codec: Any, orientation: int, big_endian: bool) -> None:
    for mode in ("RGB", "L"):
        data = oriented(orientation, big_endian=big_endian, image=picture(50, 31).convert(mode))
        assert assert_as_outside(codec.decode_image, data) == 1
    assert_as_outside(codec.decode_image, data[:30] + data[31:])
    several = oriented(orientation, big_endian=big_endian, progressive=True)
    begin, end = several.index(b"\xff\xe1"), several.index(b"\xff\xdb")
    scan = several.index(b"\xff\xda", several.index(b"\xff\xda") + 2)  # Exif before the second scan
    assert_as_outside(codec.decode_image, several[:begin] + several[end:scan] + several[begin:end] + several[scan:])


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files(codec: Any, seed: int) -> None:
    draw = random.Random(seed)
    forms = [oriented(6, subsampling=draw.randrange(3)), jpeg(progressive=True), jpeg(picture().convert("L")), jpeg()]
    for data in forms:
        cut = data[: draw.randrange(len(data))]
        flipped = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        in_head = bytearray(data)
        in_head[draw.randrange(min(700, len(data)))] = draw.randrange(256)
        for given in (cut, bytes(flipped), bytes(in_head)):
            assert_as_outside(codec.decode_jpeg, tensor(given), mode=draw.choice(["RGB", "UNCHANGED"]))


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="there are no photos")
def test_photos(codec: Any) -> None:
    for path in sorted(PHOTOS.glob("*/*"))[:100:10]:
        assert_as_outside(codec.decode_image, path)


def test_unusual_inputs(codec: Any, tmp_path: Path) -> None:
    plain = tensor(jpeg())
    assert assert_as_outside(codec.decode_jpeg, plain.repeat_interleave(2)[::2]) == 0
    for given in (plain.to(torch.int8), plain[None], plain[:0], torch.nn.Parameter(plain, False)):
        assert assert_as_outside(codec.decode_jpeg, given) == 0
    others: tuple[Any, ...] = (str(tmp_path / "nothing.jpg"), tmp_path, None, 3, [], [1])
    for other in others:
        assert_as_outside(codec.decode_image, other)
        assert_as_outside(codec.decode_jpeg, other)
    assert assert_as_outside(codec.decode_jpeg, [plain, plain[:100]]) == 1
    assert_as_outside(codec.decode_jpeg, plain, output_dtype=torch.float32)
    assert_as_outside(partial(codec.decode_jpeg, plain, "RGB"))  # the mode is given by its name only
    with torch.inference_mode():
        assert_as_outside(codec.decode_image, plain)


def test_reasons_are_counted(codec: Any) -> None:
    worker = Worker()
    for data in (jpeg(), jpeg(picture().convert("CMYK")), encoded(picture(), "PNG")):
        worker(codec.decode_image, tensor(data))
    worker(codec.decode_image, tensor(jpeg()), mode="GRAY")
    calls = worker.calls
    assert calls["torchcodec.decoders.decode_jpeg"].answered == 1
    reasons = {"JPEG: the grey of a colour image", "JPEG: CMYK or another number of components"}
    assert set(calls["torchcodec.decoders.decode_jpeg"].refused) == reasons
    assert set(calls["torchcodec.decoders.decode_png"].refused) == {"not a JPEG"}


def test_other_threads_and_the_time_after_a_pass_are_left_alone(codec: Any) -> None:
    operator, data = codec._decode_jpeg, tensor(jpeg())
    counted: list[Any] = []
    worker = Worker()

    def work() -> None:
        thread = threading.Thread(target=lambda: counted.append(codec.decode_image(data)))
        thread.start()
        thread.join()

    worker(work)
    assert worker.calls == {}
    assert codec._decode_jpeg is operator
    assert_same(counted, [codec.decode_image(data)])


@pytest.mark.parametrize("name", ["decode_jpeg", "_decode_jpeg"])
def test_a_function_of_the_programs_own_wins(codec: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, name, lambda data, *given, **named: torch.tensor(7))
    assert within(lambda: codec.decode_image(tensor(jpeg()), output_dtype="auto")) == 7


def test_a_library_that_decodes_otherwise(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hooks.images.operator_decodes_alike", lambda operator: False)
    assert assert_as_outside(codec.decode_image, tensor(jpeg())) == 0


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}])
def test_a_dataset_of_ones_own(codec: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(oriented(number, image=picture(50, 50, number)))
    dataset = Made(lambda index: (codec.decode_image(tmp_path / f"{index}.jpg"), index), 8)
    loader: Any = penstock.DataLoader(dataset, batch_size=4, **options)
    assert_same(list(loader), list(torch.utils.data.DataLoader(dataset, batch_size=4)))
    text = loader.explain()
    assert "torchcodec.decoders.decode_jpeg: 8 answered natively" in text
    assert "calls torchcodec.decoders: where a file is a sample, the native core reads it by penstock.Images" in text
