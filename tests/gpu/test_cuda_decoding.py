"""JPEG files decoded on a GPU: near the host's pixels, with the same draws, labels, order and errors."""

from __future__ import annotations

import importlib
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1

import penstock
from penstock.carriers.native import NativeCarrier
from penstock.device import decoders
from penstock.device.copy_stream import copy_stream_to
from penstock.device.decoders import decoder_for
from penstock.device.decoding import DecodingCarrier
from penstock.device.feed import Feed
from penstock.device.feeding import Feeding
from penstock.errors import CorruptSample, InvalidOption
from penstock.memory.buffers import Buffers
from penstock.order.batches import as_indices, with_sample_numbers
from penstock.passes.iterator import Pass
from penstock.passes.values import PassInput, PassResources
from penstock.plan import NativePlan, plan
from tests.gpu.on_device import DEVICE, slowly
from tests.same import assert_same

#: Of 255 steps. nvJPEG's inverse DCT and colour conversion round otherwise than libjpeg-turbo's; without interpolated
#: chroma (torchcodec, torchvision) pixels at coloured edges differ by far more, but few do.
MEAN_DIFFERENCE = 3.0
SIZES = [(240, 320), (333, 250), (200, 200), (187, 311), (480, 640), (64, 64)]


def jpeg(number, size, **options):
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (size[0] // 24 + 2, size[1] // 24 + 2, 3), dtype=np.uint8))
    out = io.BytesIO()
    coarse.resize((size[1], size[0]), Image.Resampling.BICUBIC).save(out, "JPEG", **{"quality": 92, **options})
    return out.getvalue()


@pytest.fixture
def root(tmp_path):
    for number in range(24):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        options = {"progressive": number % 5 == 4, "subsampling": number % 3}
        (folder / f"{number:02}.jpg").write_bytes(jpeg(number, SIZES[number % len(SIZES)], **options))
    return tmp_path


@pytest.fixture(params=["NvImageCodec", "TorchCodec", "TorchVision"])
def decoder(request):
    try:
        found = getattr(decoders, request.param)(DEVICE)
        fault = decoders._fault(found)
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        pytest.skip(f"{request.param} is not installed, or not for this CUDA: {error}")
    assert fault is None
    return found


def dataset_of(root, *transform):
    return penstock.ImageFolder(root, v1.Compose([*transform, v1.ToTensor()]))


def passes(dataset, batches, decoder, stream=None):
    """Return a pass that decodes on the device, and one that decodes on the host."""
    found = plan(dataset, batched=True, collate_fn=None, worker_init_fn=None, raw=True)
    assert isinstance(found, NativePlan)
    resources = [PassResources(4, None, Buffers(pinned=False, keep=8)) for _ in range(2)]
    fillers = DecodingCarrier(found, resources[0], decoder, DEVICE, stream), NativeCarrier(found, resources[1])
    return [
        Pass(one, PassInput(with_sample_numbers(map(as_indices, batches), 0, batched=True), len(batches), 5, 2))
        for one in fillers
    ]


def test_pixels_are_near_the_hosts(root, decoder):
    dataset = dataset_of(root, v1.RandomResizedCrop(96), v1.RandomHorizontalFlip())
    batches = [list(range(start, start + 8)) for start in (0, 8, 16)]
    ours, theirs = passes(dataset, batches, decoder)
    for (pixels, labels), (expected, expected_labels) in zip(ours, theirs, strict=True):
        assert pixels.device == DEVICE and pixels.dtype == torch.uint8 and pixels.shape == expected.shape
        assert torch.equal(labels, expected_labels)
        difference = (pixels.cpu().int() - expected.int()).abs().float()
        # Of another crop or another file, the mean difference is 60 or more.
        assert difference.mean() < MEAN_DIFFERENCE and (difference.mean((1, 2, 3)) < 3 * MEAN_DIFFERENCE).all()


def test_on_a_lane_that_falls_behind_each_batch_is_whole(root, decoder):
    dataset = dataset_of(root, v1.Resize(80), v1.CenterCrop(64))
    batches = [[n, (n + 5) % 24, (n + 11) % 24] for n in range(24)] * 3
    stream = copy_stream_to(DEVICE)
    ours, _ = passes(dataset, batches, decoder, stream)
    calm, _ = passes(dataset, batches, decoder)
    expected = [pixels.cpu() for pixels, _ in calm]

    got = []
    for pixels, _ in Feeding(ours, Feed("cuda", transform=slowly), DEVICE, stream, end_source=ours.close):
        got.append(pixels.clone())
        del pixels
    assert_same([pixels.cpu() for pixels in got], expected)


def test_what_a_gpu_cannot_be_trusted_with_is_pillows(root, decoder):
    files = sorted(root.rglob("*.jpg"))
    grey = Image.fromarray(np.arange(64 * 64, dtype=np.uint16).astype(np.uint8).reshape(64, 64))
    grey.save(files[0], "JPEG")
    grey.convert("CMYK").save(files[1], "JPEG")
    grey.convert("RGB").save(files[2], "PNG")
    files[3].write_bytes(files[3].read_bytes()[:-500])
    dataset = dataset_of(root, v1.CenterCrop(48))
    ours, theirs = passes(dataset, [[0, 1, 2], [3], [4]], decoder)
    (pixels, _), (expected, _) = next(ours), next(theirs)
    assert torch.equal(pixels.cpu(), expected)
    for taken in (ours, theirs):
        with pytest.raises(CorruptSample, match="truncated"):
            next(taken)
    assert next(ours)[0].shape == (1, 3, 48, 48)


def test_the_first_decoder_that_works_is_chosen():
    try:
        found = decoder_for(DEVICE)
    except InvalidOption as error:
        assert "penstock-loader[gpu]" in str(error)
        pytest.skip(str(error))
    assert isinstance(found, decoders.NvImageCodec | decoders.TorchCodec | decoders.TorchVision)


def test_nvimagecodec_goes_before_the_others_where_it_works():
    try:
        importlib.import_module("nvidia.nvimgcodec")
    except ImportError:
        pytest.skip("nvImageCodec is not installed")
    assert decoder_for(DEVICE).name == decoders.NvImageCodec.name
