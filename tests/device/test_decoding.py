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
from torch.utils.data import ConcatDataset, Subset, default_collate
from torchvision import datasets, transforms as v1
from torchvision.transforms import InterpolationMode, v2

import penstock
from penstock.device import decoders, reading
from penstock.device.arithmetic import Arithmetic
from penstock.device.decoders import decoder_for, read_header
from penstock.device.decoding import DecodingCarrier, refusal
from penstock.device.feed import Feed
from penstock.device.feeding import Feeding
from penstock.errors import CorruptSample, ImageTooLarge, InvalidOption, MissingSample, ShapeMismatch
from penstock.passes.iterator import Pass
from penstock.plan import Kept, NativePlan
from penstock.sample_notes import add_note
from penstock.stats import Counters
from penstock.storage.tiers import caches_of
from tests.accelerator import OnHost, PromptStream
from tests.device.passes import native_plan, on_host, pass_input, plan_of, resources
from tests.jpegs import save
from tests.same import assert_same
from tests.waiting import wait_until

CPU = torch.device("cpu")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
END = (v1.ToTensor(), v1.Normalize(MEAN, STD))
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


def planned(dataset, **options) -> NativePlan:
    found = native_plan(dataset, **options)
    assert refusal(found) is None
    return found


def filler(made: NativePlan, workers=2, decoder=None, **options) -> DecodingCarrier:
    return DecodingCarrier(made, resources(workers, **options), decoder or OnHost(), CPU)


def on_device(dataset, batches, workers=2, decoder=None, **key):
    return Pass(filler(planned(dataset), workers, decoder), pass_input(batches, **key))


def folder(root, *transform, kind=penstock.ImageFolder):
    return kind(root, v1.Compose([*transform, *END]))


def differences(dataset, batches):
    """Return mean and greatest absolute difference of pixels; all else must be equal."""
    ours, theirs = list(on_device(dataset, batches)), list(on_host(planned(dataset), batches))
    assert len(ours) == len(theirs) == len(batches)
    gaps = []
    for (pixels, labels), (expected, expected_labels) in zip(ours, theirs, strict=True):
        assert pixels.dtype == expected.dtype == torch.uint8 and pixels.is_contiguous()
        assert pixels.shape == expected.shape and torch.equal(labels, expected_labels)
        gaps.append((pixels.int() - expected.int()).abs().flatten())
    gap = torch.cat(gaps)
    return float(gap.float().mean()), int(gap.max())


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


@pytest.mark.parametrize(("transform", "mean", "greatest"), RECIPES, ids=str)
def test_pixels_are_the_hosts_or_close_to_them(root, transform, mean, greatest):
    ends_in_pixels = isinstance(transform[0], v2.PILToTensor)
    dataset = penstock.ImageFolder(root, v2.Compose(transform)) if ends_in_pixels else folder(root, *transform)
    assert (planned(dataset).table is None) == ends_in_pixels
    alone = getattr(transform[0], "size", None) == 3
    found_mean, found_greatest = differences(dataset, [[n] for n in range(8)] if alone else BATCHES)
    assert found_mean <= mean and found_greatest <= greatest


def test_parts_of_several_folders_with_other_transforms_and_labels(root, tmp_path):
    other = fill_folder(tmp_path, SIZES[:3])
    one = folder(root, v1.RandomCrop(40))
    transform = v1.Compose([v1.CenterCrop(40), v1.RandomHorizontalFlip(), *END])
    two = penstock.ImageFolder(other, transform, lambda label: label + 5)
    whole: Any = ConcatDataset([Subset(one, [5, 1, 3]), two])
    assert differences(whole, [[0, 4, 2], [3, 5, 1, -1]]) == (0.0, 0)


def test_torchvisions_folder_beside_ours(root, tmp_path):
    transform = v1.Compose([v1.CenterCrop(40), v1.PILToTensor()])
    ours, theirs = penstock.ImageFolder(root, transform), datasets.ImageFolder(fill_folder(tmp_path), transform)
    whole: Any = ConcatDataset([theirs, Subset(ours, [6, 2])])
    assert_same(list(on_device(whole, [[9, 3, 8]])), [default_collate([whole[n] for n in (9, 3, 8)])])


def test_the_counters_say_what_pillow_read_and_why(root, tmp_path):
    fill_folder(tmp_path, SIZES[:3])
    photo(9, (50, 60)).save(tmp_path / "class0" / "a.png")
    (tmp_path / "class0" / "b.jpg").write_bytes(jpeg(photo(8, (60, 50)).convert("L")))
    (tmp_path / "class0" / "c.jpg").write_bytes(jpeg(photo(7, (60, 50)).convert("CMYK")))
    dataset = folder(tmp_path, v1.RandomCrop(30), v1.RandomHorizontalFlip())
    everything = [list(range(len(dataset)))]
    assert differences(dataset, everything) == (0.0, 0)
    counters = Counters()
    batches = on_device(dataset, everything)
    batches.observers = (counters,)
    next(batches)
    told = counters.snapshot((0, 0, 0), {}, None, None)
    assert told.samples == len(dataset) == 6
    assert told.read_by_python == {"not a JPEG, or a damaged header": 1, "JPEG: not YCbCr, or unusual components": 2}


class Refusing:
    """A decoder that leaves out some files, and turns others round, as EXIF might ask."""

    name = "picky"

    def __init__(self, leave_out):
        self.leave_out = leave_out
        self.asked = []

    def decode(self, encoded):
        self.asked.append(len(encoded))
        decoded: list[Any] = OnHost().decode(encoded)
        out: list[Any] = [None if n in self.leave_out else picture for n, picture in enumerate(decoded)]
        return [*out[:-1], out[-1].transpose(1, 2)]


def test_pillow_reads_what_the_decoder_does_not(root):
    dataset = folder(root, v1.RandomCrop(40))
    decoder = Refusing({1})
    ((ours, _),) = list(on_device(dataset, [[0, 1, 3, 4]], decoder=decoder))
    assert decoder.asked == [4]
    assert torch.equal(ours, next(on_host(planned(dataset), [[0, 1, 3, 4]]))[0])


def test_orientation_is_not_applied(tmp_path):
    fill_folder(tmp_path, SIZES[:2])
    turned = Image.Exif()
    turned[0x0112] = 6
    (tmp_path / "class0" / "x.jpg").write_bytes(jpeg(photo(5, (60, 40)), exif=turned))
    assert differences(folder(tmp_path, v1.CenterCrop((60, 40))), [[0, 1, 2]]) == (0.0, 0)


class Beside(PromptStream):
    """A copy stream of the CPU that counts what is done on it."""

    device = CPU
    worked = 0

    def working(self):
        self.worked += 1
        return super().working()


def test_a_loaders_pass_goes_on_from_here(root):
    dataset = folder(root, v1.CenterCrop(50))
    table = planned(dataset).table
    assert table is not None
    stream: Any = Beside()
    source = Pass(DecodingCarrier(planned(dataset), resources(), OnHost(), CPU, stream), pass_input(BATCHES))
    batches = list(Feeding(source, Feed("cpu"), CPU, stream, arithmetic=Arithmetic(table), end_source=source.close))
    assert_same(batches, [default_collate([dataset[n] for n in numbers]) for numbers in BATCHES])
    # Decoding and the rest of the way are on the stream; pixels that are on the device are not copied.
    assert (stream.worked, len(stream.handed_over)) == (2 * len(BATCHES), len(BATCHES))
    wait_until(lambda: not reading_threads())


def damaged(tmp_path):
    """Return a folder of six images: 1 is cut off, 2 empty, 4 missing."""
    dataset = folder(fill_folder(tmp_path, SIZES[:6]), v1.CenterCrop(30))
    files = [path for path, _ in dataset.samples]
    os.truncate(files[1], 700)
    os.truncate(files[2], 0)
    os.unlink(files[4])
    return dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_come_at_their_batch_and_the_pass_goes_on(tmp_path, workers):
    dataset = damaged(tmp_path)
    batches = [[0], [1], [2, 0], [0, 4, 1], [3, 5]]
    kinds: list[Any] = []
    ours = on_device(dataset, batches, workers)
    theirs = on_host(planned(dataset), batches)
    for _ in batches:
        try:
            wanted = next(theirs)
        except penstock.SampleError as error:
            with pytest.raises(type(error)) as caught:
                next(ours)
            assert type(caught.value) is type(error) and str(caught.value) == str(error)
            assert "of a batch of" in caught.value.__notes__[0]
            kinds.append(next(kind for kind in (CorruptSample, MissingSample) if isinstance(error, kind)))
        else:
            assert torch.equal(next(ours)[0], wanted[0])
            kinds.append(None)
    assert kinds == [None, CorruptSample, CorruptSample, MissingSample, None]
    assert list(ours) == []


def test_the_error_of_a_batch_is_its_first_sample_s(tmp_path, monkeypatch):
    dataset, last = damaged(tmp_path), threading.Event()

    def first_comes_last(error, note):
        assert "position 1 " not in note or last.wait(30)
        add_note(error, note)

    monkeypatch.setattr(reading, "add_note", first_comes_last)
    batches = on_device(dataset, [[0], [0, 4, 1]])
    next(batches)
    wait_until(lambda: batches._queue[0].error is not None)  # of position 2
    threading.Timer(0.1, last.set).start()
    with pytest.raises(MissingSample):
        next(batches)


def test_pictures_of_other_shapes_are_named(root):
    ours = on_device(folder(root, v1.RandomHorizontalFlip()), [[0, 1], [5, 5]])
    with pytest.raises(ShapeMismatch, match=r"has shape \(3, .*as sample"):
        next(ours)
    assert next(ours)[0].shape[0] == 2


def test_what_pillow_and_the_users_own_transform_refuse(root, tmp_path, monkeypatch):
    dataset = folder(fill_folder(tmp_path, [(40, 40), (12, 40)]), v1.RandomCrop(20))
    with pytest.raises(ValueError, match="larger than"):
        list(on_device(dataset, [[0, 1]]))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4000)
    with pytest.raises(ImageTooLarge):
        next(on_device(folder(root, v1.CenterCrop(10)), [[0]]))


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-reading")]


def test_a_pass_can_be_closed_while_it_is_waited_for(root, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow(self, number, local):
        begun.set()
        go_on.wait(30)
        return "late"

    monkeypatch.setattr(reading.Readers, "_encoded", slow)
    monkeypatch.setattr("penstock.carriers.worker_thread.JOIN_SECONDS", 0.1)
    batches = on_device(folder(root, v1.CenterCrop(20)), [[0, 1]])
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(next, batches)
        assert begun.wait(30)
        batches.close()
        with pytest.raises(RuntimeError, match=r"^the loader's iterator was closed while it waited for a batch$"):
            waiting.result(30)
        go_on.set()
    wait_until(lambda: not reading_threads())


def test_a_cache_keeps_what_the_decoder_takes(root):
    dataset, caches = folder(root, v1.CenterCrop(20)), caches_of("64MiB")
    numbers = [[i] for i in range(len(dataset))]
    expected = list(on_device(dataset, numbers))
    assert caches is not None
    for _ in range(2):
        kept = native_plan(dataset).keeping(Kept(caches))
        assert_same(list(Pass(filler(kept), pass_input(numbers))), expected)
    counts = caches.counts()["memory"]
    assert counts.samples == len(dataset) and counts.hits >= len(dataset)


def test_waiting_ends_after_the_timeout(root, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(reading.Readers, "_encoded", lambda self, number, local: str(go_on.wait(30)))
    dataset = folder(root, v1.CenterCrop(20))
    batches = Pass(filler(planned(dataset), timeout=0.05), pass_input([[0]]))
    with pytest.raises(penstock.WorkerStuck, match=r"2 threads read image files"):
        next(batches)
    go_on.set()
    batches.close()


def test_an_error_keeps_no_memory(tmp_path):
    batches = on_device(damaged(tmp_path), [[0, 1]])
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(CorruptSample) as caught:
            next(batches)
        gone = weakref.ref(caught.value)
        del caught
        batches.close()
        assert gone() is None
    finally:
        gc.enable()


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
    dataset = arrays if transform is None else penstock.ImageFolder(root, v1.Compose(transform))
    refused = refusal(plan_of(dataset))
    assert refused is not None and why in refused.why


def test_without_any_decoder_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", mock.Mock(side_effect=ModuleNotFoundError("No module named 'a'")))
    with pytest.raises(InvalidOption, match=r"tried NVIDIA nvImageCodec \(ModuleNotFoundError.*penstock-loader\[gpu\]"):
        decoder_for(torch.device("cuda", 0))
    with pytest.raises(InvalidOption, match=r"there is none for xpu"):
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
