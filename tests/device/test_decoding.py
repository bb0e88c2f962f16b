"""Decoding on a device, by Pillow in the place of a GPU: the same draws, labels, order and errors as the host's pass.

What is left to differ are the resizes, whose rounding is torch's: how far is asserted recipe by recipe.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets, transforms as v1
from torchvision.transforms import InterpolationMode, v2

import penstock
from penstock.device import decoders
from penstock.device.decoders import decoder_for, read_header
from tests.accelerator import OnHost, PromptStream, replaced_by_the_cpu
from tests.jpegs import save
from tests.same import assert_same, outcomes
from tests.waiting import wait_until

END = (v1.ToTensor(),)
SIZES = [(120, 160), (160, 120), (90, 90), (131, 77), (64, 200), (100, 100), (75, 101), (180, 60)]


def photo(number: int, size: tuple[int, int]) -> Image.Image:
    """Return a picture of smooth areas, edges and some noise, (height, width)."""
    rng = np.random.default_rng(number)
    height, width = size
    coarse = rng.integers(0, 256, (height // 12 + 2, width // 12 + 2, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    for _ in range(6):
        y, x = int(rng.integers(0, height - 8)), int(rng.integers(0, width - 8))
        image.paste(tuple(int(n) for n in rng.integers(0, 256, 3)), (x, y, x + 8 + x % 20, y + 8 + y % 20))
    blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(0.6)), dtype=np.float64)
    return Image.fromarray((blurred + rng.normal(0, 4, blurred.shape)).clip(0, 255).astype(np.uint8))


def jpeg(image: Image.Image, **options) -> bytes:
    return save(image, **{"quality": 90, **options})


def fill_folder(root, sizes=SIZES):
    for number, size in enumerate(sizes):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True, parents=True)
        (folder / f"{number:02}.jpg").write_bytes(jpeg(photo(number, size), progressive=number % 3 == 2))
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return fill_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def _there(monkeypatch):
    """Make of cuda:0 a device that decodes JPEG files with Pillow."""
    replaced_by_the_cpu(monkeypatch)


there = pytest.mark.usefixtures("_there")


def loader_of(dataset, batches, device="cuda", **options):
    feed = None if device is None else penstock.Feed(device, decode="gpu")
    own = {"batch_sampler": batches, "num_workers": 2, "seed": 3, **options}
    return penstock.DataLoader(dataset, device=feed, **own)


def on_device(dataset, batches, **options):
    made = loader_of(dataset, batches, **options)
    assert "decode   on the device" in made.explain()
    return made


def folder(root, *transform, kind=penstock.ImageFolder):
    return kind(root, v1.Compose([*transform, *END]))


def differences(dataset, batches):
    """Return mean and greatest absolute difference of pixels; all else must be equal."""
    ours, theirs = list(on_device(dataset, batches)), list(loader_of(dataset, batches, None))
    assert len(ours) == len(theirs) == len(batches)
    gaps = []
    for (pixels, labels), (expected, expected_labels) in zip(ours, theirs, strict=True):
        assert pixels.dtype == expected.dtype and pixels.is_contiguous()
        assert pixels.shape == expected.shape and torch.equal(labels, expected_labels)
        scale = 255.0 if pixels.is_floating_point() else 1.0
        gaps.append((pixels.double() - expected.double()).abs().flatten() * scale)
    gap = torch.cat(gaps).round()
    return float(gap.mean()), int(gap.max())


BATCHES = [[0, 3, 5, 2], [7, 1, 4], [6], [6, -1, 6, 0]]

# What resizes nothing is exact; the others: (mean, greatest) absolute difference, of 255 steps.
RECIPES: list[tuple[list[Any], float, int]] = [
    ([v1.RandomCrop(50), v1.RandomHorizontalFlip()], 0.0, 0),
    ([v1.CenterCrop(101), v1.RandomHorizontalFlip(1.0)], 0.0, 0),
    ([v1.CenterCrop((170, 40))], 0.0, 0),
    ([v2.CenterCrop(90), v2.Resize(90)], 0.0, 0),
    ([v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), v1.CenterCrop(33)], 0.0, 0),
    ([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip()], 0.20, 1),
    ([v2.RandomResizedCrop((40, 56), antialias=True), v2.RandomHorizontalFlip()], 0.20, 1),
    ([v1.RandomResizedCrop(48, interpolation=InterpolationMode.BICUBIC)], 0.25, 1),
    ([v1.Resize(64), v1.CenterCrop(56)], 0.20, 1),
    ([v1.Resize(40, InterpolationMode.BICUBIC, max_size=90), v1.CenterCrop(56), v1.RandomVerticalFlip()], 0.15, 1),
    ([v1.Resize(200), v1.RandomCrop(128)], 0.25, 1),
    ([v1.Resize((32, 48)), v1.Resize((40, 40))], 0.35, 2),
    ([v1.RandomResizedCrop(48), v1.RandomCrop(40)], 0.20, 1),
    ([v1.RandomResizedCrop(48), v1.CenterCrop(60), v1.RandomCrop(48)], 0.20, 1),
    ([v1.Resize(3)], 0.30, 2),  # steep: averaged down first
    ([v2.PILToTensor(), v2.Resize((40, 50), antialias=True), v2.RandomHorizontalFlip()], 0.209, 1),
    ([v2.PILToTensor(), v2.RandomResizedCrop(30, interpolation=InterpolationMode.BICUBIC, antialias=False)], 0.209, 2),
]


@there
@pytest.mark.parametrize(("transform", "mean", "greatest"), RECIPES, ids=str)
def test_pixels_are_the_hosts_or_close_to_them(root, transform, mean, greatest):
    ends_in_pixels = isinstance(transform[0], v2.PILToTensor)
    dataset = penstock.ImageFolder(root, v2.Compose(transform)) if ends_in_pixels else folder(root, *transform)
    alone = getattr(transform[0], "size", None) == 3
    found_mean, found_greatest = differences(dataset, [[n] for n in range(8)] if alone else BATCHES)
    assert found_mean <= mean and found_greatest <= greatest


@there
def test_parts_of_several_folders_with_other_transforms_and_labels(root, tmp_path):
    other = fill_folder(tmp_path, SIZES[:3])
    one = folder(root, v1.RandomCrop(40))
    transform = v1.Compose([v1.CenterCrop(40), v1.RandomHorizontalFlip(), *END])
    two = penstock.ImageFolder(other, transform, lambda label: label + 5)
    whole: Any = ConcatDataset([Subset(one, [5, 1, 3]), two])
    assert differences(whole, [[0, 4, 2], [3, 5, 1, -1]]) == (0.0, 0)
    transform = v1.Compose([v1.CenterCrop(40), v1.PILToTensor()])
    beside: Any = [datasets.ImageFolder(other, transform), Subset(penstock.ImageFolder(root, transform), [6, 2])]
    assert differences(ConcatDataset(beside), [[4, 3, 1]]) == (0.0, 0)


@there
def test_the_counters_say_what_pillow_read_and_why(tmp_path):
    fill_folder(tmp_path, SIZES[:3])
    photo(9, (50, 60)).save(tmp_path / "class0" / "a.png")
    (tmp_path / "class0" / "b.jpg").write_bytes(jpeg(photo(8, (60, 50)).convert("L")))
    (tmp_path / "class0" / "c.jpg").write_bytes(jpeg(photo(7, (60, 50)).convert("CMYK")))
    dataset = folder(tmp_path, v1.RandomCrop(30), v1.RandomHorizontalFlip())
    everything = [list(range(len(dataset)))]
    assert differences(dataset, everything) == (0.0, 0)
    loader = on_device(dataset, everything)
    list(loader)
    told = loader.stats()
    assert told.samples == len(dataset) == 6
    assert told.read_by_python == {"not a JPEG, or a damaged header": 1, "JPEG: not YCbCr, or unusual components": 2}


class Refusing(OnHost):
    """A decoder that leaves out the second file, and turns the last one round, as EXIF might ask."""

    asked: list[int]

    def decode(self, encoded):
        self.asked = [len(encoded)]
        first, _, *others, last = super().decode(encoded)
        assert last is not None
        return [first, None, *others, last.transpose(1, 2)]


@there
def test_pillow_reads_what_the_decoder_does_not(root, monkeypatch):
    decoder = Refusing()
    monkeypatch.setattr("penstock.device.target.decoder_for", lambda device: decoder)
    assert differences(folder(root, v1.RandomCrop(40)), [[0, 1, 3, 4]]) == (0.0, 0)
    assert decoder.asked == [4]


@there
def test_orientation_is_not_applied(tmp_path):
    fill_folder(tmp_path, SIZES[:2])
    turned = Image.Exif()
    turned[0x0112] = 6
    (tmp_path / "class0" / "x.jpg").write_bytes(jpeg(photo(5, (60, 40)), exif=turned))
    assert differences(folder(tmp_path, v1.CenterCrop((60, 40))), [[0, 1, 2]]) == (0.0, 0)


@there
def test_decoding_and_conversion_are_on_the_copy_stream(root, monkeypatch):
    worked: Any = []
    working: Any = PromptStream.working
    monkeypatch.setattr(PromptStream, "working", lambda stream: worked.append(stream) or working(stream))
    assert differences(folder(root, v1.CenterCrop(50)), BATCHES) == (0.0, 0)
    assert len(worked) == 2 * len(BATCHES)
    wait_until(lambda: not reading_threads())


def damaged(tmp_path):
    """Return a folder of six images: 1 is cut off, 2 empty, 4 missing."""
    dataset = folder(fill_folder(tmp_path, SIZES[:6]), v1.CenterCrop(30))
    files = [path for path, _ in dataset.samples]
    os.truncate(files[1], 700)
    os.truncate(files[2], 0)
    os.unlink(files[4])
    return dataset


@there
@pytest.mark.parametrize("workers", [0, 2])
def test_errors_come_at_their_batch_and_the_pass_goes_on(tmp_path, workers):
    dataset, batches = damaged(tmp_path), [[0], [1], [2, 0], [0, 4, 1], [3, 5]]
    found = outcomes(on_device(dataset, batches, num_workers=workers))
    assert_same(found, outcomes(loader_of(dataset, batches, None)))
    kinds = [one[0] if isinstance(one, tuple) else None for one in found]
    assert kinds == [None, "CorruptSample", "CorruptSample", "MissingSample", None]


@there
def test_the_error_of_a_batch_is_its_first_sample_s(tmp_path):
    dataset, first_is_read = damaged(tmp_path), threading.Event()
    read = dataset.read

    def first_comes_last(position: int, file: Any = None) -> Any:
        if position == 4:
            first_is_read.wait(30)
        try:
            return read(position, file)
        finally:
            if position == 1:
                first_is_read.set()

    dataset.read = first_comes_last
    for orders, kind in (([[4, 1]], penstock.MissingSample), ([[1, 4]], penstock.CorruptSample)):
        first_is_read.clear()
        with pytest.raises(kind) as caught:
            next(iter(on_device(dataset, orders)))
        assert "at position 0 of a batch of 2" in caught.value.__notes__[0]


@there
def test_what_has_other_shapes_or_is_refused(root, tmp_path, monkeypatch):
    ours = iter(on_device(folder(root, v1.RandomHorizontalFlip()), [[0, 1], [5, 5]]))
    with pytest.raises(penstock.ShapeMismatch, match=r"has shape \(3, .*as sample"):
        next(ours)
    assert next(ours)[0].shape[0] == 2
    with pytest.raises(ValueError, match="larger than"):
        list(on_device(folder(fill_folder(tmp_path, [(40, 40), (12, 40)]), v1.RandomCrop(20)), [[0, 1]]))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4000)
    with pytest.raises(penstock.ImageTooLarge):
        next(iter(on_device(folder(root, v1.CenterCrop(10)), [[0]])))


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-reading")]


@pytest.fixture
def slow(tmp_path):
    """Return a folder of one photo that Pillow reads, and what says that it has begun and lets it go on."""
    (tmp_path / "class").mkdir()
    photo(1, (40, 40)).save(tmp_path / "class" / "a.png")
    dataset: Any = folder(tmp_path, v1.CenterCrop(20))
    begun, go_on, read = threading.Event(), threading.Event(), dataset.read

    def read_late(*given: Any) -> Any:
        begun.set()
        go_on.wait(30)
        return read(*given)

    dataset.read = read_late
    yield dataset, begun, go_on
    go_on.set()
    wait_until(lambda: not reading_threads())


@there
def test_a_pass_can_be_closed_while_it_is_waited_for(slow, monkeypatch):
    dataset, begun, go_on = slow
    monkeypatch.setattr("penstock.carriers.worker_thread.JOIN_SECONDS", 0.1)
    batches: Any = iter(on_device(dataset, [[0]]))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(next, batches, "closed")
        assert begun.wait(30)
        batches.close()
        assert waiting.result(30) == "closed"
        go_on.set()


@there
def test_waiting_ends_after_the_timeout(slow):
    batches: Any = iter(on_device(slow[0], [[0]], timeout=0.05))
    with pytest.raises(penstock.WorkerStuck, match=r"2 threads read image files"):
        next(batches)
    slow[2].set()
    batches.close()


@there
def test_a_cache_keeps_what_the_decoder_takes(root):
    dataset = folder(root, v1.CenterCrop(20))
    numbers = [[i] for i in range(len(dataset))]
    loader, expected = on_device(dataset, numbers, cache="64MiB"), list(on_device(dataset, numbers))
    for _ in range(2):
        assert_same(list(loader), expected)
    counts = loader.stats().cache["memory"]
    assert counts.samples == len(dataset) and counts.hits >= len(dataset)


@there
def test_an_error_keeps_no_memory(tmp_path):
    batches: Any = iter(on_device(damaged(tmp_path), [[0, 1]]))
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(penstock.CorruptSample) as caught:
            next(batches)
        gone = weakref.ref(caught.value)
        del caught
        batches.close()
        assert gone() is None
    finally:
        gc.enable()


@there
@pytest.mark.parametrize(
    ("transform", "why"),
    [
        ([v1.Resize(20, InterpolationMode.LANCZOS), *END], "no device does a lanczos resize"),
        ([v1.Resize(20, InterpolationMode.NEAREST), *END], "no device does a nearest resize"),
        ([v1.RandomCrop(20, padding=4), *END], "no device pads"),
        ([v1.RandomCrop(20, pad_if_needed=True), *END], "no device pads"),
        ([v1.Pad(4), *END], "no device does Pad"),
        ([v1.Grayscale(3), *END], "no device does Grayscale"),
        ([v1.Resize(20), v1.ToTensor(), v1.ConvertImageDtype(torch.int16)], "converted in a way"),
        ([v1.RandomPerspective(), *END], "Python reads"),
        ([v1.RandomRotation(3), *END], "no device does RandomRotation"),
        (None, "not a folder of image files"),
    ],
)
def test_what_stays_on_the_host(root, transform, why):
    arrays = penstock.Arrays(torch.arange(4), torch.arange(4))
    dataset: Any = arrays if transform is None else penstock.ImageFolder(root, v1.Compose(transform))
    (said,) = [line for line in loader_of(dataset, [[0]]).explain().splitlines() if line.startswith("decode")]
    assert said.startswith("decode   on the CPU: ") and why in said


@there
def test_the_cpu_decodes_where_bad_samples_are_replaced(tmp_path):
    options: Any = {"batch_size": 3, "on_error": penstock.Replace(max_share=0.9)}
    loader, host = (loader_of(damaged(tmp_path / str(device)), None, device, **options) for device in ("cuda", None))
    assert_same(list(loader), list(host))
    assert "bad samples are replaced; on the device with on_error='raise'" in loader.explain()


@there
def test_nothing_that_decodes_there(root, monkeypatch):
    missing = mock.Mock(side_effect=penstock.InvalidOption('no decoder: pip install "penstock-loader[gpu]"'))
    monkeypatch.setattr("penstock.device.target.decoder_for", missing)
    with pytest.raises(penstock.InvalidOption, match=r"penstock-loader\[gpu\]"):
        iter(loader_of(folder(root, v1.CenterCrop(20)), [[0]]))
    loader = penstock.DataLoader(folder(root, v1.CenterCrop(20)), 4, device=penstock.Feed("cuda", decode="auto"))
    assert "decode   on the CPU: no decoder" in loader.explain()
    assert len(list(loader)) == 2


def test_without_any_decoder_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", mock.Mock(side_effect=ModuleNotFoundError("No module named 'a'")))
    tried = r"tried NVIDIA nvImageCodec \(ModuleNotFoundError.*penstock-loader\[gpu\]"
    with pytest.raises(penstock.InvalidOption, match=tried):
        decoder_for(torch.device("cuda", 0))
    with pytest.raises(penstock.InvalidOption, match=r"there is none for xpu"):
        decoder_for(torch.device("xpu", 0))


def test_a_decoder_whose_pixels_are_wrong_is_passed_over(monkeypatch):
    class Wrong(OnHost):
        name = "wrong"

        def __init__(self, device):
            pass

        def decode(self, encoded):
            return [255 - picture for picture in super().decode(encoded) if picture is not None]

    monkeypatch.setattr(decoders, "NvImageCodec", Wrong)
    monkeypatch.setattr(decoders, "TorchCodec", type("Right", (Wrong,), {"name": "right", "decode": OnHost.decode}))
    assert decoder_for(torch.device("cuda", 0)).name == "right"


def test_one_bad_file_costs_its_batch_nothing_else():
    asked = []

    def decode(encoded):
        asked.append(len(encoded))
        if any(data[0] == 1 for data in encoded):
            raise RuntimeError("nvjpeg says no")
        return encoded

    decoder = decoders._AllOrNothing(decode)
    files = [torch.tensor([n], dtype=torch.uint8) for n in (0, 1, 2)]
    assert [None if picture is None else int(picture) for picture in decoder.decode(files)] == [0, None, 2]
    assert asked == [3, 1, 1, 1]


class Codec:
    """As much of nvidia.nvimgcodec as is used, with images in host memory."""

    BackendKind = SimpleNamespace(HW_GPU_ONLY=0, GPU_ONLY=1, HYBRID_CPU_GPU=2)
    ColorSpec = SimpleNamespace(SRGB="srgb")
    Backend, CodeStream, DecodeParams = int, bytes, dict

    def __init__(self):
        self.made = {}
        self.decoded = []

    def Decoder(self, **options):
        self.made = options
        return self

    def decode(self, streams, *, params, cuda_stream):
        assert params == {"apply_exif_orientation": False, "color_spec": "srgb"} and cuda_stream == 77
        self.decoded.append(len(streams))
        return [None if data[:1] != b"\xff" else np.array(Image.open(io.BytesIO(data))) for data in streams]


def test_nvimagecodec_is_asked_as_its_documentation_has_it(monkeypatch):
    codec = Codec()
    monkeypatch.setattr(importlib, "import_module", {"nvidia.nvimgcodec": codec}.__getitem__)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: type("Stream", (), {"cuda_stream": 77}))
    decoder: Any = decoders.NvImageCodec(torch.device("cuda", 1))
    assert codec.made["device_id"] == 1 and codec.made["options"] == ":fancy_upsampling=1"
    image = photo(1, (20, 30))
    data = [torch.from_numpy(np.frombuffer(d, np.uint8).copy()) for d in (jpeg(image), b"nothing")]
    (alone,) = decoder.decode(data[:1])
    first, nothing = decoder.decode(data)
    assert nothing is None and first.shape == alone.shape == (3, 20, 30) and torch.equal(first, alone)
    expected: Any = OnHost().decode(data[:1])[0]
    assert torch.equal(first, expected)
    assert codec.decoded == [2, 2]  # one file alone is given twice


PHOTO = photo(1, (40, 56))
OPTIONS: list[dict[str, Any]] = [
    {}, {"progressive": True, "optimize": True}, {"subsampling": 0, "quality": 100}, {"restart_marker_blocks": 2},
    {"comment": b"\xff\xd9" * 9},
]  # fmt: skip
HEADERS = {
    (56, 40): [jpeg(PHOTO, **options) for options in OPTIONS],
    "JPEG: no end-of-image marker at its end": [jpeg(PHOTO) + b"trailing", jpeg(PHOTO)[:-2]],
    "JPEG: not YCbCr, or unusual components": [
        *(jpeg(PHOTO.convert(mode)) for mode in ("L", "CMYK")),
        jpeg(PHOTO, keep_rgb=True),
    ],
    "not a JPEG, or a damaged header": [
        *(jpeg(PHOTO)[:400], jpeg(PHOTO)[:30], b"\xff\xd8\xff", b"", b"\x89PNG\r\n"),
        *(b"\xff\xd8\xff\xd9", b"\xff\xd8\xff\xd9\0\0", b"\xff\xd8\xff\xe0\0\1", b"\xff\xd8\xff\xda\0\2\xff\xd9"),
        *(b"\xff\xd8\xff\xc3\0\2\xff\xda", b"\xff\xd8\xff\xc0\0\5\x08\0\1\xff\xda\0\2\xff\xd9"),
    ],
}


@pytest.mark.parametrize(("data", "expected"), [(data, said) for said, files in HEADERS.items() for data in files])
def test_what_a_header_says(data, expected):
    assert read_header(np.frombuffer(data, dtype=np.uint8)) == expected


def test_no_prefix_of_a_file_and_no_changed_byte_of_its_header_breaks_the_reader():
    data = np.frombuffer(jpeg(PHOTO), dtype=np.uint8)
    for end in range(len(data)):
        assert isinstance(read_header(data[:end]), str)
    for at in range(640):
        for value in (0, 1, 0xDA, 0xFF):
            changed = data.copy()
            changed[at] = value
            read_header(changed)
