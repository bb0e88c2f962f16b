"""Recipes whose end is left to the device: pixels are sent, or live there, and become the host's elements to the bit.

The device is the CPU, whose copies are done at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from tests.accelerator import PromptStream, replaced_by_the_cpu
from tests.data import in_memory, noise_image, photo_files
from tests.waiting import run_in_threads

pytestmark = pytest.mark.native

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GREY = ((0.1307,), (0.3081,))
SCALED = v2.ToDtype(torch.float32, scale=True)


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Return what is copied to cuda:0, which is the CPU."""
    seen: Any = []
    replaced_by_the_cpu(monkeypatch)
    monkeypatch.setattr(PromptStream, "copy", lambda self, tensor: seen.append(tensor) or tensor.clone())
    return seen


def loader_of(dataset: Any, device: Any = "cuda", workers: int = 2) -> Any:
    return penstock.DataLoader(dataset, 7, shuffle=True, seed=11, num_workers=workers, device=device)


def assert_same_bits(ours: Any, theirs: torch.Tensor) -> None:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    ours, theirs = (one.reshape(-1).contiguous().view(torch.uint8) for one in (ours, theirs))
    assert torch.equal(ours, theirs)


def assert_batches(dataset: Any, feed: Any = "cuda", *, said: str, is_so: bool = True, workers: int = 2) -> None:
    """Assert that the batches of two epochs have the bits of the host's, and that explain() says so much (or not)."""
    there, host = loader_of(dataset, feed, workers), loader_of(dataset, None, workers)
    assert (said in there.explain()) is is_so, there.explain()
    for _ in range(2):
        found = list(there)
        for (images, labels), (elements, wanted) in zip(found, host, strict=True):
            assert_same_bits(images, elements)
            assert images.is_contiguous() and torch.equal(labels, wanted)
        assert found


def assert_sent(dataset: Any, sent: list[torch.Tensor], *, workers: int = 2) -> torch.Size:
    """Assert that pixels are sent and converted there; return the shape of the first ones."""
    sent.clear()
    assert_batches(dataset, said="device   convert", workers=workers)
    images = [one for one in sent if one.ndim > 1]
    assert images and {one.dtype for one in images} == {torch.uint8}
    return images[0].shape


def assert_not_sent(dataset: Any) -> None:
    assert_batches(dataset, said="device   convert", is_so=False)


def assert_resident(dataset: Any) -> None:
    """Assert that batches are made on the device, of images that live there."""
    assert_batches(dataset, penstock.Feed("cuda", cache="device"), said="of arrays on cpu", workers=1)


def cifar(*steps: Any, t: Any = v1, samples: int = 20, planar: bool = True) -> Any:
    return in_memory("CIFAR10", t.Compose(steps), samples, planar=planar)


def mnist(*steps: Any, t: Any = v1) -> Any:
    return in_memory("MNIST", t.Compose(steps), 20)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = photo_files(tmp_path_factory.mktemp("photos"), 12, (30, 60), ("jpg", "grey", "png"))
    for number in range(4):
        noise_image(number, 5, 6).save(root / "class0" / f"small{number}.png")
    return root


BYTES = v2.Normalize((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
COLOUR: dict[str, tuple[Any, list[Any]]] = {
    "ToTensor": (v1, [v1.ToTensor()]),
    "ImageNet": (v1, [v1.ToTensor(), v1.Normalize(*IMAGENET)]),
    "one number for all": (v1, [v1.ToTensor(), v1.Normalize((0.5,), (0.5,))]),
    "odd numbers": (v1, [v1.ToTensor(), v1.Normalize((0, 0, 0), (1, -0.3, 7))]),
    "ConvertImageDtype": (v1, [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    "v2": (v2, [v2.ToImage(), SCALED, v2.Normalize(*IMAGENET)]),
    "v2, pure": (v2, [v2.ToImage(), SCALED, v2.Normalize(*IMAGENET), v2.ToPureTensor()]),
    "statistics of bytes": (v2, [v2.ToImage(), v2.ToDtype(torch.float32), BYTES]),
    "bytes as floats": (v2, [v2.PILToTensor(), v2.ToDtype(torch.float32)]),
    "float16": (v2, [v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]),
    "bfloat16": (v2, [v2.ToImage(), v2.ToDtype(torch.bfloat16)]),
    "f64": (v2, [v2.ToImage(), v2.ToDtype(torch.float64, scale=True), v2.Normalize(*IMAGENET)]),
    "normalised twice": (v1, [v1.ToTensor(), v1.Normalize(*IMAGENET), v1.Normalize(*IMAGENET)]),
    # padded after the conversion with what a pixel becomes
    "black": (v1, [v1.ToTensor(), v1.Pad(3), v1.Normalize(*IMAGENET)]),
    "edge": (v1, [v1.ToTensor(), v1.Normalize(*IMAGENET), v1.Pad(3, padding_mode="edge")]),
    "colours": (v1, [v1.Pad(2, fill=(7, 8, 9)), v1.ToTensor(), v1.Pad(1, fill=1), v1.RandomCrop(30)]),
    "too small": (v1, [v2.ToImage(), SCALED, v2.CenterCrop(40), v2.Normalize(*IMAGENET)]),
}
FLIPS = [v1.RandomHorizontalFlip(0.4), v1.RandomVerticalFlip(0.6)]
MOVES: dict[str, list[Any]] = {
    "nothing": [],
    "uneven pad": [v1.Pad((1, 2, 3, 4), fill=(9, 80, 200)), *FLIPS],
    "two fills": [v1.Pad((3, 0, 1, 5), fill=200), v1.RandomCrop(44, padding=(6, 4), fill=(1, 2, 3))],
    "fill, then edge": [v1.Pad(2, fill=90), v1.RandomCrop(36, padding=3, padding_mode="edge")],
    "reflected fill": [v1.RandomVerticalFlip(), v1.Pad(2, fill=90), v1.Pad(4, padding_mode="reflect")],
    "symmetric": [v1.RandomCrop(32, padding=4, padding_mode="symmetric"), v1.RandomHorizontalFlip()],
    "centre, larger": [v1.RandomHorizontalFlip(), v1.CenterCrop((41, 50))],
    "centre, smaller": [v1.CenterCrop((20, 7)), v1.RandomHorizontalFlip()],
    "only where needed": [v1.RandomCrop((40, 20), pad_if_needed=True, fill=77)],
    "resized to its size": [v1.Resize(32), v1.RandomCrop(32, padding=4)],
}


@pytest.mark.parametrize("name", COLOUR)
@pytest.mark.parametrize("workers", [0, 2])
def test_colour_in_memory(name: str, workers: int, sent: Any) -> None:
    t, conversion = COLOUR[name]
    assert_sent(cifar(*conversion, t=t), sent, workers=workers)
    assert_sent(cifar(*MOVES["symmetric"], *conversion), sent, workers=workers)
    assert_resident(cifar(*MOVES["symmetric"], *conversion, planar=workers == 0))


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_pixels(name: str, sent: Any) -> None:
    dataset = cifar(*MOVES[name], v1.ToTensor(), v1.Normalize(*IMAGENET), samples=50, planar=name < "m")
    assert_sent(dataset, sent)
    assert_resident(dataset)
    assert_resident(cifar(*MOVES[name], v1.PILToTensor()))


@pytest.mark.parametrize("t", [v1, v2])
def test_grey(t: Any, sent: Any) -> None:
    tail = [t.ToTensor()] if t is v1 else [v2.ToImage(), SCALED]
    moves = [t.RandomCrop(28, padding=3, fill=50), t.RandomHorizontalFlip(), t.Pad(2, fill=7), t.CenterCrop(34)]
    for steps in ([], [t.Pad(2, fill=9)], moves):
        dataset = mnist(*steps, *tail, t.Normalize(*GREY), t=t)
        assert assert_sent(dataset, sent)[1] == 1
        assert_resident(dataset)
    for channels in (1, 3):
        dataset = cifar(t.Pad(3, fill=77), t.Grayscale(channels), t.Pad(1, fill=5), *tail)
        assert assert_sent(dataset, sent)[1:] == (channels, 40, 40)
    assert_sent(mnist(t.Grayscale(3), *tail, t.Normalize(*IMAGENET)), sent)


@pytest.mark.parametrize("kind", [penstock.ImageFolder, torchvision.datasets.ImageFolder])
@pytest.mark.parametrize("known", [True, False], ids=["one shape", "a shape that the samples tell"])
def test_image_files(photos: Path, kind: Any, known: bool, sent: Any) -> None:
    """JPEG by native code, PNG by Pillow, and small ones by their own transform: numpy repeats their reflection."""
    reflect = v1.Pad(12, padding_mode="reflect")
    size = v1.RandomResizedCrop(24) if known else v1.Resize((24, 25))
    steps = [size, v1.RandomHorizontalFlip()] if known else [reflect, size]
    assert_sent(kind(photos, transform=v1.Compose([*steps, v1.ToTensor(), v1.Normalize(*IMAGENET)])), sent)
    small = v1.Compose([reflect, v1.CenterCrop(20), v1.ToTensor(), v1.Normalize(*IMAGENET)])
    assert_sent(kind(photos, transform=small), sent)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_only_the_datasets_own_transform_makes(workers: int, sent: Any) -> None:
    """Its elements become pixels again, to be sent with the others."""
    steps = v1.Pad(30, padding_mode="reflect"), v1.ToTensor(), v1.Normalize(*GREY)
    assert_sent(mnist(*steps), sent, workers=workers)


def test_a_transform_changed_during_the_pass_is_an_error_of_its_sample() -> None:
    for other in (v1.Normalize(*GREY), v1.ConvertImageDtype(torch.float64), v1.Lambda(lambda x: x[0])):
        dataset = mnist(v1.Pad(30, padding_mode="reflect"), v1.ToTensor())
        batches = iter(loader_of(dataset, penstock.Feed("cuda", depth=1)))
        dataset.transform = v1.Compose([v1.Pad(30, padding_mode="reflect"), v1.ToTensor(), other])
        with pytest.raises(penstock.CorruptSample, match=r"sample '\d+' \(in memory\).*transform.* gave .*changed"):
            list(batches)


NOT_SENT = {
    "bytes as they are": [v1.PILToTensor()],
    "whole numbers": [v2.ToImage(), v2.ToDtype(torch.int64)],
    "uint16": [v2.ToImage(), v2.ToDtype(torch.uint16, scale=True)],
    "padded with what is no pixel's": [v1.ToTensor(), v1.Normalize(*IMAGENET), v1.Pad(1)],
    "padded with another number": [v1.ToTensor(), v1.Pad(1, fill=0.3)],
    "in turn": [v1.ToTensor(), v1.CenterCrop(40), v1.Normalize(*IMAGENET), v1.CenterCrop(44)],
    "rounded together": [v2.ToImage(), v2.ToDtype(torch.float16), v2.Normalize((1e4,), (1,))],
    "all one number": [v2.ToImage(), SCALED, v2.Normalize((9e9,), (1,))],
}


@pytest.mark.parametrize("steps", NOT_SENT.values(), ids=NOT_SENT)
def test_what_gains_nothing_or_would_lose_stays_as_it_is(steps: list[Any]) -> None:
    assert_not_sent(cifar(*steps))


def test_rows_have_nothing_to_convert() -> None:
    assert_not_sent(TensorDataset(torch.rand(20, 3), torch.arange(20)))


def test_datasets_side_by_side(sent: Any) -> None:
    one = v1.Normalize(*IMAGENET)
    equal = [cifar(v1.ToTensor(), one), Subset(cifar(v1.RandomVerticalFlip(), v1.ToTensor(), one), range(3, 9))]
    assert_sent(ConcatDataset(equal), sent)
    grey = mnist(v1.Grayscale(3), v1.Pad(2), v1.ToTensor())
    for other in (cifar(v1.ToTensor()), cifar(v1.ToTensor(), v1.Pad(0), one, one), grey):
        assert_not_sent(ConcatDataset([cifar(v1.ToTensor(), one), other]))


LAYOUTS = {
    torch.float32: (cifar, [SCALED, v2.Normalize(*IMAGENET)]),
    torch.uint8: (mnist, [SCALED, v2.Normalize(*GREY)]),
    torch.float16: (cifar, [v2.ToDtype(torch.float16, scale=True)]),
    torch.bfloat16: (cifar, [v2.ToDtype(torch.bfloat16, scale=False)]),
    torch.float64: (cifar, [v2.ToDtype(torch.float64, scale=True)]),
}


@pytest.mark.parametrize("made", LAYOUTS, ids=str)
@pytest.mark.parametrize("room", [64 << 20, 1500], ids=["whole", "in slices"])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype_and_layout(monkeypatch: pytest.MonkeyPatch, made: Any, room: int, dtype: Any) -> None:
    monkeypatch.setattr("penstock.device.arithmetic._ROOM", room)
    make, steps = LAYOUTS[made]
    dataset = make(v2.ToImage(), *steps, t=v2)
    for channels_last in (False, True):
        for cache in (None, "device"):
            feed = penstock.Feed("cuda", dtype=dtype, channels_last=channels_last, cache=cache)
            for (images, _), (wanted, _) in zip(loader_of(dataset, feed), loader_of(dataset, None), strict=True):
                assert_same_bits(images, wanted.to(dtype or wanted.dtype))
                layout = torch.channels_last if channels_last else torch.contiguous_format
                assert images.is_contiguous(memory_format=layout) and not images.requires_grad


def test_explain_says_who_converts() -> None:
    photos = cifar(v1.ToTensor())
    lines = [line.split()[:2] for line in loader_of(photos).explain().splitlines()]
    assert ["native", "send"] in lines and ["device", "convert"] in lines
    assert "convert" in loader_of(photos, None).explain()


def test_many_threads_at_once() -> None:
    dataset = cifar(v1.ToTensor(), v1.Normalize(*IMAGENET))
    run_in_threads(4, lambda _: assert_batches(dataset, said="device   convert"))
