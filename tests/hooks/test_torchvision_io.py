"""torchvision.io's decoders of images give in our workers what they give outside of them, and are counted."""

from __future__ import annotations

import io
import random
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import io as vision_io, transforms as v1, tv_tensors
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_file, read_image
from torchvision.transforms import v2

import penstock
from tests.data import Made
from tests.hooks.jpegs import FILES, PLAIN, encoded, jpeg, outcome, picture
from tests.in_workers import Worker, within
from tests.jpegs import PHOTOS, SAMPLINGS, encode
from tests.recipe.against_torchvision import MEAN, STD, assert_as_torchvision, runs
from tests.same import assert_same

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning"),
]


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
MODES = [*ImageReadMode, "RGB", "gray", "RGBA", "rubbish"]


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("decode", [decode_image, decode_jpeg])
def test_every_file_in_every_mode(decode: Any, name: str) -> None:
    data = tensor(CORPUS[name])
    for mode in MODES:
        for exif in (False, True):
            assert_as_outside(decode, data, mode=mode, apply_exif_orientation=exif)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_files_are_answered(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(PLAIN[name])
    data = tensor(PLAIN[name])
    for exif in (False, True):
        assert assert_as_outside(decode_image, data, apply_exif_orientation=exif) == 1
        assert assert_as_outside(decode_jpeg, data, ImageReadMode.RGB, apply_exif_orientation=exif) == 1
        assert assert_as_outside(read_image, str(path), ImageReadMode.RGB, exif) == 1
        assert assert_as_outside(decode_image, path, "RGB", exif) == 1
        assert assert_as_outside(decode_image, read_file(path), "RGB", exif) == 1
    assert assert_as_outside(decode_jpeg, [data, data]) == 2
    assert assert_as_outside(vision_io.image.decode_image, data) == 1
    assert assert_as_outside(lambda: torch.ops.image.decode_image(data, 3)) == 1


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("orientation", range(10))
def test_orientations(orientation: int, big_endian: bool) -> None:
    for mode in ("RGB", "L"):
        data = oriented(orientation, big_endian=big_endian, image=picture(50, 31).convert(mode))
        assert assert_as_outside(decode_image, tensor(data), apply_exif_orientation=True) == 1
    app1 = b"\xff\xe1" + struct.pack(">H", 40) + b"http://ns.adobe.com/xap/1.0/\0" + b"x" * 9
    for found in (data[:2] + app1 + data[2:], data[:30] + data[31:]):
        assert_as_outside(decode_image, tensor(found), apply_exif_orientation=True)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files(seed: int) -> None:
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
            assert_as_outside(decode_image, tensor(given), draw.choice(["RGB", "UNCHANGED"]), draw.random() < 0.5)


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="there are no photos")
def test_photos() -> None:
    for path in sorted(PHOTOS.glob("*/*"))[:100:10]:
        assert_as_outside(decode_image, path, apply_exif_orientation=True)


def test_unusual_inputs(tmp_path: Path) -> None:
    plain = tensor(jpeg())
    assert assert_as_outside(decode_image, plain.repeat_interleave(2)[::2]) == 0
    for given in (plain.to(torch.int8), plain[None], plain[:0], plain.to("meta"), torch.nn.Parameter(plain, False)):
        assert assert_as_outside(decode_image, given) == 0
    others: tuple[Any, ...] = (str(tmp_path / "nothing.jpg"), tmp_path, None, b"x", [], [1])
    for other in others:
        assert_as_outside(decode_image, other)
        assert_as_outside(decode_jpeg, other)
    assert assert_as_outside(decode_jpeg, plain, device="cpu") == 1
    assert assert_as_outside(decode_jpeg, [plain, plain[:100]]) == 1
    with torch.inference_mode():
        assert_as_outside(decode_image, plain)

    def decode_under_a_mode() -> torch.Tensor:
        with torch.device("meta"):
            return decode_image(plain)

    assert_same(within(decode_under_a_mode), decode_image(plain))


def test_reasons_are_counted() -> None:
    worker = Worker()
    for data in (jpeg(), encoded(picture(), "PNG"), jpeg(picture().convert("CMYK"))):
        worker(decode_image, tensor(data), "RGB")
    worker(decode_image, tensor(jpeg()), "GRAY")
    counts = worker.calls["torchvision.io.decode_image"]
    assert counts.answered == 1
    reasons = {"JPEG: the grey of a colour image", "not a JPEG", "JPEG: CMYK or another number of components"}
    assert set(counts.refused) == reasons


def test_a_warning_is_still_given() -> None:
    if not hasattr(vision_io.image, "_warn_deprecated"):
        pytest.skip("this torchvision does not warn")
    with pytest.warns(DeprecationWarning, match="TorchCodec"):
        within(decode_image, tensor(jpeg()))


def test_other_threads_and_the_time_after_a_pass_are_left_alone() -> None:
    operator = torch.ops.image.decode_image
    counted: list[Any] = []
    worker = Worker()

    def work() -> None:
        assert isinstance(torch.ops.image.decode_image, type(operator))
        assert torch.ops.image.decode_image.default is operator.default
        assert str(torch.ops.image.decode_image) == str(operator)
        thread = threading.Thread(target=lambda: counted.append(decode_image(tensor(jpeg()))))
        thread.start()
        thread.join()

    worker(work)
    assert worker.calls == {}
    assert torch.ops.image.decode_image is operator
    assert_same(counted, [decode_image(tensor(jpeg()))])


def test_a_function_of_the_programs_own_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.image, "decode_image", lambda *given: "mine")
    assert within(decode_image, tensor(jpeg())) == "mine"


def test_a_torchvision_that_decodes_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hooks.images.operator_decodes_alike", lambda operator: False)
    assert assert_as_outside(decode_image, tensor(jpeg())) == 0


# --- transforms on what was decoded -----------------------------------------------------------------------------------


TRAIN = [v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip()]
FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def decoded(mode: str = "RGB", apart: bool = False, size: tuple[int, int] = (50, 40)) -> torch.Tensor:
    image = decode_image(tensor(jpeg(picture(*size))), mode)
    return image.contiguous() if apart else image


STEPS: dict[str, list[Any]] = {
    "train": TRAIN + FLOATS,
    "evaluation": [v2.Resize(32, antialias=True), v2.CenterCrop(24), *FLOATS],
    "to its size": [v2.Resize((40, 50), antialias=True), *FLOATS],
    "to image first": [v2.ToImage(), *TRAIN, *FLOATS, v2.ToPureTensor()],
    "dtype first": [v2.ToDtype(torch.uint8, scale=True), *TRAIN, *FLOATS],
    "first generation": [v1.RandomCrop(24, padding=3), v1.RandomVerticalFlip(), v1.ConvertImageDtype(torch.float32)],
    "erased": [*TRAIN, *FLOATS, v2.RandomErasing(1.0)],
    "cropped later": [*TRAIN, *FLOATS, v2.RandomCrop(12)],
    "bicubic": [v2.RandomResizedCrop(24, interpolation=v2.InterpolationMode.BICUBIC, antialias=True), *FLOATS],
    "not antialiased": [v2.Resize((20, 20), antialias=False), *FLOATS],
    "nearest": [v2.Resize((20, 20), interpolation=v2.InterpolationMode.NEAREST), *FLOATS],
    "padded": [v2.Pad(3, fill=7), v2.RandomCrop(24), *FLOATS],
    "halves": [*TRAIN, v2.ToDtype(torch.float16, scale=True)],
    "unscaled": [*TRAIN, v2.ToDtype(torch.float32)],
    "still bytes": TRAIN,
    "nothing done": [v2.RandomHorizontalFlip(0.0), v2.RandomCrop((40, 50))],
    "only a conversion": FLOATS,
    "own function": [v2.RandomResizedCrop(30, antialias=True), v2.Lambda(lambda image: image + 1), *TRAIN, *FLOATS],
    "colours": [*TRAIN, v2.ColorJitter(0.4, 0.4), *FLOATS],
    "grey": [v2.Grayscale(), *TRAIN, *FLOATS],
}


@pytest.mark.parametrize("apart", [False, True], ids=["side by side", "apart"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
def test_transforms_of_tensors(t: Any, name: str, apart: bool) -> None:
    transform = t.Compose(STEPS[name])
    for kind in (torch.Tensor, tv_tensors.Image):
        for size in ((50, 40), (24, 24), (31, 90), (24, 60)):
            given = decoded(apart=apart, size=size).as_subclass(kind)
            for _ in range(2):  # what one has taught is used by the next
                assert_as_torchvision(transform, given, range(4))
    if name in ("train", "evaluation", "to image first", "erased", "first generation"):
        assert runs(transform) and runs(transform)[0][1] >= len(STEPS[name]) - (name == "cropped later")
    assert name != "still bytes" or runs(transform) == []


def test_tensors_that_lie_otherwise() -> None:
    transform = v2.Compose(TRAIN + FLOATS)
    whole = decoded()
    for given in (
        whole[:, 1:],
        whole[..., ::2],
        whole[:1],
        whole.float(),
        whole[None],
        whole.flip(-1).permute(0, 2, 1),
    ):
        assert_as_torchvision(transform, given, range(3))
    assert_as_torchvision(transform, decoded("GRAY"), range(3))
    assert_as_torchvision(transform, torch.zeros(3, 0, 4, dtype=torch.uint8))
    assert_as_torchvision(transform, torch.zeros(3, 5, 1, dtype=torch.uint8))
    assert within(transform, torch.zeros(3, 5, 5, dtype=torch.uint8, device="meta")).is_meta


def test_nothing_is_shared_with_the_image() -> None:
    image = decoded()
    kept, transform = image.clone(), v2.Compose([*TRAIN, *FLOATS])
    worker = Worker()
    for _ in range(100):  # the first of each kind are compared with torchvision's
        worker(transform, image).zero_()
    assert torch.equal(image, kept) and worker.answered > 10


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}])
def test_a_dataset_of_ones_own(tmp_path: Path, options: dict[str, Any]) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(picture(60 + number, 50, number)))
    steps = v2.Compose(TRAIN + FLOATS)
    dataset = Made(lambda index: (steps(decode_image(read_file(str(tmp_path / f"{index}.jpg")))), index), 8)
    loader: Any = penstock.DataLoader(dataset, batch_size=4, seed=3, **options)
    batches = list(loader)
    assert batches[0][0].shape == (4, 3, 24, 24)
    assert_same(list(penstock.DataLoader(dataset, batch_size=4, seed=3)), batches)
    calls = loader.stats().calls
    assert calls["torchvision.io.decode_image"].answered == calls["torchvision transforms"].answered == 8
    assert "torchvision.io.decode_image: 8 answered natively" in loader.explain()


def test_pixels_are_bytes_of_torchs_own() -> None:
    image = within(decode_image, tensor(jpeg()))
    assert image.untyped_storage().resizable() and image.untyped_storage().nbytes() == image.numel()
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), np.asarray(Image.open(io.BytesIO(jpeg()))))
